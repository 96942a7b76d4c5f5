"""Plots of modelled figures: hatched, in figures of their own, with 'modelled' in title and legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness import plot_parts as parts
from harness.model_check import HELD, WORST_LIMIT, Point
from harness.plots import Plot, write_plot

HATCH = "////"
BAR_IN = 0.17  # height of a bar
LEGEND_MOST = 4  # variants that a legend has room for; of more, each bar says its own
HALVES = {True: ("modelled, held half", parts.OURS), False: ("modelled, fitted half", "#999999")}


def draw_modelled(rows: pd.DataFrame, out: Path, points: Sequence[Point] = ()) -> list[Plot]:
    """Write ``modelled`` from a `harness.model_records.modelled_frame`; given points, also how far off they are."""
    out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(rc=parts.RC | {"hatch.linewidth": 0.7}):
        plots = [write_plot("modelled", modelled_figure(rows), out)]
        if points:
            plots.append(write_plot("modelled_against_measured", against_figure(points), out))
    return plots


def modelled_figure(rows: pd.DataFrame) -> Figure | str:
    """Modelled TFLOP/s: a hatched bar for each variant of each case, with what bounds it; or why there is none."""
    if not (rows["status"] == "modelled").any():
        return "no row was modelled"
    machine = parts.values(rows, "machine")
    cases = rows.drop_duplicates("case_id").set_index("case_id")["case"].astype(str)
    styles = parts.backend_styles(rows["backend"])
    few = len(styles) <= LEGEND_MOST
    names = parts.directions(rows)
    figure, drawn = parts.panels(
        styles, names, title=f"Modelled for {machine}, not measured: TFLOP/s of useful work",
        text=f"Modelled by the simulator's timing model with the description {parts.values(rows, 'machine_digest')} of "
             f"{machine}, kernel scope, run {parts.values(rows, 'run_id')}. No figure here is measured. Beside each "
             "bar: what bounds it.",
        panel=(5.2, (BAR_IN * len(styles) + 0.12) * len(cases)), left=parts.label_width(cases), legend=False,
        gutter=1.9 if few else 1.9 + 0.055 * max(map(len, styles)))
    for axes, direction in zip(drawn, names, strict=True):
        here = rows[rows["direction"] == direction]
        for index, case_id in enumerate(cases.index):
            _bars(axes, index, here[here["case_id"] == case_id], styles, not few)
        _case_axis(axes, list(cases))
        axes.set_xlim(0, rows["predicted_tflops"].max() * 1.03)
        axes.set_xlabel("modelled TFLOP/s", color=parts.GREY)
    handles = {f"{name} (modelled)": style.colour for name, style in styles.items()}
    _legend(figure, handles if few else {"modelled; each bar is named": parts.GREY}, HATCH)
    return figure


def _bars(axes: Axes, at: int, rows: pd.DataFrame, styles: dict[str, parts.Style], named: bool) -> None:
    """The bars of one case, from top to bottom; a row without a figure has its status instead."""
    step = 0.84 / len(styles)
    order = list(styles)
    for _, row in rows.iterrows():
        y = at + (order.index(row["backend"]) - (len(order) - 1) / 2) * step
        modelled = row["status"] == "modelled"
        value = float(row["predicted_tflops"]) if modelled else 0.0
        if modelled:
            axes.barh(y, value, height=step * 0.86, facecolor="white", edgecolor=styles[row["backend"]].colour,
                      hatch=HATCH, linewidth=0.9, zorder=2)
        said = str(row["bound_by"] if modelled else row["status"])
        axes.annotate(f"{row['backend']}: {said}" if named else said, (value, y), xytext=(3, 0),
                      textcoords="offset points", va="center", fontsize=6, color=parts.GREY, annotation_clip=False)


def against_figure(points: Sequence[Point]) -> Figure:
    """The error of each modelled row by case, a marker a variant; those of the held half are hatched."""
    cases = list(dict.fromkeys(point.case for point in points))
    names = [name for name in parts.DIRECTIONS if any(point.direction == name for point in points)]
    measured = " / ".join(dict.fromkeys(point.gpu for point in points))
    figure, drawn = parts.panels(
        parts.backend_styles(["jfa"]), names, title="Modelled against measured: error of the modelled times",
        text=f"Modelled by the simulator's timing model; measured on {measured}, kernel scope: {len(points)} rows of "
             f"{', '.join(dict.fromkeys(point.run for point in points))}. Dashed: a row's limit, "
             f"{WORST_LIMIT:.0%}.",
        panel=(4.6, parts.ROW_IN * len(cases)), left=parts.label_width(cases), gutter=0.35, legend=False)
    edge = max(1.3 * WORST_LIMIT, 1.1 * max(abs(point.error) for point in points))
    for axes, direction in zip(drawn, names, strict=True):
        for held in (False, True):
            mine = [point for point in points if point.direction == direction and (point.half == HELD) == held]
            axes.scatter([point.error for point in mine], [cases.index(point.case) for point in mine], s=42, marker="s",
                         facecolor="white", edgecolor=HALVES[held][1], hatch=HATCH * 2 if held else None,
                         linewidth=0.9, zorder=3)
        _case_axis(axes, cases)
        axes.axvline(0, color=parts.GREY, linewidth=1.0)
        for bound in (-WORST_LIMIT, WORST_LIMIT):
            axes.axvline(bound, color=parts.GREY, linewidth=0.8, linestyle="--")
        axes.set_xlim(-edge, edge)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0%}")
        axes.set_xlabel("modelled / measured - 1", color=parts.GREY)
    _legend(figure, {HALVES[True][0]: HALVES[True][1]}, HATCH, {HALVES[False][0]: HALVES[False][1]})
    return figure


def _case_axis(axes: Axes, cases: list[str]) -> None:
    for index in range(0, len(cases), 2):
        axes.axhspan(index - 0.5, index + 0.5, color=parts.BAND, linewidth=0, zorder=0)
    axes.set_yticks(range(len(cases)), cases)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _legend(figure: Figure, hatched: Mapping[str, str], hatch: str, plain: Mapping[str, str] | None = None) -> None:
    """A line of patches under the title, by label and colour."""
    width, total = figure.get_size_inches()
    handles = [Patch(facecolor="white", edgecolor=colour, hatch=pattern, label=label)
               for pattern, found in ((hatch, hatched), (None, plain or {})) for label, colour in found.items()]
    figure.legend(handles=handles, loc="upper left", ncols=len(handles), frameon=False, fontsize=9, borderaxespad=0,
                  borderpad=0, bbox_to_anchor=(0.2 / width, 1 - 0.42 / total))
