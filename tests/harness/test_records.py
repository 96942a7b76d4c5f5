from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from tiny_cases import tiny_case

from harness.environment import Checkout, describe_device
from harness.errors import UserError
from harness.flops import Ceilings, attention_bytes, attention_flops, tile_flops
from harness.records import (
    COLUMNS,
    SAMPLE_COLUMNS,
    TIMED_COLUMNS,
    Record,
    Sample,
    Status,
    append_records,
    append_samples,
    load_records,
    load_samples,
    read_records,
    to_frame,
)
from harness.rows import BackendFacts, Block, Row, RunFacts, make_record, make_samples, window_label
from harness.telemetry import Telemetry
from kernels.mask import Mask

PROMISED = (
    "schema_version run_id case_id case mode batch num_heads_q num_heads_kv head_dim dtype causal window distribution "
    "density total_q total_k max_seqlen_q max_seqlen_k backend impl backend_version direction scope status message "
    "latency_ms latency_ms_p20 latency_ms_p80 latency_ms_ci_low latency_ms_ci_high n_samples flops tflops bytes "
    "floor_ms floor_share tile_efficiency padding_waste speedup_vs_fa4 error_out error_dq error_dk error_dv compile_s "
    "peak_memory_mib sm_clock_mhz power_w throttle gpu driver cuda torch triton commit dirty config_hash seed")
CASE = tiny_case("a case, with a comma", lengths_q=(5, 0, 70, 1), mask=Mask(32, 0))
CEILINGS = Ceilings(matmul_tflops=700.0, copy_tbps=4.0)


def record(backend: str = "jfa", direction: str = "bwd", scope: str = "kernel", status: Status = Status.OK,
           rival_ms: list[float] | None = None, **values: Any) -> Record:
    row = Row(direction, scope, status, errors={"dq": 0.00212345678, "dk": 0.002, "dv": 0.002}, error_share=0.5)
    if status is Status.OK:
        row.blocks = [Block((1.0, 2.0, 3.0), Telemetry(1700, 650, 61, "sw_power_cap")),
                      Block((2.0, 2.0, 4.0), Telemetry(1750, 690, 66))]
    else:
        row.message = f"{status.value}: \"quoted\", with commas\nand lines"
    facts = RunFacts("tiny-1", "abc", "cold", Checkout("0123456789ab", True), CEILINGS)
    backend_facts = BackendFacts(backend, "1.0", describe_device(torch.device("cpu")))
    made = make_record(facts, backend_facts, CASE, row, rival_ms)
    return Record(**{**made.model_dump(), **values})


def test_every_promised_column_is_there_and_described() -> None:
    assert set(PROMISED.split()) <= set(COLUMNS)
    assert all(info.description for info in Record.model_fields.values())


def test_a_record_states_work_floor_and_speed() -> None:
    made = record(rival_ms=[4.0, 4.0, 4.0])
    flops = attention_flops(CASE, "bwd")
    assert (made.flops, made.bytes) == (flops, attention_bytes(CASE, "bwd"))
    assert made.latency_ms == 2.0
    assert (made.latency_ms_p20, made.latency_ms_p80, made.n_samples) == (2.0, 3.0, 6)
    assert made.tflops == pytest.approx(flops / 2.0 / 1e9, rel=1e-5)
    assert made.floor_share == pytest.approx(made.floor_ms / 2.0, rel=1e-5)
    assert made.tile_efficiency == pytest.approx(flops / tile_flops(CASE, "bwd"), rel=1e-5)
    assert made.padding_waste == pytest.approx(1 - CASE.visible_pairs / (4 * made_padded_pairs()), rel=1e-5)
    assert (made.speedup_vs_fa4, made.speedup_vs_fa4_ci_low) == (2.0, pytest.approx(1.0, abs=1.0))
    assert (made.sm_clock_mhz, made.power_w, made.temperature_c, made.throttle) == (1725, 670, 66, "sw_power_cap")
    assert made.density == pytest.approx(19 / 70, rel=1e-5)
    assert (made.causal, made.window, made.cache) == (True, "32:0", "cold")
    assert (made.error_dq, made.error_out, made.error_share) == (0.00212346, None, 0.5)


def made_padded_pairs() -> int:
    return sum(min(i, 32) + 1 for i in range(70))


def test_window_labels() -> None:
    labels = {(None, None): "", (None, 0): "", (32, 0): "32:0", (64, 64): "64:64", (None, 5): "*:5", (7, None): "7:*"}
    assert {key: window_label(tiny_case(mask=Mask(*key))) for key in labels} == labels


def test_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    rows = [record(), record(direction="fwd"), record("other", status=Status.CRASH),
            record("third", status=Status.UNTIMED)]
    append_records(path, rows[:1])
    append_records(path, rows[1:])
    assert load_records(path) == rows
    assert path.read_text().count("schema_version") == 1
    frame = read_records(path)
    assert list(frame.columns) == list(COLUMNS)
    pd.testing.assert_frame_equal(frame, to_frame(rows))
    assert frame["latency_ms"].dtype == "float64"
    assert frame["status"].tolist() == ["ok", "ok", "crash", "untimed"]
    assert frame["latency_ms"].isna().tolist() == [False, False, True, True]


