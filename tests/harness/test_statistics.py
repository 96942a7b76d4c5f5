from __future__ import annotations

import numpy as np
import pytest

from harness.statistics import median_interval, ratio_interval, summarize


def test_summary_of_known_samples() -> None:
    summary = summarize([float(x) for x in range(1, 102)])
    assert summary.median.value == 51
    assert (summary.p20, summary.p80, summary.n) == (21, 81, 101)
    # The binomial 95 % interval of the median of 101 ordered samples is that of ranks 41 to 61.
    assert summary.median.low == pytest.approx(41, abs=3)
    assert summary.median.high == pytest.approx(61, abs=3)


def test_interval_covers_the_true_median_about_95_times_in_100() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        interval = median_interval(random.lognormal(0.0, 0.3, 40))
        hits += interval.low <= 1.0 <= interval.high
    assert 88 <= hits <= 100


def test_same_seed_same_interval() -> None:
    samples = np.random.default_rng(1).normal(5, 1, 30)
    assert median_interval(samples, seed=3) == median_interval(samples, seed=3)


def test_ratio_of_medians_with_its_interval() -> None:
    random = np.random.default_rng(2)
    ratio = ratio_interval(random.normal(2.0, 0.02, 60), random.normal(1.0, 0.01, 60))
    assert ratio.low < ratio.value < ratio.high
    assert ratio.value == pytest.approx(2.0, rel=0.01)
    assert ratio.low > 1.97
    assert ratio.high < 2.03


def test_constant_and_single_samples_have_no_width() -> None:
    interval = median_interval([3.0] * 30)
    assert (interval.value, interval.low, interval.high) == (3, 3, 3)
    assert median_interval([2.0]).high == 2
    assert ratio_interval([4.0, 4.0], [2.0, 2.0]).value == 2


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        summarize([])
