"""`harness gate`, `noise`, `baseline` and `history` as a CI calls them: messages, exit statuses and files."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gate_truth import Truth, write_run
from test_cli import harness
from typer.testing import CliRunner

from harness import cli
from harness.regression import static
from harness.regression.history import read_history

TRUTH = Truth.load()
SLOWED = ("self_u512", "bwd")
GPU = "NVIDIA H200"


def made(folder: Path, name: str, seed: int, slower=None, **changes) -> Path:
    return write_run(TRUTH.run(name, np.random.default_rng(seed), slower), folder / name / "gate.csv", **changes)


def invoke(*arguments):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="harness")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A baseline with its noise, as two commands make it from five runs."""
    folder = tmp_path_factory.mktemp("site")
    runs = [made(folder, f"aa-{index}", index) for index in range(5)]
    baseline = folder / "baselines" / "gate.csv"
    harness("baseline", "update", runs[2], "--baseline", baseline, "--note", "first", "--history", folder / "h.csv")
    harness("noise", *runs, "--baseline", baseline)
    return folder


@pytest.fixture
def baseline(site, tmp_path) -> Path:
    """A copy to spoil."""
    for path in (site / "baselines").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / "gate.csv"


def refused(*arguments) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("refused: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_baseline_update_writes_why_and_from_what(site):
    manifest = json.loads((site / "baselines" / "gate.baseline.json").read_text())
    assert manifest["note"] == "first"
    assert manifest["run_id"] == "aa-2"
    assert manifest["environment"]["gpu"] == GPU
    assert manifest["environment"]["commit"]
    assert set(manifest["backends"]) == {"jfa", "fa4"}
    assert set(manifest["files"]) == {"gate.csv", "gate.samples.csv", "gate.noise.csv"}
    assert {row.run_id for row in read_history(site / "h.csv")} == {"aa-2"}


def test_noise_is_written_beside_the_baseline_with_a_row_each(site):
    noise = pd.read_csv(site / "baselines" / "gate.noise.csv")
    assert len(noise) == len(TRUTH.rows)
    assert set(noise["runs"]) == {5}
    assert (noise["speedup_sd"] > 0).all()
    assert set(noise["run_ids"]) == {"aa-0 aa-1 aa-2 aa-3 aa-4"}


def test_a_run_without_a_change_passes(site, tmp_path):
    result = invoke("gate", made(tmp_path, "now", 100), "--baseline", site / "baselines" / "gate.csv")
    assert result.exit_code == 0, result.output
    assert "gate passed: " in result.stdout
    assert "SLOW" not in result.stdout


def test_a_slower_row_fails_with_its_reason_in_every_output(site, tmp_path):
    csv = made(tmp_path, "now", 101, {SLOWED: 1.12})
    outputs = {kind: tmp_path / "out" / f"gate.{kind}" for kind in ("md", "xml", "json")}
    result = invoke("gate", csv, "--baseline", site / "baselines" / "gate.csv", "--markdown", outputs["md"],
                    "--junit", outputs["xml"], "--json", outputs["json"])
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if "SLOW" in line)
    assert line.strip().startswith("self_u512 bwd")
    assert "against FA4" in line
    assert "gate FAILED: 1 SLOW" in result.stdout

    text = outputs["md"].read_text()
    assert text.startswith("## gate FAILED: 1 SLOW")
    first = [line for line in text.splitlines() if line.startswith("| ")][1]
    assert first.startswith("| self_u512 bwd | **SLOW** |")
    assert all(line.count(" | ") == 4 for line in text.splitlines() if line.startswith("| "))

    suite = ET.parse(outputs["xml"]).getroot().find("testsuite")
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("gate", "20", "1")
    failed = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["self_u512 bwd"]
    assert "threshold" in failed[0].find("failure").get("message")

    content = json.loads(outputs["json"].read_text())
    assert content["passed"] is False
    assert content["gate"]["counts"]["SLOW"] == 1
    row = next(row for row in content["gate"]["rows"] if row["verdict"] == "SLOW")
    assert (row["case"], row["direction"], row["backend"]) == ("self_u512", "bwd", "jfa")
    assert row["measures"]["speedup"]["change"] == pytest.approx(1 / 1.12, rel=0.03)
    assert row["measures"]["speedup"]["high"] < row["measures"]["speedup"]["threshold"] < 1


