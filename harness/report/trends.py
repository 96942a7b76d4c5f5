"""What the speed-up depends on: mean length, density and batch, one point per case."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from harness import plot_parts as parts

MODE_COLOURS = {"self": "#D55E00", "cross": "#009E73", "short_kv": "#0072B2", "broadcast_q": "#CC79A7"}
AXES = (("mean key length (tokens)", "log"), ("density (mean over maximum length)", "linear"),
        ("batch (sequences)", "log"))


def draw_trends(records: pd.DataFrame, backend: str = "jfa", scope: str = "kernel") -> Figure | str:
    """Speed-up of a backend over FA4 against three properties of the cases; a figure, or why there is none.

    Filled points are forward, hollow ones backward; the bar of a point is its bootstrap 95 % interval.
    """
    rows = records[(records["backend"] == backend) & (records["scope"] == scope) & (records["speedup_vs_fa4"] > 0)]
    if rows.empty:
        return f"{backend} has no speed-up over fa4 in {scope} scope"
    figure, drawn = parts.panels(
        parts.backend_styles([backend]), ["", "", ""], legend=False, left=0.65, gutter=0.35, panel=(3.0, 3.1),
        title=f"Speed-up of {backend} over FA4 against what the case looks like (above the line is faster)",
        text=f"{parts.caption(rows)} Each point is a case, its bar the bootstrap 95 % interval. Cases differ in more "
             "than one property, so a trend here is no cause.")
    columns = ((rows["total_k"] / rows["batch"]).clip(lower=1), rows["density"], rows["batch"])
    low = min(rows["speedup_vs_fa4_ci_low"].min() / 1.08, 0.9)
    high = max(rows["speedup_vs_fa4_ci_high"].max() * 1.08, 1.1)
    for index, (axes, x, (label, scale)) in enumerate(zip(drawn, columns, AXES, strict=True)):
        for direction, filled in (("fwd", True), ("bwd", False)):
            for mode, colour in MODE_COLOURS.items():
                chosen = (rows["direction"] == direction) & (rows["mode"] == mode) & x.notna()
                mine, at = rows[chosen], x[chosen]
                axes.vlines(at, mine["speedup_vs_fa4_ci_low"], mine["speedup_vs_fa4_ci_high"], color=colour,
                            linewidth=1.2, zorder=2)
                axes.plot(at, mine["speedup_vs_fa4"], linestyle="none", marker="o", markersize=6.5,
                          markerfacecolor=colour if filled else "white", markeredgecolor=colour, zorder=3)
        axes.axhline(1.0, color=parts.FA4, linewidth=1.2, zorder=1)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.tick_params(labelleft=index == 0)
        axes.set_xlabel(label, color=parts.GREY)
        if scale == "log":
            axes.set_xscale("log", base=2)
            axes.set_xlim(x.min() / 1.4, x.max() * 1.4)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_xlim(0, 1.05)
        axes.grid()
    drawn[0].set_ylabel("FA4's latency over ours", color=parts.GREY)
    seen = [mode for mode in MODE_COLOURS if (rows["mode"] == mode).any()]
    parts.add_legend(figure, [
        *(Line2D([], [], linestyle="none", marker="o", markersize=7, color=MODE_COLOURS[mode], label=mode)
          for mode in seen),
        Line2D([], [], linestyle="none", marker="o", markersize=7, color="#333333", label="filled: forward"),
        Line2D([], [], linestyle="none", marker="o", markersize=7, color="#333333", markerfacecolor="white",
               label="hollow: backward")])
    return figure
