"""Summaries of samples: medians, percentiles, and bootstrap intervals of a median and of a ratio of medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile-bootstrap 95 % interval, ``low <= value <= high``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """What a record says of its samples, in the samples' unit."""

    median: Interval
    p20: float
    p80: float
    n: int


def summarize(samples: Sequence[float], seed: int = 0) -> Summary:
    """Median with its interval, 20th and 80th percentile. Raises `ValueError` without samples."""
    if not len(samples):
        raise ValueError("samples: at least one is needed")
    p20, p80 = np.percentile(samples, [20, 80])
    return Summary(median_interval(samples, seed), float(p20), float(p80), len(samples))


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """Median of the samples; one sample alone is its own interval."""
    return _bootstrap((np.asarray(samples, dtype=np.float64),), np.median, seed)


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], seed: int = 0) -> Interval:
    """Ratio of the two medians, both resampled.

    For latencies that were measured in interleaved blocks: ``ratio_interval(rival, ours)`` is our speed-up.
    """
    samples = (np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64))
    return _bootstrap(samples, _ratio_of_medians, seed)


def _ratio_of_medians(numerator: np.ndarray, denominator: np.ndarray, axis: int = -1) -> Any:
    return np.median(numerator, axis=axis) / np.median(denominator, axis=axis)


def _bootstrap(samples: tuple[np.ndarray, ...], statistic: Any, seed: int) -> Interval:
    value = float(statistic(*samples, axis=-1))
    if min(len(sample) for sample in samples) < 2 or all(np.ptp(sample) == 0 for sample in samples):
        return Interval(value, value, value)
    result = stats.bootstrap(samples, statistic, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, paired=False,
                             vectorized=True, method="percentile", rng=np.random.default_rng(seed))
    low, high = result.confidence_interval
    return Interval(value, min(float(low), value), max(float(high), value))