def test_undecided_rows_fail_where_strict_says_so(site, tmp_path):
    csv, base = made(tmp_path, "now", 100), ["--baseline", site / "baselines" / "gate.csv"]
    lenient = invoke("gate", csv, *base, "--junit", tmp_path / "lenient.xml")
    undecided = lenient.stdout.count(" UNDECIDED ")
    assert undecided > 0
    assert lenient.exit_code == 0
    assert "strict" not in lenient.stdout
    strict = invoke("gate", csv, *base, "--strict", "--junit", tmp_path / "strict.xml", "--json", tmp_path / "g.json")
    assert strict.exit_code == 1
    assert strict.stdout.splitlines()[-1].startswith(f"gate FAILED: {undecided} UNDECIDED, ")
    assert strict.stdout.splitlines()[-1].endswith("; strict: UNDECIDED fails")
    assert json.loads((tmp_path / "g.json").read_text())["passed"] is False
    for name, failures, skipped in (("lenient", 0, undecided), ("strict", undecided, 0)):
        suite = ET.parse(tmp_path / f"{name}.xml").getroot().find("testsuite")
        assert (int(suite.get("failures")), int(suite.get("skipped"))) == (failures, skipped)


def test_a_deleted_row_is_missing(site, tmp_path):
    csv = made(tmp_path, "now", 102)
    lines = csv.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not (",self_u512," in line and ",jfa," in line and ",bwd," in line)]
    assert len(kept) == len(lines) - 1
    csv.write_text("".join(kept))
    result = invoke("gate", csv, "--baseline", site / "baselines" / "gate.csv")
    assert result.exit_code == 1
    assert "the baseline has this row, the run has not" in result.stdout
    assert "1 MISSING" in result.stdout


def test_a_renamed_case_passes_and_is_noted(site, tmp_path):
    csv = made(tmp_path, "now", 100)
    csv.write_text(csv.read_text().replace(",self_u512,", ",short_rows,"))
    result = invoke("gate", csv, "--baseline", site / "baselines" / "gate.csv")
    assert result.exit_code == 0, result.output
    assert "case self_u512 is called short_rows in the run; it is the same work" in result.stdout


def test_a_run_of_a_dirty_checkout_passes_and_is_noted(site, tmp_path):
    now = made(tmp_path, "now", 100, dirty=True)
    result = invoke("gate", now, "--baseline", site / "baselines" / "gate.csv")
    assert result.exit_code == 0, result.output
    assert "note: the run's checkout differed from its commit" in result.stdout
    assert "the baseline's checkout differed" not in result.stdout


@pytest.mark.parametrize("name", ["gate.csv", "gate.samples.csv", "gate.noise.csv"])
def test_a_baseline_edited_by_hand_is_refused(baseline, tmp_path, name):
    file = baseline.with_name(name)
    file.write_text(file.read_text().replace("0.5", "0.6", 1))
    message = refused("gate", made(tmp_path / "x", "now", 100), "--baseline", baseline)
    assert f"{name}: was changed since it became the baseline" in message


def test_noise_of_another_gpu_is_refused_and_goes_with_its_baseline(baseline, tmp_path):
    baseline.with_name("gate.baseline.json").unlink()
    noise = baseline.with_name("gate.noise.csv")
    noise.write_text(noise.read_text().replace(GPU, "NVIDIA B200"))
    csv = made(tmp_path / "x", "now", 100)
    assert "the noise is of NVIDIA B200, the baseline of NVIDIA H200" in refused("gate", csv, "--baseline", baseline)
    harness("baseline", "update", csv, "--note", "x", "--baseline", baseline, "--history", tmp_path / "h.csv")
    assert not noise.exists()


def test_a_part_of_the_baseline_that_is_gone_is_refused(baseline, tmp_path):
    baseline.with_name("gate.noise.csv").unlink()
    assert "lists it as part of the baseline" in refused(
        "gate", made(tmp_path / "x", "now", 100), "--baseline", baseline)


