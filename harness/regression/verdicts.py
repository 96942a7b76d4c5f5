"""From the changes of rows to their verdicts. docs/gate.md draws the decision.

A change is a difference of logarithms, positive for faster. Its interval is two-sided, 95 %. Its threshold is the
larger of the user's tolerance and of the row's noise floor: twice the half-width of the interval, so that a row without
any change lies wholly within the threshold 19 times in 20.

    SLOW, FAST    the change is beyond the threshold, and its p-value, corrected by Holm over all rows, at most alpha
    SAME          the whole interval lies within the threshold, and that is no wider than RESOLUTION
    UNDECIDED     neither: the row must be measured again
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
ALPHA = 0.02  # of the corrected p-values; with the threshold together, far fewer gates than that are wrong
RESOLUTION = -math.log1p(-0.05)  # a row of which a change of 5 % can't be told isn't SAME


class Verdict(str, Enum):
    """What the gate says of a row."""

    FAST = "FAST"
    SLOW = "SLOW"
    SAME = "SAME"
    UNDECIDED = "UNDECIDED"
    MISSING = "MISSING"
    BROKEN = "BROKEN"

    @property
    def fails(self) -> bool:
        """Whether one such row fails the gate."""
        return self in (Verdict.SLOW, Verdict.MISSING, Verdict.BROKEN)


@dataclass(frozen=True)
class Change:
    """How much faster a row became: ``log`` with standard ``error`` of ``dof`` degrees of freedom.

    ``tolerance`` is what the user lets pass, a share such as 0.03.
    """

    log: float
    error: float
    dof: float
    tolerance: float

    @property
    def half_width(self) -> float:
        """Of the interval, in logarithms."""
        return float(stdtrit(self.dof, (1 + CONFIDENCE) / 2)) * self.error

    @property
    def noise_floor(self) -> float:
        """Changes below aren't told from noise, in logarithms."""
        return 2 * self.half_width

    @property
    def tolerated(self) -> float:
        """The tolerance, in logarithms."""
        return -math.log1p(-self.tolerance)

    @property
    def threshold(self) -> float:
        """Changes below pass, in logarithms."""
        return max(self.tolerated, self.noise_floor)

    @property
    def hides_too_much(self) -> bool:
        """Whether the threshold is wider than both `RESOLUTION` and the tolerance."""
        return self.threshold > max(RESOLUTION, self.tolerated)

    @property
    def p_value(self) -> float:
        """Two-sided, of no change at all."""
        return float(2 * stdtr(self.dof, -abs(self.log) / self.error)) if self.error else float(self.log == 0)

    @property
    def interval(self) -> tuple[float, float]:
        """As ratios of speed, now over before."""
        return math.exp(self.log - self.half_width), math.exp(self.log + self.half_width)


@dataclass(frozen=True)
class Decision:
    """A verdict with the p-value that counts, corrected for all rows."""

    verdict: Verdict
    p_holm: float


def decide(changes: Sequence[Change], alpha: float = ALPHA) -> list[Decision]:
    """Verdicts of all rows of a gate at once."""
    corrected = holm([change.p_value for change in changes])
    return [Decision(_verdict(change, p, alpha), p) for change, p in zip(changes, corrected, strict=True)]


def _verdict(change: Change, p: float, alpha: float) -> Verdict:
    if abs(change.log) > change.threshold and p <= alpha:
        return Verdict.FAST if change.log > 0 else Verdict.SLOW
    within = abs(change.log) + change.half_width <= change.threshold and not change.hides_too_much
    return Verdict.SAME if within else Verdict.UNDECIDED


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: each at most ``alpha`` with a chance of at most ``alpha`` for any false one.

    (SciPy has none, and statsmodels would be a large dependency for it.)
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected.tolist()
