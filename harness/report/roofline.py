"""The roofline: what each case reached against what its arithmetic intensity allows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness import plot_parts as parts

HIGHLIGHTED = ("jfa", "fa4")


def draw_roofline(records: pd.DataFrame, scope: str = "kernel") -> Figure | str:
    """TFLOP/s over FLOP per byte, every timed case, forward and backward; a figure, or why there is none.

    The roof is that of the run: its measured matmul rate and copy rate. ``jfa`` and ``fa4`` are joined by a line, the
    others are small. Each case carries its number of the list beside the panels.
    """
    rows = records[(records["scope"] == scope) & (records["status"] == "ok") & (records["bytes"] > 0)]
    rows = rows[rows["ceiling_tflops"].notna() & rows["ceiling_tbps"].notna() & (rows["flops"] > 0)]
    if rows.empty:
        return f"no timed row of {scope} scope has measured ceilings"
    rows = rows.assign(intensity=rows["flops"] / rows["bytes"])
    names, styles = parts.directions(rows), parts.backend_styles(rows["backend"])
    cases = list(dict.fromkeys(zip(rows["case_id"], rows["case"], strict=True)))
    numbers = {case_id: number for number, (case_id, _) in enumerate(cases, 1)}
    beside = parts.label_width(f"{number}  {name}" for number, (_, name) in enumerate(cases, 1))
    figure, drawn = parts.panels(
        styles, names, title="Roofline: what each case reached, and what the device allows (log scales)",
        text=f"{parts.caption(rows)} The roof is the run's own: measured matmul rate and measured copy rate. Bytes "
             "count each tensor once; a figure above the roof's slope says that caches kept some of them.",
        panel=(4.4 if len(names) > 1 else 6.5, max(3.6, 0.2 * len(cases) + 0.3)), left=0.7, gutter=0.35,
        beside=beside)
    low, high = rows["intensity"].min() / 1.4, rows["intensity"].max() * 1.4
    bottom = max(rows["tflops"].min() / 1.5, rows.loc[rows["backend"].isin(HIGHLIGHTED), "tflops"].min() / 4
                 if rows["backend"].isin(HIGHLIGHTED).any() else 0.0)
    compute, bandwidth = rows["ceiling_tflops"].max(), rows["ceiling_tbps"].max()
    for axes, direction in zip(drawn, names, strict=True):
        here = rows[rows["direction"] == direction]
        x = np.geomspace(low, high, 200)
        axes.plot(x, np.minimum(compute, x * bandwidth), color="#333333", linewidth=1.4, zorder=1.5)
        for backend, style in styles.items():
            mine = here[here["backend"] == backend]
            look = parts.marker(backend, style)
            if backend not in HIGHLIGHTED:
                look |= {"markersize": style.size * 0.6, "alpha": 0.6, "zorder": 2.2}
            axes.plot(mine["intensity"], mine["tflops"], **look)
        for x_pair, ours, theirs in parts.ours_and_fa4(here, "intensity", "tflops"):
            axes.vlines(x_pair, min(ours, theirs), max(ours, theirs), color=parts.OURS, linewidth=1.0, alpha=0.5)
        for x_label, y_label, text in _labels(here, numbers, high / low):
            axes.annotate(text, (x_label, y_label), xytext=(0, 7), textcoords="offset points", ha="center",
                          fontsize=7, color=parts.GREY)
        for x_low, figure_low in here[here["tflops"] < bottom][["intensity", "tflops"]].itertuples(index=False):
            axes.annotate(f"↓ {figure_low:.2g}", (x_low, bottom), xytext=(0, 3), textcoords="offset points",
                          ha="center", fontsize=7, color=parts.GREY)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(bottom, compute * 1.6)
        axes.annotate(f"{compute:.0f} TFLOP/s (matmul)", (compute / bandwidth, compute), xytext=(0, 5),
                      textcoords="offset points", fontsize=7.5, color="#333333")
        axes.annotate(f"{bandwidth:.2g} TB/s (copy)", (low, low * bandwidth), xytext=(4, -14),
                      textcoords="offset points", fontsize=7.5, color="#333333")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("FLOP per byte that must move", color=parts.GREY)
        axes.grid()
    drawn[0].set_ylabel("TFLOP/s of useful work", color=parts.GREY)
    for number, (_, name) in enumerate(cases, 1):
        drawn[-1].annotate(f"{number}  {name}", (1, 1), xycoords="axes fraction", xytext=(10, -13.5 * number + 8),
                           textcoords="offset points", fontsize=8, color="#333333", annotation_clip=False)
    return figure


def _labels(rows: pd.DataFrame, numbers: dict[str, int], span: float) -> list[tuple[float, float, str]]:
    """``(x, y, text)``: the numbers of the cases above their highest point, those of neighbours together."""
    tops = rows.groupby("case_id").agg(x=("intensity", "first"), y=("tflops", "max")).sort_values("x")
    place = np.log(tops["x"]) / np.log(span)
    group = (place.diff() > 0.035).cumsum()
    return [(float(np.exp(np.log(found["x"]).mean())), float(found["y"].max()),
             ",".join(str(number) for number in sorted(numbers[str(case_id)] for case_id in found.index)))
            for _, found in tops.groupby(group)]
