"""`harness compare` on made-up runs, and what it refuses."""

import subprocess

import numpy as np
import pytest
from gate_truth import Truth
from test_cli import harness
from test_gate import changed, is_row
from test_gate_cli import made, refused
from tiny_cases import tiny_config

from harness.environment import ROOT
from harness.records import Status
from harness.regression.comparison import compare
from harness.regression.interleaved import is_commit, joined, merge, side, worktrees
from harness.regression.measures import Measure
from harness.regression.runs import Refused, Run

TRUTH = Truth.load()
SLOWED = ("self_u512", "bwd")


def run(name="a", seed=1, slower=None) -> Run:
    return TRUTH.run(name, np.random.default_rng(seed), slower)


def ratio(comparison, case, direction, backend="jfa"):
    return next(row.ratio for row in comparison.rows
                if (row.a.case, row.a.direction, row.a.backend) == (case, direction, backend))


def test_ratios_are_of_bs_speed_over_as():
    found = compare(run(), run("b", 2, {SLOWED: 1.25}), by=Measure.SPEEDUP)
    slowed = ratio(found, *SLOWED)
    assert slowed.low < 0.8 < slowed.high or slowed.value == pytest.approx(0.8, rel=0.03)
    assert len(found.rows) == 40
    assert set(found.means) == {"jfa fwd", "jfa bwd", "fa4 fwd", "fa4 bwd"}


def test_the_mean_is_geometric_over_the_rows():
    found = compare(run(), run("b", 2), backend="jfa")
    rows = [row.ratio.value for row in found.rows if row.a.direction == "fwd"]
    mean, count = found.means["jfa fwd"]
    assert count == 10
    assert mean.value == pytest.approx(float(np.exp(np.mean(np.log(rows)))))
    assert mean.low <= mean.value <= mean.high
    widest = max(row.ratio.high - row.ratio.low for row in found.rows)
    assert mean.high - mean.low < widest


def test_by_floor_share_and_latency_agree_on_one_card():
    a, b = run(), run("b", 2, {SLOWED: 1.25})
    values = [ratio(compare(a, b, by=by), *SLOWED).value for by in (Measure.LATENCY, Measure.FLOOR_SHARE)]
    assert values[0] == pytest.approx(values[1])


def test_two_runs_say_that_drift_is_left_out_and_ratios_do_not():
    notes = [" ".join(compare(run(), run("b", 2), by=by).notes) for by in (Measure.LATENCY, Measure.SPEEDUP)]
    assert "measured at two times" in notes[0]
    assert "measured at two times" not in notes[1]


def test_what_differs_is_listed():
    b = changed(run("b", 2), lambda record: record.backend == "fa4", backend_version="5.0")
    b = changed(b, lambda record: True, driver="999.9")
    found = {what: (before, now) for what, before, now in compare(run(), b).differences}
    assert found["driver"][1] == "999.9"
    assert found["version of fa4"][1] == "5.0"
    assert "gpu" not in found


def test_cases_of_one_side_only_and_rows_without_a_time_are_named():
    b = changed(run("b", 2), lambda record: record.case == "self_u512")
    b = changed(b, is_row("self_u256", "fwd"), status=Status.WRONG, message="x")
    notes = compare(run(), b).notes
    assert "only in A: self_u512" in notes
    assert any(note.startswith("1 rows have no time") for note in notes)


@pytest.mark.parametrize(("column", "value"), [("gpu", "NVIDIA B200"), ("cache", "warm"), ("device_type", "cpu")])
def test_refuses_what_isnt_comparable_unless_forced(column, value):
    b = changed(run("b", 2), lambda record: True, **{column: value})
    with pytest.raises(Refused, match=f"{column} differs"):
        compare(run(), b)
    assert any(note.startswith(f"forced: {column} differs") for note in compare(run(), b, force=True).notes)


def test_refuses_runs_without_a_common_row_and_says_why():
    a = changed(run(), lambda record: record.case != "self_u256")
    b = changed(run("b", 2), lambda record: record.case != "self_u512")
    with pytest.raises(Refused, match="no case in common"):
        compare(a, b, force=True)
    a = changed(run(), lambda record: record.backend == "fa4")
    b = changed(run("b", 2), lambda record: record.backend == "jfa")
    with pytest.raises(Refused, match="backends, directions or scopes differ: jfa against fa4"):
        compare(a, b)
    with pytest.raises(Refused, match="no backend 'cudnn'; it has jfa, fa4"):
        compare(run(), run("b", 2), backend="cudnn")


