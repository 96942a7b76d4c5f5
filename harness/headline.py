"""The headline of a run: geometric means of the speed-up over FA4 over its cases, each with an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

SCOPES = ("kernel", "operation")
DIRECTIONS = ("fwd", "bwd")
_Z95 = 1.96  # standard errors to either side of a 95 % interval


@dataclass(frozen=True)
class MeanSpeedup:
    """Geometric mean over the ``cases`` for which a backend and FA4 both have times; ``low <= mean <= high``.

    ``low`` and ``high`` bound what repeating the samples of this run would give (95 %), on these very cases. They say
    nothing of other cases, other cards or other days. ``slowest`` and ``fastest`` are the extreme cases' speed-ups.
    """

    backend: str
    scope: str
    direction: str
    cases: int
    mean: float
    low: float
    high: float
    slowest: float
    slowest_case: str
    fastest: float
    fastest_case: str


def mean_speedups(records: pd.DataFrame) -> list[MeanSpeedup]:
    """One entry for each (backend, scope, direction) with a speed-up; backends in their order, FA4 itself left out."""
    timed = records[(records["speedup_vs_fa4"] > 0) & (records["backend"] != "fa4")]
    found = []
    for backend in dict.fromkeys(timed["backend"]):
        for scope in SCOPES:
            for direction in DIRECTIONS:
                rows = timed[(timed["backend"] == backend) & (timed["scope"] == scope)
                             & (timed["direction"] == direction)]
                if len(rows):
                    found.append(_mean(str(backend), scope, direction, rows))
    return found


def _mean(backend: str, scope: str, direction: str, rows: pd.DataFrame) -> MeanSpeedup:
    """The cases' intervals are independent, so their widths add up in squares (in logarithms)."""
    ratios = rows["speedup_vs_fa4"].to_numpy(dtype=float)
    widths = np.log((rows["speedup_vs_fa4_ci_high"] / rows["speedup_vs_fa4_ci_low"]).to_numpy(dtype=float))
    centre = float(np.log(ratios).mean())
    error = float(np.sqrt(np.square(widths / (2 * _Z95)).sum())) / len(rows)
    slow, fast = rows.iloc[int(ratios.argmin())], rows.iloc[int(ratios.argmax())]
    return MeanSpeedup(
        backend, scope, direction, len(rows), float(np.exp(centre)), float(np.exp(centre - _Z95 * error)),
        float(np.exp(centre + _Z95 * error)), float(slow["speedup_vs_fa4"]), str(slow["case"]),
        float(fast["speedup_vs_fa4"]), str(fast["case"]))
