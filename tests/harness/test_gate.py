"""The gate's verdicts on made-up runs from real samples, and its refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
from gate_truth import NOISE_RUNS, Truth, only, write_run

from harness.records import Status
from harness.regression.gate import GateResult, Settings, gate
from harness.regression.measures import Measure
from harness.regression.noise import Noise, noise_rows
from harness.regression.runs import Refused, Run, load_run
from harness.regression.verdicts import Verdict

TRUTH = Truth.load()
SLOWED = ("self_u512", "fwd")


@pytest.fixture(scope="module")
def before() -> list[Run]:
    random = np.random.default_rng(11)
    return [TRUTH.run(f"aa-{index}", random) for index in range(NOISE_RUNS)]


@pytest.fixture(scope="module")
def noise(before) -> Noise:
    return Noise(noise_rows(before))


def run(slower=None, seed=5, name="now") -> Run:
    return TRUTH.run(name, np.random.default_rng(seed), slower)


def changed(run: Run, pick, **values) -> Run:
    """The records that ``pick`` takes with other values; without values they are taken away."""
    records = []
    for record in run.records:
        if not pick(record):
            records.append(record)
        elif values:
            records.append(record.model_copy(update=values))
    return Run(run.csv, tuple(records), run.blocks)


def is_row(case, direction, backend="jfa"):
    return lambda record: (record.case, record.direction, record.backend) == (case, direction, backend)


def verdicts(result: GateResult) -> dict:
    return {(row.record.case, row.record.direction, row.record.backend): row.verdict for row in result.rows}


def test_a_slower_row_is_slow_and_no_other_is(before, noise):
    result = gate([run({SLOWED: 1.10})], before[2], noise)
    assert result.failed
    assert [row.label for row in result.rows if row.verdict is Verdict.SLOW] == ["self_u512 fwd"]
    row = next(row for row in result.rows if row.verdict is Verdict.SLOW)
    assert "against FA4" in row.reason
    assert "threshold" in row.reason
    assert row.measures[Measure.SPEEDUP].ratio == pytest.approx(1 / 1.1, rel=0.03)


def test_a_faster_row_is_fast_and_passes(before, noise):
    result = gate([run({SLOWED: 1 / 1.15})], before[2], noise)
    assert verdicts(result)[(*SLOWED, "jfa")] is Verdict.FAST
    assert not result.failed


def test_only_rows_of_jfa_are_judged_for_speed(before, noise):
    assert {row.record.backend for row in gate([run()], before[2], noise).rows} == {"jfa"}


def test_both_slower_is_seen_against_the_floor_though_the_ratio_holds(before, noise):
    now = run()
    slow = Run(now.csv, now.records, {key: tuple(block * 1.35 for block in blocks)
                                      if key[0] == now.records[0].case_id else blocks
                                      for key, blocks in now.blocks.items()})
    result = gate([slow], before[2], noise)
    found = [row for row in result.rows if row.record.case_id == now.records[0].case_id]
    assert [row.verdict for row in found] == [Verdict.SLOW, Verdict.SLOW]
    assert all("against the floor" in row.reason and "both got slower" in row.reason for row in found)


def test_a_faster_fa4_is_pointed_at(before, noise):
    now = run()
    blocks = {key: tuple(block / 1.25 for block in found) if key[1] == "fa4" and key[2] == "bwd" else found
              for key, found in now.blocks.items()}
    result = gate([Run(now.csv, now.records, blocks)], before[2], noise)
    slow = [row for row in result.rows if row.verdict is Verdict.SLOW]
    assert {row.record.direction for row in slow} == {"bwd"}
    assert all("look at FA4's own speed" in row.reason for row in slow)


def test_another_version_of_fa4_leaves_the_floor_to_judge_by(before, noise):
    now = changed(run({SLOWED: 1.4}), lambda record: record.backend == "fa4", backend_version="5.0")
    result = gate([now], before[2], noise)
    row = next(row for row in result.rows if (row.record.case, row.record.direction) == SLOWED)
    assert row.verdict is Verdict.SLOW
    assert set(row.measures) == {Measure.FLOOR_SHARE}
    assert "FA4 is of another version" in row.reason
    assert any(note.startswith("backend_version: ") for note in result.notes)


def test_a_row_that_is_gone_is_missing(before, noise):
    result = gate([changed(run(), is_row("self_u512", "bwd"))], before[2], noise)
    assert verdicts(result)["self_u512", "bwd", "jfa"] is Verdict.MISSING
    assert result.failed


def test_fa4_gone_is_missing_too_and_leaves_the_floor(before, noise):
    result = gate([changed(run(), is_row("self_u512", "bwd", "fa4"))], before[2], noise)
    found = verdicts(result)
    assert found["self_u512", "bwd", "fa4"] is Verdict.MISSING
    ours = next(row for row in result.rows if (row.record.case, row.record.direction) == ("self_u512", "bwd"))
    assert "no time of FA4 beside it" in ours.reason


@pytest.mark.parametrize("status", [Status.WRONG, Status.HANG, Status.CRASH, Status.OOM, Status.UNSUPPORTED])
def test_a_row_that_fails_now_is_broken_and_says_why(before, noise, status):
    now = changed(run(), is_row("self_u512", "bwd"), status=status, message="dk: error 3e-2")
    row = next(row for row in gate([now], before[2], noise).rows if row.verdict is Verdict.BROKEN)
    assert row.label == "self_u512 bwd"
    assert row.reason == f"{status.value}: dk: error 3e-2; it was ok"


def test_a_row_that_failed_before_is_not_asked_for(before, noise):
    baseline = changed(before[2], is_row("self_u512", "bwd"), status=Status.OOM, message="too large")
    result = gate([run()], baseline, noise)
    assert ("self_u512", "bwd", "jfa") not in verdicts(result)
    assert any("had none in the baseline" in note for note in result.notes)


def test_a_renamed_case_is_matched_by_its_id_and_noted(before, noise):
    now = changed(run(), lambda record: record.case == "self_u512", case="renamed")
    result = gate([now], before[2], noise)
    assert not any(row.verdict is Verdict.MISSING for row in result.rows)
    assert any("self_u512 is called renamed" in note for note in result.notes)


def test_a_new_case_is_noted_and_not_judged(before, noise):
    baseline = changed(before[2], lambda record: record.case == "self_u512")
    result = gate([run()], baseline, noise)
    assert any("4 rows of the run are not in the baseline" in note and "self_u512" in note for note in result.notes)
    assert not any(row.record.case == "self_u512" for row in result.rows)


@pytest.mark.parametrize(("column", "value"), [("gpu", "NVIDIA B200"), ("cache", "warm"), ("device_type", "cpu")])
def test_refuses_another_gpu_cache_or_device(before, noise, column, value):
    with pytest.raises(Refused, match=f"{column} is {value}"):
        gate([changed(run(), lambda record: True, **{column: value})], before[2], noise)


def test_a_rerun_narrows_the_interval_and_the_threshold(before, noise):
    runs = [run({SLOWED: 1.04}, seed=3)]
    alone = gate(runs, before[2], noise)
    key = next(record.case_id for record in runs[0].records if record.case == "self_u512")
    again = [only(run({SLOWED: 1.04}, seed=seed, name=f"again-{seed}"), (key,)) for seed in range(30, 34)]
    more = gate([*runs, *again], before[2], noise)
    widths = [next(row for row in result.rows if (row.record.case, row.record.direction) == SLOWED)
              .measures[Measure.SPEEDUP].change for result in (alone, more)]
    assert widths[1].half_width < widths[0].half_width
    assert widths[1].threshold <= widths[0].threshold


def test_a_row_that_fails_in_a_rerun_is_broken(before, noise):
    again = only(run(seed=30, name="again"), (before[0].records[0].case_id,))
    again = changed(again, is_row("self_u256", "bwd"), status=Status.HANG, message="no answer")
    found = verdicts(gate([run(), again], before[2], noise))
    assert found["self_u256", "bwd", "jfa"] is Verdict.BROKEN
    assert list(found.values()).count(Verdict.BROKEN) == 1


def test_a_noise_that_hides_what_matters_is_called_that(before, noise):
    wide = Noise([row.model_copy(update={"speedup_sd": 0.05}) for row in noise.rows.values()])
    row = gate([run()], before[2], wide).rows[0]
    assert row.verdict is Verdict.UNDECIDED
    assert "noise hides changes that matter (over 5%)" in row.reason


def test_without_a_noise_file_the_scatter_is_assumed_and_that_is_said(before):
    result = gate([run({SLOWED: 1.25})], before[2], Noise())
    assert verdicts(result)[(*SLOWED, "jfa")] is Verdict.SLOW
    assert any("assumed, not measured" in note for note in result.notes)


def test_noise_of_other_runs_gives_the_scatter_but_not_the_centre(before, noise):
    baseline = run(seed=77, name="another")
    result = gate([run()], baseline, noise)
    assert any("not of the baseline's own A/A runs" in note for note in result.notes)
    with_centre = gate([run()], before[2], noise)
    key = with_centre.rows[0].record.key
    errors = [next(row for row in each.rows if row.record.key == key).measures[Measure.SPEEDUP].change.error
              for each in (result, with_centre)]
    assert errors[0] > errors[1]


def test_a_larger_tolerance_lets_a_slower_row_pass(before, noise):
    now = run({SLOWED: 1.06})
    result = gate([now], before[2], noise, Settings(tolerance=0.12))
    assert verdicts(result)[(*SLOWED, "jfa")] is Verdict.SAME


def test_a_made_up_run_survives_being_written_and_read(tmp_path: Path):
    made = run({SLOWED: 1.1})
    loaded = load_run(write_run(made, tmp_path / "gate.csv"))
    assert loaded.run_id == "now"
    assert set(loaded.blocks) == set(made.blocks)
    key = made.records[0].key
    np.testing.assert_allclose(np.concatenate(loaded.blocks[key]), np.concatenate(made.blocks[key]), rtol=1e-5)
    assert math.isclose(loaded.by_key[key].latency_ms or 0, float(np.median(np.concatenate(made.blocks[key]))),
                        rel_tol=1e-5)