def test_the_command_prints_rows_means_differences_and_draws(tmp_path):
    a, b = made(tmp_path, "a", 1), made(tmp_path, "b", 2, {SLOWED: 1.25}, driver="999.9")
    said = harness("compare", a, b, "--by", "speedup", "--backend", "jfa", "--out", tmp_path / "out", "--markdown",
                   tmp_path / "c.md")
    assert "geometric mean, jfa bwd (10)" in said
    driver = run().records[0].driver
    assert f"driver: {driver} against 999.9" in said
    assert (tmp_path / "out" / "forest.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "forest.svg").exists()
    text = (tmp_path / "c.md").read_text()
    assert "| self_u512 bwd jfa |" in text
    assert f"- driver: {driver} against 999.9" in text


def test_two_backends_of_one_run(tmp_path):
    csv = made(tmp_path, "a", 1)
    said = harness("compare", csv, csv, "--backend", "fa4", "--against", "jfa", "--out", tmp_path / "out")
    assert "fa4 against jfa: above 1, jfa is faster" in said
    assert "self_u256 fwd fa4/jfa" in said
    assert "measured at two times" not in said


def test_refusals_and_bad_usage_of_the_command(tmp_path):
    a = made(tmp_path, "a", 1)
    assert "gpu differs" in refused("compare", a, made(tmp_path, "b", 2, gpu="NVIDIA B200"))
    assert "compare takes two records CSVs" in harness("compare", a, "nowhere", code=2)
    assert "--against: needs --backend" in harness("compare", a, a, "--against", "fa4", code=2)


def configs(**second):
    backends = [{"backend": "sdpa_loop", "name": "x"}, "padded"]
    return tiny_config(backends, ["one", "two"]), tiny_config(
        [{"backend": "padded", "name": "x"}, "jfa"], ["one"], **second)


def test_two_configs_become_one_run_over_what_they_share():
    merged, cases = merge(configs())
    assert [(backend.name, backend.backend) for backend in merged.backends] == [("a.x", "sdpa_loop"), ("b.x", "padded")]
    assert [case.name for case in cases] == ["one"]


def test_a_merged_run_is_taken_apart_again():
    whole = run()
    whole = Run(whole.csv, tuple(record.model_copy(update={"backend": f"{name}.jfa"})
                                 for record in whole.records if record.backend == "jfa" for name in "ab"),
                {(key[0], f"{name}.jfa", *key[2:]): blocks for key, blocks in whole.blocks.items()
                 if key[1] == "jfa" for name in "ab"})
    a, b = side(whole, "a"), side(whole, "b")
    assert set(a.by_key) == set(b.by_key) == set(a.blocks)
    assert {key[1] for key in a.by_key} == {"jfa"}
    assert all(row.ratio.value == pytest.approx(1) for row in compare(a, b, interleaved=True).rows)


def test_configs_that_time_differently_or_share_nothing_are_refused():
    other = configs(timing={"warmup": 2, "min_samples": 30})
    with pytest.raises(Refused, match="timing differs"):
        merge(other)
    assert merge(other, force=True)[0].timing == other[0].timing
    with pytest.raises(Refused, match="no case, direction or scope in common"):
        merge((tiny_config(["jfa"], ["one"], directions=["fwd"]), tiny_config(["jfa"], ["one"], directions=["bwd"])))


def test_runs_of_one_commit_are_joined_and_a_failure_in_any_counts():
    first, second = run(), changed(run("b", 2), is_row("self_u256", "fwd"), status=Status.HANG, message="x")
    both = joined([first, second])
    key = first.records[0].key
    assert len(both.blocks[key]) == 16
    failed = next(record for record in both.records if is_row("self_u256", "fwd")(record))
    assert failed.status is Status.HANG


def test_worktrees_are_of_the_commits_and_gone_afterwards(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
                       check=True, capture_output=True)
    git("init", "-b", "main")
    for text in ("1", "2"):
        (tmp_path / "file").write_text(text)
        git("add", "file")
        git("commit", "-m", text)
    assert is_commit("HEAD~1", tmp_path)
    assert not is_commit("nowhere", tmp_path)
    with worktrees(["HEAD~1", "HEAD"], tmp_path) as trees:
        assert [(tree / "file").read_text() for tree in trees] == ["1", "2"]
    assert not any(tree.exists() for tree in trees)
    listed = subprocess.run(["git", "-C", str(tmp_path), "worktree", "list"], capture_output=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_a_commit_that_isnt_there_is_named():
    assert not is_commit("0000000000000000000000000000000000000000", ROOT)
