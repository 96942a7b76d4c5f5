"""What each switch is worth, from ablation runs: a strip of cases per variant, and the table behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.stats import gmean

from harness import plot_parts as parts
from harness.ablation import ablate, ablation_cells
from harness.backends.registry import BACKENDS
from harness.errors import UserError
from harness.records import read_records
from harness.report.show import Table

DEFAULT = "jfa_default"  # in configs whose variants differ from the defaults rather than from the selection rule


def read_ablation(path: Path | str) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """``(records, ratios, full)``: the rows, `harness.ablation.ablate` of them, and what the variants are held against.

    ``full`` is ``jfa_default`` where the run has it, else ``jfa``. Raises `UserError`.
    """
    records = read_records(path)
    full = DEFAULT if (records["backend"] == DEFAULT).any() else "jfa"
    try:
        ratios = ablate(records, full, "kernel", tuple(name for name in BACKENDS if name not in (full, "jfa")))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return records, ratios, full


def ablation_table(path: Path | str, direction: str) -> Table:
    """Latency of each variant over the full kernel's: mean over the cases, then each case; ``~`` is within noise."""
    _, ratios, _ = read_ablation(path)
    headings, rows = ablation_cells(ratios, direction)
    return Table(pd.DataFrame(rows, columns=headings))


def ablation_directions(path: Path | str) -> list[str]:
    """Directions that an ablation run has, forward first."""
    return parts.directions(read_ablation(path)[1])


def draw_ablation(path: Path | str) -> Figure | str:
    """A row per variant: a point per case, and the geometric mean; a figure, or why there is none."""
    records, ratios, full = read_ablation(path)
    known = ratios[ratios["ratio"].notna()]
    if known.empty:
        return "no variant has a time beside the full kernel's"
    variants = list(dict.fromkeys(ratios["variant"]))
    names = parts.directions(known)
    measured = records[records["backend"].isin([full, *variants]) & (records["scope"] == "kernel")]
    figure, drawn = parts.panels(
        parts.backend_styles(["jfa"]), names, legend=False, left=parts.label_width(variants), gutter=0.75,
        panel=(4.2 if len(names) > 1 else 6.5, parts.ROW_IN * 0.8 * len(variants)),
        title=f"What each switch is worth: latency over that of {full} (right of the line is slower)",
        text=f"{parts.caption(measured)} A point is a case, hollow where its interval overlaps that of {full}; the bar "
             "and the figure are the geometric mean.")
    low, high = min(known["ratio"].min() / 1.03, 0.97), max(known["ratio"].max() * 1.03, 1.03)
    for axes, direction in zip(drawn, names, strict=True):
        here = known[known["direction"] == direction]
        for place, variant in enumerate(variants):
            found = here[here["variant"] == variant]
            if place % 2 == 0:
                axes.axhspan(place - 0.5, place + 0.5, color=parts.BAND, linewidth=0, zorder=0)
            if found.empty:
                continue
            spread = np.linspace(-0.2, 0.2, len(found)) if len(found) > 1 else np.zeros(1)
            for clear, face in ((True, parts.FA4), (False, "white")):
                chosen = (found["clear"] == clear).to_numpy()
                axes.plot(found["ratio"][chosen], place + spread[chosen], linestyle="none", marker="o", markersize=4.5,
                          markerfacecolor=face, markeredgecolor=parts.FA4, zorder=3)
            mean = float(gmean(found["ratio"]))
            axes.vlines(mean, place - 0.36, place + 0.36, color=parts.OURS, linewidth=2.6, zorder=4)
            axes.annotate(f"{mean:.3f}", (1, place), xycoords=axes.get_yaxis_transform(), xytext=(5, 0), va="center",
                          textcoords="offset points", fontsize=8.5, color=parts.OURS, annotation_clip=False)
        axes.axvline(1.0, color=parts.GREY, linewidth=1.2, zorder=1.5)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_minor_locator(MaxNLocator(1))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        axes.set_yticks(range(len(variants)), variants)
        axes.set_ylim(len(variants) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
    return figure
