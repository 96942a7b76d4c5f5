"""Where the level of a short series steps: least squares with a penalty on every step, solved exactly.

Own code of a screen rather than `ruptures`, which is compiled and would be the harness's largest dependency for it: a
series here has tens of points.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import median_filter

MIN_POINTS = 3  # of a level
PENALTY = 6.0  # of a step, in units of ln(n) times the noise's variance; BIC's is 2 for a mean and a place
SMALLEST_NOISE = 0.01  # of logarithms: a series of few points may look steadier than it is


def change_points(values: np.ndarray) -> list[int]:
    """Indices at which a new level begins, in order. ``values`` are logarithms, ``[n]``, in the order of time.

    The noise is taken from successive differences (their median absolute value), which steps hardly touch. A single odd
    run gives way to its neighbours' median first.
    """
    n = len(values)
    if n < 2 * MIN_POINTS:
        return []
    noise = max(float(np.median(np.abs(np.diff(values)))) / (0.6745 * np.sqrt(2)), SMALLEST_NOISE)
    values = median_filter(values, size=3, mode="nearest")
    sums, squares = (np.concatenate([[0.0], np.cumsum(values**power)]) for power in (1, 2))

    def cost(start: int, end: int) -> float:
        return (squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)) / noise**2

    best = np.full(n + 1, np.inf)
    best[0] = -PENALTY * np.log(n)
    came_from = np.zeros(n + 1, dtype=int)
    for end in range(MIN_POINTS, n + 1):
        starts = [start for start in (0, *range(MIN_POINTS, end - MIN_POINTS + 1)) if np.isfinite(best[start])]
        totals = [best[start] + cost(start, end) + PENALTY * np.log(n) for start in starts]
        chosen = int(np.argmin(totals))
        best[end], came_from[end] = totals[chosen], starts[chosen]
    found = []
    end = n
    while came_from[end]:
        end = int(came_from[end])
        found.append(end)
    return found[::-1]
