"""Modelled figures: what becomes of a config's rows, and that nothing takes them for measurements."""

import importlib.util
import json
from pathlib import Path

import fake_engine
import pandas as pd
import pytest
from sample_records import gem_like
from test_cli import harness
from test_plots import svg_text

from harness.errors import UserError
from harness.model import choose_impl, choose_machine, digest
from harness.model_records import MODEL_COLUMNS, MODELLED_COLUMNS, ModelledRecord, load_modelled
from harness.records import COLUMNS, Record, append_records, append_samples, load_records
from harness.regression.history import append_history, history_rows
from harness.regression.runs import load_run
from harness.report.run_data import read_run

ROOT = Path(__file__).resolve().parents[2]
MEASURED = [name for name in COLUMNS if name.startswith(("latency_ms", "speedup_vs_fa4", "error_", "ceiling_"))] + [
    "tflops", "floor_ms", "floor_share", "sm_clock_mhz", "power_w", "compile_s", "peak_memory_mib"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    fake_engine.install(monkeypatch)
    path = tmp_path / "tiny.yaml"
    path.write_text(fake_engine.CONFIG)
    return path


@pytest.fixture(scope="module")
def modelled(tmp_path_factory):
    """The file of the whole config, without plots; nobody may change it."""
    folder = tmp_path_factory.mktemp("modelled")
    with pytest.MonkeyPatch.context() as patch:
        fake_engine.install(patch)
        (folder / "tiny.yaml").write_text(fake_engine.CONFIG)
        harness("model", folder / "tiny.yaml", "--out", folder / "out", "--no-plots")
    return folder / "out" / "tiny.modelled.csv"


def test_a_row_for_each_case_and_variant_with_its_own_columns(modelled):
    rows = pd.read_csv(modelled, keep_default_na=False)
    assert list(rows) == [*MODEL_COLUMNS, *COLUMNS]
    assert [tuple(row) for row in rows[["case", "direction", "backend", "status"]].to_numpy()] == [
        (case, direction, backend, status) for case in ("short", "long") for direction, backend, status in (
            ("fwd", "jfa", "modelled"), ("bwd", "jfa", "modelled"), ("fwd", "jfa_unsorted", "modelled"),
            ("fwd", "jfa_declined", "unsupported"), ("fwd", "jfa_hurt", "crash"))]
    first = rows.iloc[0]
    assert (float(first["predicted_ms"]), float(first["predicted_clock_mhz"])) == (0.16, 1600)
    assert float(first["predicted_tflops"]) == pytest.approx(first["flops"] / 0.16 / 1e9, rel=1e-5)
    assert (first["bound_by"], float(first["bound_share"])) == ("tensor cores (62 %)", 0.625)
    assert (first["shares"], first["kernels"]) == ("tensor cores=0.625; HBM=0.25", "main=0.16 ms simulated")
    assert (first["machine"], first["gpu"], first["device_type"]) == ("h200", "h200 (modelled)", "model")
    assert first["message"] == "modelled for h200, not measured"
    assert rows["impl"][2].endswith("/none")
    assert rows["message"][3:5].tolist() == ["ping_pong: these switches exclude each other",
                                             "the simulation found: [deadlock] nothing can run"]


def test_columns_of_measurements_stay_empty(modelled):
    rows = pd.read_csv(modelled, keep_default_na=False)
    assert (rows[MEASURED] == "").all(axis=None)
    assert (rows["n_samples"] == 0).all()


def test_processes_share_the_rows_without_a_difference(config, modelled, tmp_path):
    harness("model", config, "--out", tmp_path / "shared", "--no-plots", "--jobs", 2)
    varying = {"run_id", "date"}
    one, two = (pd.read_csv(path).drop(columns=list(varying)) for path in (
        modelled, tmp_path / "shared" / "tiny.modelled.csv"))
    pd.testing.assert_frame_equal(one, two)


def test_case_and_backend_choose_rows(config, tmp_path):
    harness("model", config, "--case", "long", "--backend", "jfa_unsorted", "--out", tmp_path / "o", "--no-plots")
    rows = load_modelled(tmp_path / "o" / "tiny.modelled.csv")
    assert [(row.case, row.backend, row.direction) for row in rows] == [("long", "jfa_unsorted", "fwd")]


def test_what_no_row_comes_of_is_exit_status_1(config, tmp_path):
    said = harness("model", config, "--backend", "jfa_hurt", "--out", tmp_path / "o", code=1)
    assert "no row could be modelled" in said


@pytest.mark.parametrize(("arguments", "wanted"), [
    (["--impl", "blackwell"], "--impl: got 'blackwell', but the machine h200 is an sm_90; allowed: hopper"),
    (["--machine", "h300"], "--machine: machine: h300 is neither a file nor one of b200, h200"),
    (["--backend", "padded"], "--backend: 'padded' can't be simulated as hopper; allowed: jfa, jfa_unsorted"),
    (["--case", "none"], "case: no such case 'none'; allowed: short"),
    (["--trace", "t.json"], "--trace: got 10 rows; allowed: 8 at most, choose by --case and --backend")])
def test_a_mistake_is_one_line(config, tmp_path, arguments, wanted):
    said = harness("model", config, "--out", tmp_path / "o", *arguments, code=2)
    assert said.startswith(f"error: {wanted}")
    assert said.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_a_file_that_is_there_is_not_written_over(config, modelled):
    before = modelled.read_bytes()
    said = harness("model", config, "--out", modelled.parent, code=2)
    assert "tiny.modelled.csv: holds modelled figures already; choose another --out" in said
    assert modelled.read_bytes() == before


def test_the_machine_chooses_the_implementation_and_its_values_the_digest(monkeypatch):
    fake_engine.install(monkeypatch)
    h200, b200 = choose_machine("h200"), choose_machine("b200")
    assert (choose_impl(h200, None), choose_impl(b200, None), choose_impl(b200, "blackwell")) == (
        "hopper", "blackwell", "blackwell")
    assert digest(h200) == digest(h200.model_copy(update={"note": "another"}))
    assert digest(h200) != digest(h200.model_copy(update={"sms": 131.0}))


def test_a_row_with_a_figure_is_modelled_and_no_other(modelled):
    good = load_modelled(modelled)[0].model_dump()
    for change, wanted in (({"predicted_ms": None}, "needs predicted_ms"), ({"bound_by": ""}, "needs bound_by"),
                           ({"predicted_tflops": 1.0}, "must follow"), ({"status": "crash"}, "must not carry"),
                           ({"status": "untimed"}, "status must be of modelled, unsupported, crash"),
                           ({"latency_ms": 0.1}, "must not carry latency_ms"), ({"model_schema": 2}, "must be 1"),
                           ({"predicted_ms": -0.1}, "greater than 0")):
        with pytest.raises(ValueError, match=wanted):
            ModelledRecord.model_validate(good | change)


def test_a_modelled_row_is_no_record(modelled):
    row = load_modelled(modelled)[0].model_dump()
    with pytest.raises(ValueError, match="status modelled is no measurement"):
        Record.model_validate({name: row[name] for name in COLUMNS})


def test_the_columns_of_a_run_alone_are_refused_too(modelled, tmp_path):
    rows = pd.read_csv(modelled, dtype=str, keep_default_na=False)[list(COLUMNS)]
    rows.to_csv(tmp_path / "cut.csv", index=False)
    with pytest.raises(UserError, match=r"cut\.csv: line 2: row: .*status modelled is no measurement"):
        load_records(tmp_path / "cut.csv")


REFUSED = "tiny.modelled.csv: holds modelled figures, none of them measured; harness model, harness plot and harness"


@pytest.fixture
def run(tmp_path):
    """A measured run that itself is in order."""
    path = tmp_path / "run" / "gem.csv"
    path.parent.mkdir()
    append_records(path, [row for row in gem_like() if row.status.value != "ok"][:1])
    append_samples(path.with_suffix(".samples.csv"), [])
    return path


@pytest.mark.parametrize("arguments", [
    ["gate", "MODELLED"], ["gate", "RUN", "--baseline", "MODELLED"], ["compare", "MODELLED", "RUN"],
    ["compare", "RUN", "MODELLED"], ["noise", "MODELLED", "RUN", "RUN"],
    ["baseline", "update", "MODELLED", "--note", "why"], ["history", "history.csv", "--add", "MODELLED"],
    ["report", "MODELLED"], ["report", "RUN", "--against", "MODELLED"],
    ["model", "MODELLED", "--against", "MODELLED"]])
def test_what_needs_measurements_refuses_them_in_one_line(modelled, run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    said = harness(*[{"MODELLED": modelled, "RUN": run}.get(each, each) for each in arguments], code=2)
    assert REFUSED in said
    assert said.count("\n") == 1
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "history.csv").exists()


def test_the_gate_refuses_a_modelled_baseline_before_a_run(config, modelled, tmp_path):
    said = harness("gate", config, "--baseline", modelled, "--out", tmp_path / "gated", code=2)
    assert REFUSED in said
    assert not (tmp_path / "gated").exists()


def test_a_run_is_not_resumed_on_top_of_them(modelled):
    with pytest.raises(UserError, match="holds modelled figures"):
        load_records(modelled, drop_cut_line=True)


def test_the_headline_refuses_them(modelled):
    spec = importlib.util.spec_from_file_location("fill_readme", ROOT / "docs" / "fill_readme.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with pytest.raises(UserError, match="holds modelled figures"):
        script.headline(read_run(modelled))


def test_no_history_holds_them(modelled, tmp_path):
    with pytest.raises(UserError, match="holds modelled figures"):
        append_history(tmp_path / "history.csv", history_rows(load_run(modelled)))


def test_an_ablation_says_modelled_and_takes_no_measured_rows_beside(modelled, tmp_path):
    table = " ".join(harness("ablation", modelled).split())
    assert table.startswith("Latency modelled for h200, not measured, over that of jfa, fwd, kernel scope")
    assert "1.250" in table
    assert "noise" not in table
    markdown = harness("ablation", modelled, "--format", "markdown")
    assert markdown.startswith("Latency modelled for h200, not measured, over that of `jfa`, fwd, kernel scope.")
    rows = pd.read_csv(harness_csv(tmp_path, harness("ablation", modelled, "--format", "csv")))
    assert set(rows["status"]) == {"modelled", "unsupported", "crash"}
    assert rows.loc[rows["variant"] == "jfa_unsorted", "ratio"].tolist() == pytest.approx([1.25, 1.25])


def harness_csv(tmp_path, text):
    path = tmp_path / "written.csv"
    path.write_text(text)
    return path


def test_plots_are_hatched_and_say_modelled_in_title_and_legend(modelled, tmp_path):
    said = harness("plot", modelled, "--out", tmp_path / "plots")
    assert said == f"plot: {tmp_path / 'plots' / 'modelled.png'}\n"
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["modelled.png", "modelled.svg"]
    texts = svg_text(tmp_path / "plots" / "modelled.svg")
    assert "Modelled for h200, not measured: TFLOP/s of useful work" in texts
    assert "jfa (modelled)" in texts
    assert "modelled TFLOP/s" in texts
    assert texts.count("tensor cores (62 %)") == 6
    assert texts.count("unsupported") == 2
    svg = (tmp_path / "plots" / "modelled.svg").read_text()
    assert svg.count("url(#h") >= 6 + 4, "every bar and every entry of the legend has a hatch"
    again = tmp_path / "again"
    harness("plot", modelled, "--out", again)
    assert (again / "modelled.svg").read_text() == svg


def test_plots_of_operation_scope_are_refused(modelled):
    said = harness("plot", modelled, "--scope", "operation", code=2)
    assert "--scope: got operation, but" in said


def test_many_variants_are_named_beside_their_bars(config, tmp_path):
    more = "".join(f"  - {{backend: jfa, name: jfa_{n}, options: {{impl: hopper, fwd: {{section_mb: {n}}}}}}}\n"
                   for n in range(1, 6))
    config.write_text(fake_engine.CONFIG.replace("  - padded\n", more))
    harness("model", config, "--out", tmp_path / "o")
    texts = svg_text(tmp_path / "o" / "plots" / "modelled.svg")
    assert "modelled; each bar is named" in texts
    assert texts.count("jfa_3: tensor cores (62 %)") == 2


def test_a_file_of_figures_is_shown_again_without_modelling(modelled, tmp_path):
    said = harness("model", modelled, "--out", tmp_path / "again")
    assert "Modelled for h200, not measured: kernel scope" in said
    assert f"modelled, not measured: {modelled}" in said
    assert (tmp_path / "again" / "plots" / "modelled.png").exists()
    for option in ("--case", "--machine", "--impl", "--backend", "--trace", "--jobs"):
        said = harness("model", modelled, option, "1", "--out", tmp_path / "not", code=2)
        assert said == f"error: {option}: is for a config; {modelled} is modelled already\n"
    assert not (tmp_path / "not").exists()


def test_measured_records_are_no_source(run):
    assert "gem.csv: holds no modelled figures; allowed: a config, or a <config>.modelled.csv" in harness(
        "model", run, code=2)


def test_every_column_of_its_own_is_documented():
    text = (ROOT / "results" / "README.md").read_text()
    section = text[text.index("`harness model`"):]
    assert all(f"`{name}`" in section for name in MODEL_COLUMNS)
    assert len(set(MODELLED_COLUMNS)) == len(MODELLED_COLUMNS)


def test_a_trace_is_written_beside(config, tmp_path):
    said = harness("model", config, "--case", "long", "--out", tmp_path / "o", "--no-plots", "--trace",
                   tmp_path / "deep" / "t.json")
    assert f"trace, modelled: {tmp_path / 'deep' / 't.json'}" in said
    names = [event["args"]["name"] for event in json.loads((tmp_path / "deep" / "t.json").read_text())["traceEvents"]
             if event["name"] == "process_name"]
    assert names[:3] == ["long fwd jfa, sm0, modelled for h200", "long fwd jfa, sm1, modelled for h200",
                         "long bwd jfa, sm0, modelled for h200"]


def test_an_error_of_the_model_is_its_rows(config, tmp_path, monkeypatch):
    def broken(*arguments, **options):
        if arguments[2] == "bwd":
            raise KeyError("no such\nthing")
        return fake_engine.predict(*arguments, **options)

    monkeypatch.setattr("harness.model.predict", broken)
    harness("model", config, "--backend", "jfa", "--out", tmp_path / "o", "--no-plots")
    rows = load_modelled(tmp_path / "o" / "tiny.modelled.csv")
    assert [(row.direction, row.status.value) for row in rows] == 2 * [("fwd", "modelled"), ("bwd", "crash")]
    assert rows[1].message == "the model failed: KeyError: 'no such\\nthing'"


def test_ctrl_c_keeps_what_is_modelled(config, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        if arguments[2] == "bwd":
            raise KeyboardInterrupt
        return fake_engine.predict(*arguments, **options)

    monkeypatch.setattr("harness.model.predict", interrupted)
    said = harness("model", config, "--out", tmp_path / "o", "--no-plots", code=130)
    assert said == "interrupted; 1 of 10 rows were modelled, and are kept\n"
    assert [row.direction for row in load_modelled(tmp_path / "o" / "tiny.modelled.csv")] == ["fwd"]


@pytest.mark.parametrize(("machine", "backends"), [("h200", ["jfa", "jfa_unsorted"]), ("b200", ["jfa_b200"])])
def test_the_model_itself_predicts_a_config_with_its_switches(tmp_path, machine, backends):
    path = tmp_path / "tiny.yaml"
    path.write_text(fake_engine.CONFIG)
    chosen = [word for name in backends for word in ("--backend", name)]
    harness("model", path, "--machine", machine, "--case", "long", *chosen, "--out", tmp_path / "o", "--trace",
            tmp_path / "t.json")
    rows = load_modelled(tmp_path / "o" / "tiny.modelled.csv")
    assert {row.backend for row in rows} == set(backends)
    for row in rows:
        assert (row.machine, row.status.value) == (machine, "modelled"), row.message
        assert 0.001 < row.predicted_ms < 1
        assert 0 < row.bound_share <= 1
        assert len(row.machine_digest) == 12
    trace = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {each["args"].get("name", "").split(",")[1] for each in trace if each["name"] == "process_name"} == {" sm0"}
    assert sum(each.get("cat") == "stall" for each in trace) > 5
