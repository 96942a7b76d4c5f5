"""Draws docs/images/gate.png: how the gate decides, with the verdicts that `harness.regression.verdicts` gives.

    python docs/draw_gate.py [OUT.png]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from matplotlib.figure import Figure

from harness.regression.verdicts import Change, Verdict, decide

PICTURE = Path(__file__).resolve().parent / "images" / "gate.png"
COLOURS = {Verdict.SLOW: "#D55E00", Verdict.FAST: "#009E73", Verdict.SAME: "#0072B2", Verdict.UNDECIDED: "#7F7F7F"}
TOLERANCE = 0.03
DOF = 12
# change in per cent, its standard error, what it shows
ROWS = (
    (-7.0, 0.6, "beyond the threshold, and significant over all rows"),
    (-0.4, 0.6, "the whole interval within the threshold"),
    (-2.4, 0.6, "the interval crosses the threshold: measure again"),
    (-3.3, 0.9, "beyond the tolerance, but the noise floor is wider"),
    (0.5, 1.5, "the noise hides changes of 5 %: measure again"),
    (6.5, 0.6, "beyond it on the other side: passes, and is named"),
)


def draw(out: Path) -> None:
    """Write the picture."""
    changes = [Change(math.log1p(percent / 100), error / 100, DOF, TOLERANCE) for percent, error, _ in ROWS]
    figure = Figure(figsize=(11, 4.3), layout="constrained")
    axis = figure.subplots()
    for index, (change, decision, (_, _, text)) in enumerate(zip(changes, decide(changes), ROWS, strict=True)):
        colour = COLOURS[decision.verdict]
        low, high = ((ratio - 1) * 100 for ratio in change.interval)
        lower, upper = ((math.exp(sign * change.threshold) - 1) * 100 for sign in (-1, 1))
        axis.barh(index, upper - lower, left=lower, height=0.72, color="#e9e9e6", zorder=1)
        axis.vlines([lower, upper], index - 0.36, index + 0.36, color="#999999", linewidth=1.2, zorder=2)
        axis.hlines(index, low, high, color=colour, linewidth=2.5, zorder=3)
        axis.plot([(math.exp(change.log) - 1) * 100], [index], "o", color=colour, markersize=7, zorder=4)
        axis.text(11.0, index, decision.verdict.value, color=colour, fontweight="bold", va="center", fontsize=10)
        axis.text(14.4, index, text, va="center", fontsize=9)
    axis.axvline(0, color="#222222", linewidth=1)
    axis.set_xlim(-10, 27)
    axis.set_xticks(range(-10, 11, 2))
    axis.set_ylim(len(ROWS) - 0.4, -0.6)
    axis.set_yticks([])
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_bounds(-10, 10)
    axis.set_xlabel("change of the ratio JFA / FA4 against the baseline, per cent (left is slower)", x=0.27)
    axis.set_title("A point with its 95 % interval; grey: the row's threshold, the larger of the tolerance (3 %) and "
                   "its noise floor.  Made-up rows.", fontsize=10, loc="left")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
