"""The four plots of a run, from its records: TFLOP/s, speed-up over FA4, share of the floor, padding waste.

Each is written as PNG and as SVG; the same records give the same SVG, byte for byte. A row that isn't `ok` is drawn as
a hollow marker with its status, so that nothing vanishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.stats import gmean

from harness import plot_parts as parts
from harness.units import throughput_unit

FAR_BELOW = 0.1  # speed-ups below stand as figures at the edge, so that one of them doesn't squeeze all others
# ticks of a log axis of ratios, by the span (largest over smallest) up to which their labels have room
RATIO_TICKS = (
    (10.0, (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 10)),
    (50.0, (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)),
    (float("inf"), (0.001, 0.01, 0.1, 1, 10, 100, 1000)),
)


@dataclass(frozen=True)
class Plot:
    """What became of one plot: its files, or why there was nothing to draw."""

    name: str
    paths: tuple[Path, ...] = ()
    skipped: str = ""


def draw_plots(records: pd.DataFrame, out: Path, scope: str | None = None) -> list[Plot]:
    """Write all plots of ``records`` (one row or more, as `harness.records.read_records` gives) into ``out``.

    ``scope`` is ``kernel`` or ``operation``; None takes kernel rows, or operation rows where there are no others.
    A plot without a single row to draw is skipped, with the reason in its `Plot`; all are where the scope has no row.
    """
    scope = scope or ("kernel" if (records["scope"] == "kernel").any() else "operation")
    if (records["scope"] == scope).any():
        out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(rc=parts.RC):
        return [write_plot(name, draw_plot(name, records, scope), out) for name in PLOTS]


def draw_plot(name: str, records: pd.DataFrame, scope: str) -> Figure | str:
    """One plot, ``name`` being a key of `PLOTS`, or why there is nothing to draw; the caller sets `plot_parts.RC`."""
    rows = records[records["scope"] == scope]
    return f"no row of {scope} scope" if rows.empty else PLOTS[name](rows)


def write_plot(name: str, drawn: Figure | str, out: Path) -> Plot:
    """Save a figure in ``out`` as PNG and SVG; text says why there is none."""
    if isinstance(drawn, str):
        return Plot(name, skipped=drawn)
    paths = (out / f"{name}.png", out / f"{name}.svg")
    drawn.savefig(paths[0], dpi=160)
    drawn.savefig(paths[1], metadata={"Date": None})
    return Plot(name, paths)


def _throughput(rows: pd.DataFrame) -> Figure | str:
    timed = rows[rows["status"] == "ok"]
    if timed.empty:
        return "no row was timed"
    factor, unit = throughput_unit(timed["tflops"].max())
    rows = rows.assign(
        value=rows["tflops"] * factor,
        low=rows["flops"] / rows["latency_ms_ci_high"] / 1e9 * factor,
        high=rows["flops"] / rows["latency_ms_ci_low"] / 1e9 * factor)
    figure, drawn = _dot_panels(rows, f"Attention throughput, {unit} of useful work (more is better)",
                                f"{parts.caption(rows)} Medians with bootstrap 95 % intervals.")
    for axes in drawn:
        axes.set_xlim(0, rows["high"].max() * 1.03 or 1.0)
        axes.set_xlabel(unit, color=parts.GREY)
    return figure


def _speedup(rows: pd.DataFrame) -> Figure | str:
    text = (f"{parts.caption(rows)} Median latency of FA4 over the backend's, with bootstrap 95 % intervals; each mean "
            "is over the cases that the backend has times for.")
    rows = rows[rows["backend"] != "fa4"].rename(columns={
        "speedup_vs_fa4": "value", "speedup_vs_fa4_ci_low": "low", "speedup_vs_fa4_ci_high": "high"})
    if not (rows["value"] > 0).any():
        return "nothing was timed on the same case as an ok row of fa4"
    figure, drawn = _dot_panels(rows, "Speed-up over FA4 in the same run (log scale, right of the line is faster)",
                                text, mean_row=True)
    seen = rows[["value", "low", "high"]]
    low, high = max(min(seen.min().min() / 1.1, 0.8), FAR_BELOW), max(seen.max().max() * 1.18, 1.25)
    every = next(ticks for span, ticks in RATIO_TICKS if high / low <= span)
    ticks = [tick for tick in every if low <= tick <= high]
    for axes in drawn:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "1×\n= FA4" if value == 1 else f"{value:g}×"))
        axes.axvline(1.0, color=parts.FA4, linewidth=1.4, zorder=1.5)
        for line in [line for line in axes.lines if line.get_linestyle() == "None"]:
            for x, y in np.column_stack([np.asarray(values, dtype=float) for values in line.get_data()]).tolist():
                if x < low:
                    axes.annotate(f"← {x:.2g}×", (low, y), xytext=(3, -3), textcoords="offset points", fontsize=7.5,
                                  color=line.get_markerfacecolor())
    return figure


def _dot_panels(rows: pd.DataFrame, title: str, text: str, mean_row: bool = False) -> tuple[Figure, list[Axes]]:
    """Cases downwards, ``value`` (with ``low`` to ``high``) to the right, one marker per backend; failures beside."""
    cases = rows.drop_duplicates("case_id").set_index("case_id")["case"].astype(str)
    styles = parts.backend_styles(rows["backend"])
    labels = [*cases, *(["geometric mean"] if mean_row else [])]
    y = {case_id: float(index) for index, case_id in enumerate(cases.index)}
    dodge = {name: (index - (len(styles) - 1) / 2) * 0.56 / len(styles) for index, name in enumerate(styles)}
    gutter = 0.25 + max(parts.failures_width(found) for _, found in rows.groupby(["case_id", "direction"]))
    names = parts.directions(rows)
    figure, drawn = parts.panels(styles, names, title=title, text=text, left=parts.label_width(labels), gutter=gutter,
                                 panel=(4.1 if len(names) > 1 else 6.5,
                                        parts.ROW_IN * max(1.0, len(styles) / parts.ROW_BACKENDS) * len(labels)))
    for axes, direction in zip(drawn, names, strict=True):
        here = rows[rows["direction"] == direction]
        for index in range(0, len(labels), 2):
            axes.axhspan(index - 0.5, index + 0.5, color=parts.BAND, linewidth=0, zorder=0)
        timed = here[(here["status"] == "ok") & here["value"].notna()]
        for backend, style in styles.items():
            mine = timed[timed["backend"] == backend]
            at = np.array([y[case_id] + dodge[backend] for case_id in mine["case_id"]])
            axes.hlines(at, mine["low"], mine["high"], color=style.colour, linewidth=1.6, zorder=2.5)
            axes.plot(mine["value"], at, **parts.marker(backend, style))
            if mean_row and len(mine):
                mean = float(gmean(mine["value"]))
                axes.plot([mean], [len(cases) + dodge[backend]], **parts.marker(backend, style))
                if backend == "jfa":
                    axes.annotate(f"{mean:.2f}×", (mean, len(cases) + dodge[backend]), xytext=(7, -3),
                                  textcoords="offset points", fontsize=8.5, fontweight="bold", color=style.colour)
        for case_id, ours, theirs in parts.ours_and_fa4(timed, "case_id", "value"):
            axes.hlines(y[case_id] + dodge["jfa"], theirs, ours, color=parts.OURS, linewidth=1.0, alpha=0.5, zorder=2)
        for case_id, found in here.groupby("case_id"):
            parts.mark_failures(axes, (1.0, y[str(case_id)]), found, styles)
        if mean_row:
            axes.axhline(len(cases) - 0.5, color=parts.GREY, linewidth=0.8)
        _case_axis(axes, labels)
        if (here["status"] != "ok").any():
            axes.annotate("no time", (1, 1), xytext=(5, 5), xycoords="axes fraction", textcoords="offset points",
                          fontsize=7.5, color=parts.GREY, fontstyle="italic")
    return figure, drawn


def _case_axis(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _floor_share(rows: pd.DataFrame) -> Figure | str:
    if not (rows["floor_share"] > 0).any():
        return "no row has a share of a floor"
    places = _side_by_side((rows["total_k"] / rows["batch"]).clip(lower=1).groupby(rows["case_id"]).first())
    rows = rows.assign(x=rows["case_id"].map(places).astype(float))
    styles = parts.backend_styles(rows["backend"])
    strip = max(parts.failures_height(found) for _, found in rows.groupby(["case_id", "direction"]))
    names, high = parts.directions(rows), 3.2 + strip
    figure, drawn = parts.panels(
        styles, names, title="Share of the floor that each backend reaches, against mean key length",
        text=f"{parts.caption(rows)} The floor is the larger of FLOPs / measured matmul rate and bytes / measured copy "
             "rate. Cases of about the same length stand side by side.",
        panel=(8.8, high), left=0.75, stacked=True)
    top = rows["floor_share"].max() * 1.12
    top = max(top, 1.08) if top > 0.5 else top
    for axes, direction in zip(drawn, names, strict=True):
        here = rows[rows["direction"] == direction]
        timed = here[here["status"] == "ok"]
        for backend, style in styles.items():
            mine = timed[timed["backend"] == backend]
            axes.plot(mine["x"], mine["floor_share"], **parts.marker(backend, style))
        for x, ours, theirs in parts.ours_and_fa4(timed, "x", "floor_share"):
            axes.vlines(x, theirs, ours, color=parts.OURS, linewidth=1.0, alpha=0.5, zorder=2)
        for x, found in here.groupby("x"):
            parts.mark_failures(axes, (float(str(x)), 0.0), found, styles, down=True)
        axes.set_xscale("log", base=2)
        axes.set_xlim(rows["x"].min() / 1.15, rows["x"].max() * 1.15)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylim(-top * strip / (high - strip), top)
        axes.axhline(0, color=parts.GREY, linewidth=0.8, zorder=1)
        if top > 1:
            axes.axhline(1, color=parts.GREY, linewidth=1.2, zorder=1)
            axes.text(0.0, 1.0, " the floor", color=parts.GREY, fontsize=8, va="bottom",
                      transform=axes.get_yaxis_transform())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1%}" if top < 0.1 else f"{value:.0%}"))
        axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])
        axes.set_ylabel("share of the floor", color=parts.GREY)
        axes.grid()
    drawn[-1].set_xlabel("mean key length (tokens)", color=parts.GREY)
    return figure


def _side_by_side(lengths: pd.Series) -> dict[str, float]:
    """x of each case: its length, spread within a third of an octave where several cases have about the same."""
    octave = pd.Series(np.log2(lengths.to_numpy(dtype=float)), index=lengths.index)
    places: dict[str, float] = {}
    for _, group in octave.groupby((octave * 4).round()):
        step = min(0.075, 0.45 / len(group))
        for rank, (case_id, value) in enumerate(group.sort_values(kind="stable").items()):
            places[str(case_id)] = float(2 ** (value + (rank - (len(group) - 1) / 2) * step))
    return places


def _padding_waste(rows: pd.DataFrame) -> Figure | str:
    cases = rows.sort_values("direction", key=lambda found: found != "fwd", kind="stable").drop_duplicates("case_id")
    cases = cases.set_index("case_id").loc[list(dict.fromkeys(rows["case_id"]))]
    if not cases["padding_waste"].notna().any():
        return "no case has work to waste"
    labels = list(cases["case"].astype(str))
    tiles = 1 - cases["tile_efficiency"]
    figure, (axes,) = parts.panels(
        parts.backend_styles(rows["backend"]), [""], title="Work that padding would waste, and what whole tiles waste",
        text=f"Computed from the cases' lengths in run {parts.values(rows, 'run_id')}; nothing here is a time.",
        panel=(6.5, parts.ROW_IN * len(cases)), left=parts.label_width(labels), gutter=1.3, legend=False)
    y = np.arange(len(cases))
    axes.barh(y, cases["padding_waste"], height=0.6, color=parts.BAR, zorder=2)
    axes.plot(tiles, y, linestyle="none", marker="|", markersize=13, markeredgewidth=2.6, color=parts.OURS, zorder=3)
    for column, (header, shares, colour) in enumerate((("padded", cases["padding_waste"], "#333333"),
                                                       ("tiles", tiles, parts.OURS))):
        for position, text in [(-0.75, header), *zip(y, map(_percent, shares), strict=True)]:
            axes.annotate(text, (1, position), xytext=(42 + 42 * column, 0), xycoords=axes.get_yaxis_transform(),
                          textcoords="offset points", ha="right", va="center", color=colour, fontsize=8.5,
                          annotation_clip=False)
    _case_axis(axes, labels)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("share of the FLOPs that is no useful work", color=parts.GREY)
    parts.add_legend(figure, [
        Line2D([], [], color=parts.BAR, marker="s", linestyle="none", markersize=9,
               label="padded to the longest sequence"),
        Line2D([], [], color=parts.OURS, marker="|", linestyle="none", markersize=11, markeredgewidth=2.6,
               label="jagged, in whole tiles of 128 × 128")])
    return figure


def _percent(share: float) -> str:
    return "-" if not np.isfinite(share) else f"{share:.1%}" if 0.995 <= share < 1 else f"{share:.0%}"


PLOTS: dict[str, Callable[[pd.DataFrame], Figure | str]] = {
    "tflops": _throughput, "speedup": _speedup, "floor_share": _floor_share, "padding_waste": _padding_waste}
