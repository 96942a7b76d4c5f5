import numpy as np
import pytest
from sample_records import gem_like, smoke_like
from scipy.stats import gmean

from harness.headline import mean_speedups
from harness.records import to_frame


@pytest.fixture(scope="module")
def records():
    return to_frame(gem_like())


def test_one_mean_for_each_backend_scope_and_direction_but_the_rivals(records):
    keys = [(each.backend, each.scope, each.direction) for each in mean_speedups(records)]
    assert len(keys) == len(set(keys)) == 6 * 2 * 2
    assert "fa4" not in {backend for backend, _, _ in keys}


def test_mean_and_extremes_are_those_of_the_rows(records):
    found = next(each for each in mean_speedups(records) if each.backend == "padded")
    rows = records[(records["backend"] == "padded") & (records["scope"] == "kernel") & (records["direction"] == "fwd")]
    ratios = rows.set_index("case")["speedup_vs_fa4"].dropna()
    assert (found.scope, found.direction, found.cases) == ("kernel", "fwd", len(ratios))
    assert len(ratios) < len(rows), "a row without a time doesn't count"
    assert found.mean == pytest.approx(gmean(ratios))
    assert (found.slowest, found.slowest_case) == (ratios.min(), ratios.idxmin())
    assert (found.fastest, found.fastest_case) == (ratios.max(), ratios.idxmax())


def test_the_interval_covers_what_resampled_cases_would_give(records):
    """Each case's interval says how its ratio scatters; the mean's must be that of means of such scatters."""
    found = next(each for each in mean_speedups(records) if each.backend == "jfa")
    rows = records[(records["backend"] == "jfa") & (records["scope"] == "kernel") & (records["direction"] == "fwd")]
    logs = np.log(rows["speedup_vs_fa4"].to_numpy())
    errors = np.log(rows["speedup_vs_fa4_ci_high"] / rows["speedup_vs_fa4_ci_low"]).to_numpy() / (2 * 1.96)
    again = np.random.default_rng(0).normal(logs, errors, (20_000, len(logs))).mean(axis=1)
    low, high = np.exp(np.percentile(again, [2.5, 97.5]))
    assert found.low == pytest.approx(low, rel=2e-3)
    assert found.high == pytest.approx(high, rel=2e-3)
    assert found.high / found.low < rows["speedup_vs_fa4_ci_high"].iloc[0] / rows["speedup_vs_fa4_ci_low"].iloc[0]


def test_a_run_without_fa4_has_no_headline():
    assert mean_speedups(to_frame(smoke_like())) == []
