from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_cases import tiny_config

from harness.cases import Case, expand
from harness.config import BenchConfig
from harness.environment import Checkout, describe_device
from harness.errors import UserError
from harness.flops import Ceilings
from harness.records import Status, load_records, load_samples
from harness.rows import BackendFacts, Block, Row, RunFacts, make_record, make_samples
from harness.run_files import RunFiles, kept_from_others, open_earlier, open_new, write_facts
from harness.telemetry import Telemetry

CONFIG = tiny_config(["sdpa_loop", "padded"], ["one", "two"])
CASES = expand(CONFIG)
DEVICE = describe_device(torch.device("cpu"))
CEILINGS = Ceilings(1.0, 0.5)
FACTS = RunFacts("tiny-1", CONFIG.config_hash, "cold", Checkout("", None), CEILINGS)


def append(files: RunFiles, case: Case, backend: str) -> None:
    rows = [Row(direction, scope, Status.OK, blocks=[Block((1.0, 2.0), Telemetry())])
            for direction in CONFIG.directions for scope in CONFIG.scopes]
    files.append([make_record(FACTS, BackendFacts(backend, "", DEVICE), case, row) for row in rows],
                 [sample for row in rows for sample in make_samples("tiny-1", backend, case, row)])


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """A run of two backends whose second case is half done."""
    files = RunFiles(tmp_path / "run", "tiny")
    with kept_from_others(files):
        open_new(files)
    write_facts(files, "tiny-1", CONFIG, DEVICE, Checkout("", None), CEILINGS, [], CASES)
    for case, backend in ((CASES[0], "sdpa_loop"), (CASES[0], "padded"), (CASES[1], "sdpa_loop")):
        append(files, case, backend)
    return files


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-n_bytes])


def test_whole_groups_are_taken_over_with_their_samples(files: RunFiles) -> None:
    before = files.csv_path.read_bytes()
    earlier = open_earlier(files, CONFIG)
    assert (earlier.run_id, earlier.ceilings, earlier.gpu) == ("tiny-1", CEILINGS, DEVICE.gpu)
    assert earlier.groups == {(CASES[0].case_id, "sdpa_loop"), (CASES[0].case_id, "padded"),
                              (CASES[1].case_id, "sdpa_loop")}
    assert earlier.latencies_ms(CASES[1].case_id, "sdpa_loop", "bwd", "kernel") == [1.0, 2.0]
    assert earlier.latencies_ms(CASES[1].case_id, "padded", "bwd", "kernel") == []
    assert files.csv_path.read_bytes() == before


def test_a_cut_line_costs_its_group_and_its_samples_and_no_other(files: RunFiles) -> None:
    cut(files.csv_path, 25)
    earlier = open_earlier(files, CONFIG)
    assert earlier.groups == {(CASES[0].case_id, "sdpa_loop"), (CASES[0].case_id, "padded")}
    assert len(load_records(files.csv_path)) == len(earlier.records) == 8
    assert {sample.case_id for sample in load_samples(files.samples_path)} == {CASES[0].case_id}
    append(files, CASES[1], "sdpa_loop")  # what a resumed run adds leaves a whole file
    assert len(load_records(files.csv_path)) == 12


def test_samples_without_records_are_dropped(files: RunFiles) -> None:
    text = files.csv_path.read_text().splitlines(keepends=True)
    files.csv_path.write_text("".join(text[:9]))
    cut(files.samples_path, 5)
    open_earlier(files, CONFIG)
    assert len(load_samples(files.samples_path)) == 8 * 2


def test_records_without_all_of_their_samples_are_measured_again(files: RunFiles) -> None:
    text = files.samples_path.read_text().splitlines(keepends=True)
    files.samples_path.write_text("".join(text[:-1]))
    earlier = open_earlier(files, CONFIG)
    assert earlier.groups == {(CASES[0].case_id, "sdpa_loop"), (CASES[0].case_id, "padded")}
    assert earlier.dropped == (f"{files.csv_path}: 1 (case, backend) pairs lack rows or samples, and are measured "
                               "again",)
    files.samples_path.unlink()
    assert open_earlier(files, CONFIG).records == ()


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\0" * 100 + b"\n", b"half a li\0\0\n"])
def test_a_tail_that_the_disk_never_got_is_cut(files: RunFiles, tail: bytes) -> None:
    before = files.csv_path.read_bytes()
    for path in (files.csv_path, files.samples_path):
        path.write_bytes(path.read_bytes() + tail)
    earlier = open_earlier(files, CONFIG)
    assert len(earlier.groups) == 3
    assert len(earlier.dropped) == 2
    assert files.csv_path.read_bytes() == before


def test_a_run_that_wrote_no_row_yet_can_be_resumed(files: RunFiles) -> None:
    files.csv_path.unlink()
    files.samples_path.write_text("")
    earlier = open_earlier(files, CONFIG)
    assert earlier.records == ()
    assert load_records(files.csv_path) == []


def test_another_config_is_refused_and_nothing_is_touched(files: RunFiles) -> None:
    before = files.csv_path.read_bytes()
    other: BenchConfig = tiny_config(["sdpa_loop", "padded"], ["one", "two", "three"])
    with pytest.raises(UserError, match="config_hash: the run is of"):
        open_earlier(files, other)
    assert files.csv_path.read_bytes() == before


def test_corruption_other_than_a_cut_last_line_is_refused(files: RunFiles) -> None:
    lines = files.csv_path.read_text().splitlines(keepends=True)
    lines[3] = lines[3][:50] + "\n"
    files.csv_path.write_text("".join(lines))
    with pytest.raises(UserError, match="line 4"):
        open_earlier(files, CONFIG)
    assert files.csv_path.read_text() == "".join(lines)


def test_nothing_to_resume_and_something_to_overwrite_are_refused(files: RunFiles, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds a run already"):
        open_new(files)
    with pytest.raises(UserError, match="no run to resume"):
        open_earlier(RunFiles(tmp_path, "tiny"), CONFIG)
    files.json_path.write_text("{}")
    with pytest.raises(UserError, match="facts of a run"):
        open_earlier(files, CONFIG)


def test_one_process_at_a_time_runs_in_a_directory(files: RunFiles) -> None:
    with kept_from_others(files):
        with pytest.raises(UserError, match="run: another process runs tiny there"), kept_from_others(files):
            pass
        with kept_from_others(RunFiles(files.out_dir, "other")):
            pass
    with kept_from_others(files):
        pass


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / ("n" * 300)):
        with pytest.raises(UserError, match="can't be made"), kept_from_others(RunFiles(out, "tiny")):
            pass


def test_facts_hold_every_case_with_its_lengths(files: RunFiles) -> None:
    facts = json.loads(files.json_path.read_text())
    assert [Case.from_json(case).case_id for case in facts["cases"]] == [case.case_id for case in CASES]
    assert facts["device"]["torch"] == torch.__version__
    assert BenchConfig.model_validate(facts["config"]).config_hash == CONFIG.config_hash