def test_a_file_that_the_manifest_does_not_list_is_refused(baseline, tmp_path):
    manifest = baseline.with_name("gate.baseline.json")
    facts = json.loads(manifest.read_text())
    csv = made(tmp_path / "x", "now", 100)
    for name in ("gate.noise.csv", "gate.csv"):
        files = {file: digest for file, digest in facts["files"].items() if file != name}
        manifest.write_text(json.dumps({**facts, "files": files}))
        assert f"{name}: isn't among the baseline's files" in refused("gate", csv, "--baseline", baseline)
    manifest.write_text(json.dumps({**facts, "files": {}}))
    assert "isn't among the baseline's files" in refused("gate", csv, "--baseline", baseline)


def test_noise_does_not_hide_an_edit_of_its_baseline(baseline, site):
    runs = [site / f"aa-{index}" / "gate.csv" for index in range(3)]
    harness("noise", *runs, "--baseline", baseline)  # new noise is no edit
    baseline.write_text("".join(baseline.read_text().splitlines(keepends=True)[:-1]))
    assert "gate.csv: was changed since it became the baseline" in refused("noise", *runs, "--baseline", baseline)
    assert "gate.csv: was changed since it became the baseline" in refused("gate", runs[0], "--baseline", baseline)


def test_facts_of_the_baseline_before_do_not_stay(baseline, tmp_path):
    baseline.with_name("gate.run.json").write_text("{}")
    csv = made(tmp_path / "x", "now", 100)
    csv.with_name("gate.run.json").unlink(missing_ok=True)
    harness("baseline", "update", csv, "--note", "x", "--baseline", baseline, "--history", tmp_path / "h.csv")
    assert not baseline.with_name("gate.run.json").exists()


def test_a_latency_edited_without_a_manifest_contradicts_its_samples(baseline, tmp_path):
    baseline.with_name("gate.baseline.json").unlink()
    table = pd.read_csv(baseline, dtype=str, keep_default_na=False)
    for column in ("latency_ms", "latency_ms_p20", "latency_ms_p80", "latency_ms_ci_low", "latency_ms_ci_high"):
        table.loc[0, column] = f"{float(table.loc[0, column]) * 1.1:.6g}"
    table.loc[0, "tflops"] = f"{float(table.loc[0, 'tflops']) / 1.1:.6g}"
    table.loc[0, "floor_share"] = f"{float(table.loc[0, 'floor_share']) / 1.1:.6g}"
    table.to_csv(baseline, index=False, lineterminator="\n")
    message = refused("gate", made(tmp_path / "x", "now", 100), "--baseline", baseline)
    assert "but the median of its samples is" in message


def test_a_baseline_without_a_manifest_is_used_and_noted(baseline, tmp_path):
    baseline.with_name("gate.baseline.json").unlink()
    result = invoke("gate", made(tmp_path / "x", "now", 100), "--baseline", baseline)
    assert result.exit_code == 0, result.output
    assert "gate.baseline.json is missing" in result.stdout


@pytest.mark.parametrize(("name", "expected"), [
    ("gate.csv", "its last line has no end, so it was cut short"),
    ("gate.samples.csv", "its last line has no end, so it was cut short")])
def test_a_cut_file_is_refused(site, tmp_path, name, expected):
    csv = made(tmp_path, "now", 103)
    file = csv.with_name(name)
    file.write_bytes(file.read_bytes()[:-7])
    message = refused("gate", csv, "--baseline", site / "baselines" / "gate.csv")
    assert expected in message
    assert str(file) in message


def test_samples_cut_at_a_line_are_refused(site, tmp_path):
    csv = made(tmp_path, "now", 103)
    samples = csv.with_name("gate.samples.csv")
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-5]))
    assert "samples, the record counts" in refused("gate", csv, "--baseline", site / "baselines" / "gate.csv")


def test_another_gpu_is_refused(site, tmp_path):
    message = refused("gate", made(tmp_path, "now", 104, gpu="NVIDIA B200"), "--baseline",
                      site / "baselines" / "gate.csv")
    assert "gpu is NVIDIA B200" in message
    assert "is of NVIDIA H200" in message


