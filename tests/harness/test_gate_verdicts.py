"""The decision by itself, the correction, estimates and change points, on numbers that are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.regression.change_points import change_points
from harness.regression.estimates import RESAMPLES, difference, exactly, log_latency, log_ratio, mean
from harness.regression.verdicts import Change, Verdict, decide, holm

MANY = 1e6  # degrees of freedom: the normal distribution


def change(percent: float, error_percent: float, tolerance: float = 0.03, dof: float = MANY) -> Change:
    return Change(math.log1p(percent / 100), error_percent / 100, dof, tolerance)


@pytest.mark.parametrize(("percent", "error", "verdict"), [
    (0.0, 0.5, Verdict.SAME), (1.5, 0.5, Verdict.SAME), (-1.5, 0.5, Verdict.SAME),
    (-6.0, 0.5, Verdict.SLOW), (6.0, 0.5, Verdict.FAST), (-3.5, 0.3, Verdict.SLOW),
    (-2.5, 0.5, Verdict.UNDECIDED),  # the interval crosses the threshold
    (0.0, 1.5, Verdict.UNDECIDED),  # noise hides a change of 5 %
    (-40.0, 3.0, Verdict.SLOW), (-6.0, 3.0, Verdict.UNDECIDED)])
def test_verdicts_of_one_row(percent, error, verdict):
    assert decide([change(percent, error)])[0].verdict is verdict


def test_the_threshold_is_the_larger_of_tolerance_and_noise_floor():
    assert change(0, 0.5).threshold == pytest.approx(-math.log(0.97))
    assert change(0, 2.0).threshold == pytest.approx(2 * 1.96 * 0.02, rel=1e-3) == change(0, 2.0).noise_floor


def test_few_degrees_of_freedom_widen_the_interval():
    assert change(0, 1, dof=4).half_width == pytest.approx(0.02776, rel=1e-3)


def test_many_rows_raise_the_bar():
    row = change(-4.4, 1.1)
    assert decide([row])[0].verdict is Verdict.SLOW
    assert decide([row, *[change(0, 1.1)] * 2999])[0].verdict is Verdict.UNDECIDED


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_keeps_the_order_and_never_lowers(p):
    corrected = holm(p)
    assert all(0 <= before <= after <= 1 for before, after in zip(p, corrected, strict=True))
    assert max(corrected) <= max(1.0, len(p) * max(p))
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(np.asarray(corrected)[order]) >= 0)


def test_holm_keeps_the_chance_of_any_false_alarm():
    random = np.random.default_rng(0)
    wrong = sum(min(holm(random.uniform(size=20))) <= 0.05 for _ in range(4000))
    assert wrong / 4000 == pytest.approx(0.05, abs=0.012)


def test_a_row_without_scatter_is_judged_by_its_change_alone():
    assert decide([Change(0.0, 0.0, MANY, 0.03)])[0].verdict is Verdict.SAME
    assert decide([Change(-0.1, 0.0, MANY, 0.03)])[0].verdict is Verdict.SLOW


def blocks(random, level, n_blocks=8, n=25, block_sd=0.0, sd=0.005):
    return [level * np.exp(random.normal(0, block_sd) + random.normal(0, sd, n)) for _ in range(n_blocks)]


def test_estimates_are_of_the_medians():
    random = np.random.default_rng(1)
    ratio = log_ratio(blocks(random, 3.0), blocks(random, 2.0))
    assert math.exp(ratio.value) == pytest.approx(1.5, rel=0.005)
    assert ratio.replicates.shape == (RESAMPLES,)
    assert np.mean(ratio.replicates) == pytest.approx(ratio.value, abs=3 * ratio.error)


def test_what_drifts_between_blocks_counts_unless_it_meets_both_sides():
    random = np.random.default_rng(2)
    drift = np.exp(random.normal(0, 0.04, 8))
    ours = [block * factor for block, factor in zip(blocks(random, 2.0), drift, strict=True)]
    theirs = [block * factor for block, factor in zip(blocks(random, 3.0), drift, strict=True)]
    assert log_latency(ours).error == pytest.approx(0.04 / math.sqrt(8), rel=0.6)
    assert log_ratio(theirs, ours).error < 0.002


def test_the_bootstrap_error_is_that_of_repeats():
    random = np.random.default_rng(3)
    repeats = [log_latency(blocks(random, 1.0, block_sd=0.02)) for _ in range(60)]
    scatter = np.std([each.value for each in repeats])
    assert np.mean([each.error for each in repeats]) == pytest.approx(scatter, rel=0.3)


def test_sides_with_unequal_blocks_are_resampled_apart():
    random = np.random.default_rng(4)
    ratio = log_ratio(blocks(random, 3.0, n_blocks=6), blocks(random, 2.0, n_blocks=4))
    assert math.exp(ratio.value) == pytest.approx(1.5, rel=0.01)


def test_differences_and_means_of_estimates():
    random = np.random.default_rng(5)
    a, b = log_latency(blocks(random, 2.0), seed=1), log_latency(blocks(random, 3.0), seed=2)
    assert difference(a, b).value == pytest.approx(a.value - b.value)
    assert difference(a, b).error == pytest.approx(math.hypot(a.error, b.error), rel=0.2)
    assert mean([a, b]).value == pytest.approx((a.value + b.value) / 2)
    assert mean([a, b]).error == pytest.approx(math.hypot(a.error, b.error) / 2, rel=0.2)
    assert exactly(1.5).error == 0


@pytest.mark.parametrize(("levels", "expected"), [
    ([1.0] * 20, []), ([1.0] * 10 + [0.9] * 10, [10]), ([1.0] * 7 + [1.1] * 7 + [0.95] * 7, [7, 14]),
    ([1.0] * 10 + [0.5] + [1.0] * 10, []),  # one odd run
    ([1.0, 1.0, 1.0, 0.9, 0.9], [])])  # too few points
def test_change_points(levels, expected):
    random = np.random.default_rng(6)
    values = np.log(levels) + random.normal(0, 0.006, len(levels))
    assert change_points(values) == expected


def test_change_points_of_noise_are_rare():
    random = np.random.default_rng(7)
    found = sum(bool(change_points(random.normal(0, 0.01, 30))) for _ in range(200))
    assert found <= 6
