"""Figures that others published: shown apart from all measurements, each with its source."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness import plot_parts as parts
from harness.errors import UserError
from harness.report.show import Table

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "reference" / "published.csv"
COLUMNS = ("source", "date", "gpu", "kernel", "direction", "workload", "B", "H", "D", "len_q", "len_k", "density",
           "causal", "tflops", "note")
LABEL = "published, not measured here"
COLOUR = {"fa4": parts.FA4, "cutlass_fmha": "#009E73", "gdpa_cutedsl": "#CC79A7"}


def read_published(path: Path | str = PUBLISHED) -> pd.DataFrame:
    """The rows of a file of published figures; empty cells are NaN in ``tflops``, empty text elsewhere.

    Raises `UserError` for a missing file, other columns, or a row that names no source.
    """
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read as published figures: {error}") from None
    if tuple(rows.columns) != COLUMNS:
        raise UserError(f"{path}: columns: expected {', '.join(COLUMNS)}, got {', '.join(rows.columns)}")
    for number, source in enumerate(rows["source"], 2):
        if not source:
            raise UserError(f"{path}: line {number}: source: every figure needs one")
    return rows.assign(tflops=pd.to_numeric(rows["tflops"], errors="coerce"))


def published_table(rows: pd.DataFrame) -> Table:
    """All rows with their sources, for a person."""
    shown = rows.assign(tflops=rows["tflops"].map(lambda value: "" if pd.isna(value) else f"{value:g}"),
                        what=rows.apply(_workload, axis=1))
    return Table(shown[["gpu", "kernel", "direction", "what", "tflops", "source", "date", "note"]].rename(
        columns={"what": "workload", "tflops": "TFLOP/s (published)"}), labels=8)


def _workload(row: pd.Series) -> str:
    shape = [f"B={row['B']}" if row["B"] else "", f"H={row['H']}" if row["H"] else "",
             f"D={row['D']}" if row["D"] else ""]
    if row["len_q"]:
        shape.append(row["len_q"] if row["len_q"] == row["len_k"] else f"q {row['len_q']}, k {row['len_k']}")
    if row["density"]:
        shape.append(f"density {row['density']}")
    if row["causal"] == "true":
        shape.append("causal")
    return " ".join([row["workload"], *filter(None, shape)])


def draw_published(rows: pd.DataFrame, gpu: str = "B200") -> Figure | str:
    """Published TFLOP/s of one kind of GPU, a row per workload, marked as not ours; a figure, or why there is none."""
    rows = rows[(rows["gpu"] == gpu) & rows["tflops"].notna()]
    if rows.empty:
        return f"no figure for a {gpu}"
    rows = rows.assign(label=rows.apply(_workload, axis=1))
    labels = list(dict.fromkeys(rows["label"]))
    names = parts.directions(rows)
    figure, drawn = parts.panels(
        parts.backend_styles(["fa4"]), names, legend=False, left=parts.label_width(labels) * 0.86, gutter=0.3,
        panel=(3.6, 0.27 * len(labels)), title=f"{gpu}: {LABEL}",
        text=f"Published by others, each with its source in the table: {'; '.join(dict.fromkeys(rows['source']))}. "
             f"This project has measured nothing on a {gpu}; versions, clocks and methods differ from those of ours.")
    seen = list(dict.fromkeys(rows["kernel"]))
    for axes, direction in zip(drawn, names, strict=True):
        here = rows[rows["direction"] == direction]
        for place in range(0, len(labels), 2):
            axes.axhspan(place - 0.5, place + 0.5, color=parts.BAND, linewidth=0, zorder=0)
        for kernel in seen:
            mine = here[here["kernel"] == kernel]
            axes.plot(mine["tflops"], [labels.index(label) for label in mine["label"]], linestyle="none", marker="s",
                      markersize=5.5, markerfacecolor="white", markeredgecolor=COLOUR.get(kernel, "#333333"),
                      markeredgewidth=1.6, zorder=3)
        axes.text(0.5, 0.5, LABEL.upper().replace(", ", ",\n"), transform=axes.transAxes, rotation=30, ha="center",
                  va="center", fontsize=17, color="#888888", alpha=0.22, fontweight="bold", zorder=1)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, rows["tflops"].max() * 1.06)
        axes.set_xlabel("TFLOP/s (published)", color=parts.GREY)
        axes.grid(axis="x")
    parts.add_legend(figure, [Line2D([], [], linestyle="none", marker="s", markersize=7, markerfacecolor="white",
                                     markeredgewidth=1.6, color=COLOUR.get(kernel, "#333333"), label=kernel)
                              for kernel in seen])
    return figure