def test_only_ok_rows_carry_times_and_others_say_why() -> None:
    with pytest.raises(ValidationError, match="must not carry latency_ms"):
        record(status=Status.WRONG, latency_ms=1.0)
    with pytest.raises(ValidationError, match="must not carry tflops"):
        record(status=Status.UNTIMED, tflops=1.0)
    with pytest.raises(ValidationError, match="must not carry speedup_vs_fa4"):
        record(status=Status.OOM, speedup_vs_fa4=1.0)
    with pytest.raises(ValidationError, match="needs a message"):
        record(status=Status.HANG, message="")
    with pytest.raises(ValidationError, match="status ok needs tflops"):
        record(tflops=None)
    with pytest.raises(ValidationError, match="within its interval"):
        record(latency_ms=0.5)
    with pytest.raises(ValidationError, match="between its percentiles"):
        record(latency_ms_p20=2.5)
    with pytest.raises(ValidationError, match="must be finite"):
        record(error_dq=float("nan"))
    with pytest.raises(ValidationError, match="direction/scope"):
        record().model_validate({**record().model_dump(), "scope": "kernels"})


def test_a_row_that_was_tampered_with_is_no_record() -> None:
    good = record()
    assert good.tflops
    for changes, message in (
            ({"error_share": 1.5}, "status ok must not have an error_share above 1"),
            ({"tflops": good.tflops * 1.01}, "tflops must follow from the row's other values"),
            ({"flops": good.flops * 2}, "tflops must follow"),
            ({"floor_share": 0.99}, "floor_share must follow"),
            ({"flops": -1}, "greater than or equal to 0"),
            ({"status": Status.UNTIMED, **dict.fromkeys((*TIMED_COLUMNS, "floor_share", "speedup_vs_fa4")),
              "n_samples": 0, "message": "x", "error_share": 1.5}, "status untimed must not have an error_share")):
        with pytest.raises(ValidationError, match=message):
            record(**changes)


def test_errors_beyond_any_number_leave_a_row_with_its_message() -> None:
    row = Row("fwd", "kernel")
    row.update({"status": "wrong", "message": "out: norm of the error is inf", "impl": "x", "compile_s": None,
                "errors": {"out": float("inf"), "lse": 0.25}, "share": float("nan"), "peak_memory_mib": None})
    made = make_record(RunFacts("tiny-1", "abc", "cold", Checkout("", None), CEILINGS),
                       BackendFacts("jfa", "1.0", describe_device(torch.device("cpu"))), CASE, row)
    assert (made.status, made.message) == (Status.WRONG, "out: norm of the error is inf")
    assert (made.error_out, made.error_lse, made.error_share) == (None, 0.25, None)


def test_another_schema_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    append_records(path, [record()])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "7" + lines[1][1:]]) + "\n")
    with pytest.raises(UserError, match=r"old\.csv: written with schema 7; this version reads schema 1"):
        load_records(path)
    path.write_text(lines[0].replace(",tflops", ",teraflops") + "\n" + lines[1] + "\n")
    with pytest.raises(UserError, match=r"old\.csv: not a file of schema 1.*missing: tflops; unknown: teraflops"):
        load_records(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="is not the records CSV of a run: its first line has no column"):
        read_records(path)


def test_corrupt_files_name_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    append_records(path, [record()])
    good = path.read_text()
    for text, message in (
            (good.replace(",bwd,", ",sideways,"), "line 2: row: .*direction/scope"),
            (good.replace(",16,bf16", ",sixteen,bf16"), "line 2: head_dim: .*got 'sixteen'"),
            (good + good.splitlines()[1] + "\n", "line 3: repeats the row"),
            (good + "1,2,3\n", r"line 3: expected \d+ cells, got 3"),
            ("", "empty; expected a header")):
        path.write_text(text)
        with pytest.raises(UserError, match=message) as caught:
            load_records(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="can't be read"):
        load_records(path)
    with pytest.raises(UserError, match="can't be read"):
        load_records(tmp_path / "absent.csv")


def test_a_cut_last_line_is_forgiven_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    append_records(path, [record(), record("other")])
    path.write_text(path.read_text()[:-40])
    with pytest.raises(UserError):
        load_records(path)
    assert [kept.backend for kept in load_records(path, drop_cut_line=True)] == ["jfa"]


def test_a_file_cut_at_any_byte_never_reads_as_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    append_records(path, [record(seed=12345, gpu="Gerät"), record("other", seed=12345, gpu="Gerät")])
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        if not whole[:length].endswith(b"\n"):
            with pytest.raises(UserError):
                load_records(path)
        complete = whole[:length].count(b"\n") - 1
        assert [kept.backend for kept in load_records(path, drop_cut_line=True)] == ["jfa", "other"][:complete]


def test_files_that_a_spreadsheet_saved_are_read(tmp_path: Path) -> None:
    path = tmp_path / "saved.csv"
    append_records(path, [record()])
    before = load_records(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_records(path) == before


def test_samples_must_be_times(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    for latency in ("nan", "inf", "-1", "0"):
        path.write_text(",".join(SAMPLE_COLUMNS) + f"\nrun,id,jfa,fwd,kernel,0,0,{latency},,,,\n")
        with pytest.raises(UserError, match=f"line 2: latency_ms must be positive and finite, got '{latency}'"):
            load_samples(path)


def test_samples_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    row = Row("fwd", "kernel", blocks=[Block((0.5, 0.25), Telemetry(1700, None, 60, "sw_power_cap")),
                                       Block((0.125,), Telemetry())])
    samples = make_samples("run", "jfa", CASE, row)
    append_samples(path, samples)
    assert load_samples(path) == samples
    assert [(sample.block, sample.index, sample.latency_ms) for sample in samples] == [(0, 0, 0.5), (0, 1, 0.25),
                                                                                       (1, 0, 0.125)]
    assert samples[0] == Sample("run", CASE.case_id, "jfa", "fwd", "kernel", 0, 0, 0.5, 1700, None, 60, "sw_power_cap")