def test_another_schema_is_refused(site, tmp_path):
    csv = made(tmp_path, "now", 105)
    header, *rows = csv.read_text().splitlines(keepends=True)
    csv.write_text(header + "".join("99" + row[row.index(","):] for row in rows))
    assert "written with schema 99" in refused("gate", csv, "--baseline", site / "baselines" / "gate.csv")


def test_bad_usage_is_exit_status_2(site, tmp_path):
    csv = made(tmp_path, "now", 106)
    assert "no such file, so there is no baseline" in harness(
        "gate", csv, "--baseline", tmp_path / "none.csv", code=2)
    assert "no such records CSV" in harness("gate", tmp_path / "none.csv", code=2)
    assert "RUN: missing" in harness("gate", code=2)
    assert "--tolerance" in harness("gate", csv, "--tolerance", "7", code=2)
    csv.with_name("gate.samples.csv").unlink()
    assert "expected raw samples" in harness("gate", csv, "--baseline", site / "baselines" / "gate.csv", code=2)


def test_a_config_without_any_baseline_isnt_run(monkeypatch, tmp_path):
    config = Path(__file__).resolve().parents[2] / "configs" / "gate.yaml"
    monkeypatch.chdir(tmp_path)
    assert "there is no baseline" in harness("gate", config, code=2)


@pytest.mark.parametrize(("runs", "changes", "expected"), [
    (2, {}, "at least 3 are needed"), (3, {"commit": "f00f00f00f00"}, "commit: the runs differ")])
def test_noise_refuses_what_is_no_series_of_equal_runs(tmp_path, runs, changes, expected):
    csvs = [made(tmp_path, f"r{index}", index, **(changes if index == 2 else {})) for index in range(runs)]
    assert expected in refused("noise", *csvs, "--baseline", tmp_path / "b.csv")


def test_noise_refuses_the_same_run_twice(tmp_path):
    csv = made(tmp_path, "r", 0)
    assert "stands there twice" in refused("noise", csv, csv, csv, "--baseline", tmp_path / "b.csv")


def test_an_update_needs_a_reason_and_a_clean_checkout(tmp_path):
    csv = made(tmp_path, "r", 0)
    assert "--note" in harness("baseline", "update", csv, "--note", " ", "--baseline", tmp_path / "b.csv", code=2)
    dirty = made(tmp_path, "s", 0, dirty=True)
    assert "differed from its commit" in refused("baseline", "update", dirty, "--note", "x", "--baseline",
                                                 tmp_path / "b.csv")


def test_findings_in_compiled_kernels_fail_the_gate(monkeypatch, tmp_path):
    found = [static.StaticResult(Path("xray_sm90a.csv"), ("jfa fwd: spill: 16 B of stack, was 0",))]
    monkeypatch.setattr(static, "static_gate", lambda progress: found)
    result = invoke("gate", "--static", "--junit", tmp_path / "g.xml", "--markdown", tmp_path / "g.md", "--json",
                    tmp_path / "g.json")
    assert result.exit_code == 1
    assert "spill: 16 B of stack, was 0" in result.stdout
    suite = ET.parse(tmp_path / "g.xml").getroot().find("testsuite")
    assert (suite.get("name"), suite.get("failures")) == ("static gate", "1")
    assert "static gate FAILED" in (tmp_path / "g.md").read_text()
    assert json.loads((tmp_path / "g.json").read_text())["static"][0]["findings"] == list(found[0].findings)


def test_compiled_kernels_without_findings_pass(monkeypatch):
    monkeypatch.setattr(static, "static_gate", lambda progress: [static.StaticResult(Path("xray_sm90a.csv"), ())])
    assert "static gate passed" in harness("gate", "--static")


