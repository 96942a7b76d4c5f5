"""The parts of the gate that run the harness, with a fake backend on the CPU: A/A runs, re-runs, two configs."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml_text
from test_gate_cli import invoke, refused

from harness import runner
from harness.config import load_config
from harness.environment import Checkout, describe_checkout
from harness.errors import UserError
from harness.records import load_records
from harness.regression import rerun
from harness.regression.comparison import compare
from harness.regression.interleaved import run_two_commits, run_two_configs
from harness.regression.runs import load_run


@pytest.fixture(autouse=True)
def one_commit(monkeypatch):
    """Whatever happens to this checkout while the test runs."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the workers to find the fake backend
    for module in (runner, rerun):
        monkeypatch.setattr(module, "describe_checkout", lambda: Checkout("0123456789ab", False))


def test_noise_makes_runs_and_a_gate_measures_undecided_rows_again(tmp_path):
    config = yaml_text.write(tmp_path / "tiny.yaml")
    baseline = tmp_path / "baseline" / "tiny.csv"
    result = invoke("noise", config, "--runs", "3", "--out", tmp_path / "aa", "--baseline", baseline, "--device", "cpu")
    assert result.exit_code == 0, result.output
    noise = baseline.with_name("tiny.noise.csv").read_text()
    runs = [load_run(tmp_path / "aa" / f"run-{number}" / "tiny.csv") for number in (1, 2, 3)]
    assert " ".join(run.run_id for run in runs) in noise

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "aa").glob("*/tiny.run.json")}
    kept = rerun.repeat(load_config(config), 3, tmp_path / "aa", "cpu")
    assert [run.run_id for run in kept] == [run.run_id for run in runs]  # complete, so not run again
    assert before == {path: path.stat().st_mtime_ns for path in before}

    table = pd.read_csv(baseline.with_name("tiny.noise.csv"), dtype=str)
    table.assign(speedup_sd="0.05").to_csv(baseline.with_name("tiny.noise.csv"), index=False)
    done = invoke("baseline", "update", runs[1].csv, "--note", "x", "--baseline", baseline, "--history",
                  tmp_path / "h.csv")
    assert done.exit_code == 0, done.output
    # with that scatter no row can be SAME, so that the UNDECIDED ones are measured again
    gated = invoke("gate", runs[2].csv, "--baseline", baseline, "--rerun", "1", "--device", "cpu", "--json",
                   tmp_path / "gate.json")
    assert gated.exit_code in (0, 1), gated.output
    said = json.loads((tmp_path / "gate.json").read_text())["gate"]
    assert len(said["runs"]) == 2
    again = load_records(tmp_path / "aa" / "run-3" / "again-1" / "tiny.csv")
    assert {record.case_id for record in again} <= {record.case_id for record in runs[2].records}


def test_a_run_that_cannot_be_repeated_says_why(tmp_path):
    config = yaml_text.write(tmp_path / "tiny.yaml")
    result = runner.run(load_config(config), runner.RunOptions(out_dir=tmp_path / "run", device="cpu"))
    facts = json.loads(result.run_json_path.read_text())
    facts["config"]["timing"]["unheard_of"] = 1
    result.run_json_path.write_text(json.dumps(facts))
    with pytest.raises(rerun.Refused, match="can't be read by this version"):
        rerun.run_again(load_run(result.csv_path), [facts["cases"][0]["case_id"]], "cpu")


def test_a_run_of_another_device_or_commit_is_not_measured_again(tmp_path, monkeypatch):
    result = runner.run(load_config(yaml_text.write(tmp_path / "tiny.yaml")),
                        runner.RunOptions(out_dir=tmp_path / "run", device="cpu"))
    run = load_run(result.csv_path)
    case_ids = [run.records[0].case_id]
    for checkout, expected in (
            (Checkout("ba9876543210", False), "commit is 0123456789ab, and here ba9876543210 would be measured"),
            (Checkout("0123456789ab", True), "0123456789ab, with changes that aren't committed would be measured")):
        monkeypatch.setattr(rerun, "describe_checkout", lambda checkout=checkout: checkout)
        with pytest.raises(rerun.Refused, match=expected):
            rerun.run_again(run, case_ids, "cpu")
    monkeypatch.setattr(rerun, "describe_checkout", lambda: Checkout("", None))  # nothing tells
    on_gpu = replace(run, records=tuple(record.model_copy(update={"device_type": "cuda"}) for record in run.records))
    with pytest.raises(rerun.Refused, match="device_type is cuda, and here it would be measured again on cpu"):
        rerun.run_again(on_gpu, case_ids, "cpu")
    assert not (tmp_path / "run" / "again-1").exists()
    rerun.run_again(run, case_ids, "cpu")
    result.run_json_path.write_text("[]")
    with pytest.raises(rerun.Refused, match="config: can't be read by this version"):
        rerun.run_again(run, case_ids, "cpu")


def test_two_configs_run_in_turns(tmp_path):
    first, second = (load_config(yaml_text.write(tmp_path / f"{name}.yaml", name)) for name in ("one", "two"))
    a, b = run_two_configs((first, second), tmp_path / "out", "cpu")
    assert set(a.by_key) == set(b.by_key)
    assert {record.backend for record in a.records} == {"jfa", "fa4"}
    assert a.csv == b.csv
    assert all(len(a.blocks[key]) == len(b.blocks[key]) == 2 for key in a.by_key)


def test_two_commits_run_in_turns_each_in_its_own_checkout(tmp_path):
    config, said, head = yaml_text.write(tmp_path / "tiny.yaml"), [], describe_checkout().commit
    a, b = run_two_commits((head, head), config, tmp_path / "out", ["--device", "cpu"], 1, said.append)
    assert a.values("commit") == b.values("commit") == [head]
    assert a.values("dirty") == ["False"]  # a checkout of the commit, not this one with its edits
    assert [line.split(", into")[0] for line in said] == [f"{head}, run 1 of 1"] * 2
    assert compare(a, b).rows


def test_a_run_that_fails_at_a_commit_is_named(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text("name: tiny\n")
    with pytest.raises(UserError, match=r"failed with status 2 in a checkout of the commit: error: .*tiny.yaml"):
        run_two_commits(("HEAD", "HEAD"), config, tmp_path / "out", [], 1, print)


def test_a_csv_of_a_mixture_is_refused(tmp_path):
    config = yaml_text.write(tmp_path / "tiny.yaml")
    result = runner.run(load_config(config), runner.RunOptions(out_dir=tmp_path / "run", device="cpu"))
    lines = result.csv_path.read_text().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(",cold,", ",warm,")
    result.csv_path.write_text("".join(lines))
    assert "cache: rows of cold and warm in one file" in refused("gate", result.csv_path)
