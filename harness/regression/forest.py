"""The forest plot of a comparison: a row's ratio with its interval on a line each, geometric means below."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from harness import plot_parts as parts
from harness.errors import UserError
from harness.plots import RATIO_TICKS
from harness.regression.comparison import Comparison
from harness.statistics import Interval

FASTER, SLOWER, OPEN = parts.OURS, parts.FA4, parts.GREY
ROW_IN = 0.24
NARROW = 1.6  # span of an axis up to which evenly spaced ticks suit it


def draw_forest(comparison: Comparison, out: Path) -> None:
    """Write the plot to ``out``, a PNG, SVG or whatever Matplotlib writes by suffix. Raises `UserError` if it can't."""
    with matplotlib.rc_context(rc=parts.RC):
        figure = forest_figure(comparison)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(out, dpi=150, metadata={"Date": None} if out.suffix == ".svg" else None)
        except (OSError, ValueError) as error:
            raise UserError(f"{out}: can't be written: {error}") from error


def forest_figure(comparison: Comparison) -> Figure:
    """The plot as a figure; the caller sets `plot_parts.RC`."""
    a, b = comparison.names
    labels = [row.label for row in comparison.rows]
    labels += [f"mean {name} ({n})" for name, (_, n) in comparison.means.items()]
    ratios = [row.ratio for row in comparison.rows] + [ratio for ratio, _ in comparison.means.values()]
    n_rows = len(comparison.rows)
    left, high = parts.label_width(labels), ROW_IN * len(labels)
    width, total = left + 5.0 + 1.7, high + 1.45
    figure = Figure(figsize=(width, total))
    axes = figure.add_axes((left / width, 0.75 / total, 5.0 / width, high / total))
    for index in range(0, len(labels), 2):
        axes.axhspan(index - 0.5, index + 0.5, color=parts.BAND, linewidth=0, zorder=0)
    for index, ratio in enumerate(ratios):
        _draw_one(axes, index, ratio, is_mean=index >= n_rows)
    axes.axvline(1.0, color="#222222", linewidth=1.1, zorder=1)
    axes.axhline(n_rows - 0.5, color=parts.GREY, linewidth=0.8)
    _scale(axes, ratios)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(f"speed of {b} over {a} (log scale, right of 1 is {b} faster), 95 % intervals", fontsize=8.5,
                    color=parts.GREY)
    what = {"latency": "latency", "speedup": "speed-up over FA4", "floor_share": "share of the floor"}
    how = "in turns, one run" if comparison.interleaved else "two runs"
    record = comparison.rows[0].a
    figure.text(0.15 / width, 1 - 0.12 / total, f"{a} against {b}, by {what[comparison.by.value]}", fontsize=11.5,
                fontweight="bold", va="top")
    figure.text(0.15 / width, 1 - 0.4 / total, f"{how}, measured on {record.gpu or 'an unnamed device'}", va="top",
                fontsize=8, color=parts.GREY)
    return figure


def _draw_one(axes: Axes, index: int, ratio: Interval, is_mean: bool) -> None:
    colour = FASTER if ratio.low > 1 else SLOWER if ratio.high < 1 else OPEN
    axes.hlines(index, ratio.low, ratio.high, color=colour, linewidth=2.2 if is_mean else 1.4, zorder=3)
    marker, size = ("D", 6.0) if is_mean else ("s", 4.5)
    axes.plot([ratio.value], [index], linestyle="none", marker=marker, markersize=size, markerfacecolor=colour,
              markeredgecolor="white", markeredgewidth=0.5, zorder=4)
    axes.annotate(f"{ratio.value:.3f}  ({ratio.low:.3f}-{ratio.high:.3f})", (1.0, index), xytext=(6, 0),
                  xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=7.5, color=colour,
                  va="center", fontweight="bold" if is_mean else "normal", annotation_clip=False)


def _scale(axes: Axes, ratios: list[Interval]) -> None:
    low = min(0.98, min(ratio.low for ratio in ratios)) / 1.01
    high = max(1.02, max(ratio.high for ratio in ratios)) * 1.01
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    if high / low < NARROW:
        ticks = list(MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high))
    else:
        ticks = list(next(ticks for span, ticks in RATIO_TICKS if high / low <= span))
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