def test_no_baseline_of_compiled_kernels_is_exit_status_2(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "holds no xray_sm*.csv" in harness("gate", "--static", code=2)


def test_history_marks_the_commit_that_changed_a_row(tmp_path):
    history = tmp_path / "h.csv"
    for index in range(10):
        slower = {SLOWED: 1.2} if index >= 5 else None
        csv = made(tmp_path, f"run-{index}", index, slower, commit=f"{index}" * 12, date=f"2026-01-{index + 1:02}")
        if index == 0:
            harness("baseline", "update", csv, "--note", "x", "--baseline", tmp_path / "b.csv", "--history", history)
        else:
            harness("history", history, "--add", csv, "--out", tmp_path / "h.png")
    said = harness("history", history, "--out", tmp_path / "h.png", "--column", "speedup_vs_fa4")
    points = [line for line in said.splitlines() if line.startswith("change point")]
    assert len(points) == 1
    assert "self_u512 bwd jfa: from 4444444 to 5555555" in points[0]
    assert (tmp_path / "h.png").stat().st_size > 10_000
    assert (tmp_path / "h.svg").exists()
    assert "has this run already" in harness("history", history, "--add", tmp_path / "run-3" / "gate.csv",
                                             "--out", tmp_path / "h.png")


def test_a_history_of_another_schema_is_refused(tmp_path):
    (tmp_path / "h.csv").write_text("a,b\n1,2\n")
    assert "its columns differ" in refused("history", tmp_path / "h.csv")
    history = tmp_path / "whole.csv"
    harness("history", history, "--add", made(tmp_path, "now", 100))
    whole = history.read_bytes()
    for content, said in ((whole[:-1], "its last line has no end, so it was cut short"),
                          (whole + b"\xff\n", f"byte {len(whole)} is no UTF-8"),
                          (whole.replace(b"\n1,", b"\n2,", 1), "line 2: history_schema is 2; this version reads 1")):
        history.write_bytes(content)
        assert said in refused("history", history)
    assert "no such file" in harness("history", tmp_path / "none.csv", code=2)
    assert "is a directory" in harness("history", tmp_path, code=2)


@pytest.mark.parametrize("arguments", [["gate"], ["noise"], ["baseline", "update", "--note", "x"],
                                       ["compare", "README.md"], ["history", "h.csv", "--add"]])
def test_a_file_that_is_no_run_is_called_that(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text('# A "page", not a run\n')
    (tmp_path / "text.csv").write_text('a page, "too"\n')
    said = harness(*[each.replace("README.md", "text.csv") for each in arguments],
                   "text.csv" if arguments[0] == "compare" else "README.md", code=2)
    name = "text.csv" if arguments[0] == "compare" else "README.md"
    assert said == f"error: {name}: is not the records CSV of a run: its first line has no column schema_version\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "text.csv"]


@pytest.mark.parametrize(("spoil", "code", "wanted"), [
    (lambda history: history.write_text("a,b\n"), 1, "its columns differ"),
    (lambda history: history.mkdir(), 2, "is a directory; a history is a CSV file"),
    (lambda history: history.parent.joinpath("file").touch(), 2, "no directory")])
def test_a_bad_history_stops_a_baseline_before_anything_is_written(site, tmp_path, spoil, code, wanted):
    history = tmp_path / "h.csv"
    spoil(history)
    if (tmp_path / "file").exists():
        history = tmp_path / "file" / "h.csv"
    before = sorted(tmp_path.rglob("*"))
    said = harness("baseline", "update", site / "aa-1" / "gate.csv", "--note", "x", "--baseline",
                   tmp_path / "b" / "gate.csv", "--history", history, code=code)
    assert wanted in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("out", "wanted"), [
    ("plots", "--out: {0}/plots is a directory; name a PNG file, such as {0}/plots/history.png"),
    ("plots/h.pdf", "--out: got {0}/plots/h.pdf; allowed: a name that ends in .png")])
def test_the_picture_of_a_history_is_a_png_file(site, tmp_path, out, wanted):
    (tmp_path / "plots").mkdir()
    history = tmp_path / "h.csv"
    history.write_bytes((site / "h.csv").read_bytes())
    said = harness("history", history, "--add", site / "aa-1" / "gate.csv", "--out", tmp_path / out, code=2)
    assert said.startswith(f"error: {wanted.format(tmp_path)}")
    assert history.read_bytes() == (site / "h.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["h.csv", "plots"]
