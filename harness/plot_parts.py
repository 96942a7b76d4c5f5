"""What the plots share: the look of each backend, figures with title, legend and caption, marks for failed rows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import offset_copy

DIRECTIONS = {"fwd": "Forward", "bwd": "Backward"}
SHORT_STATUS = {"unsupported": "unsup.", "import_error": "import"}
RC: dict[Any, Any] = {
    "svg.hashsalt": "harness", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666", "axes.linewidth": 0.8,
    "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "xtick.color": "#444444",
    "ytick.color": "#222222", "figure.facecolor": "white", "savefig.facecolor": "white",
    "text.parse_math": False}  # names are names, even with a $ in them
GREY, BAND, BAR = "#666666", "#f4f4f2", "#bbbbbb"
ROW_BACKENDS = 8  # that have room in a row of ROW_IN
ROW_IN, HEAD_IN, LEGEND_LINE_IN, FOOT_IN = 0.40, 0.82, 0.2, 0.95


@dataclass(frozen=True)
class Style:
    """How one backend looks in every plot: a colour and a marker of its own; ``size`` in points."""

    colour: str
    marker: str
    size: float = 6.0


# Okabe and Ito's colour-blind safe palette; the marker alone tells backends apart as well.
STYLES = {
    "jfa": Style("#D55E00", "o", 8.5),
    "fa4": Style("#0072B2", "s"),
    "jfa_triton": Style("#E69F00", "^", 6.5),
    "cudnn": Style("#009E73", "D", 5.0),
    "fa2": Style("#56B4E9", "v"),
    "flex": Style("#CC79A7", "P", 6.5),
    "padded": Style("#7F7F7F", "X"),
    "sdpa_loop": Style("#000000", "d"),
}
OURS, FA4 = STYLES["jfa"].colour, STYLES["fa4"].colour
_SPARE_COLOURS = ("#882255", "#44AA99", "#117733", "#AA4499", "#332288", "#999933", "#661100")
_SPARE_MARKERS = ("<", ">", "h", "p", "*", "8", "H")


def backend_styles(backends: Iterable[str]) -> dict[str, Style]:
    """Look of each label, ours first: fixed for the backends we ship, from a spare list for other labels."""
    names = list(dict.fromkeys(backends))
    spare = [name for name in names if name not in STYLES]
    extra = {name: Style(_SPARE_COLOURS[i % 7], _SPARE_MARKERS[(i + i // 7) % 7]) for i, name in enumerate(spare)}
    return {name: style for name, style in STYLES.items() if name in names} | extra


def marker(backend: str, style: Style) -> dict:
    """Arguments of matplotlib's `Axes.plot` for a backend's points; ours stands out."""
    ours = backend == "jfa"
    return {"linestyle": "none", "marker": style.marker, "markersize": style.size, "markerfacecolor": style.colour,
            "markeredgecolor": "black" if ours else "white", "markeredgewidth": 0.9 if ours else 0.4,
            "zorder": 5 if ours else 3}


def values(rows: pd.DataFrame, column: str) -> str:
    """The distinct values of a column, joined; empty cells don't count."""
    return " / ".join(dict.fromkeys(value for value in rows[column].dropna().astype(str) if value))


def caption(rows: pd.DataFrame) -> str:
    """Where, when, in which scope and with which versions the rows were measured: one sentence."""
    place = values(rows, "gpu") or "an unnamed device"
    drivers = [f"{label} {values(rows, column)}" for label, column in (("driver", "driver"), ("CUDA", "cuda"))
               if values(rows, column)]
    dates = sorted({date[:10] for date in rows["date"].dropna().astype(str)})
    timed = rows[(rows["status"] == "ok") & rows["backend"].astype(str).str.startswith(("fa4", "cudnn"))]
    versions = [f"torch {values(rows, 'torch')}", values(rows, "triton")]
    versions += [f"{name.partition('@')[0].replace('fa4', 'FA4')} {values(found, 'backend_version')}"
                 for name, found in timed.groupby("backend", sort=False)]
    return (f"Measured on {place}{' (' + ', '.join(drivers) + ')' if drivers else ''} on "
            f"{' to '.join(dict.fromkeys([dates[0], dates[-1]]))}, {values(rows, 'scope')} scope, "
            f"with {', '.join(version for version in versions if version)}.")


def directions(rows: pd.DataFrame) -> list[str]:
    """Directions that occur, forward first."""
    return [name for name in DIRECTIONS if (rows["direction"] == name).any()]


def label_width(labels: Iterable[str]) -> float:
    """Inches that the longest label takes at 9 points, with air."""
    return 0.35 + 0.078 * max(map(len, labels))


def panels(styles: dict[str, Style], names: Sequence[str], *, title: str, text: str, panel: tuple[float, float],
           left: float, gutter: float = 0.2, stacked: bool = False, legend: bool = True,
           legend_lines: int = 1, beside: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of ``panel`` inches for each direction of ``names``, side by side or ``stacked``.

    It has a title, a legend of ``styles`` and ``text`` as its caption. ``left`` and ``gutter`` are the inches beside
    a panel. Without ``legend`` there is room for one of ``legend_lines``, see `add_legend`. ``beside`` are
    the inches kept free on the right of all.
    """
    across, down = (1, len(names)) if stacked else (len(names), 1)
    wide, high = panel
    width = left + across * (wide + gutter) + 0.1 + beside
    columns = max(1, int((width - 0.2) / (0.42 + 0.075 * max(map(len, styles)))))
    head = HEAD_IN + LEGEND_LINE_IN * ((len(styles) - 1) // columns if legend else legend_lines - 1)
    total = head + down * high + (down - 1) * 0.45 + FOOT_IN
    figure = Figure(figsize=(width, total))
    drawn: list[Axes] = []
    for index, name in enumerate(names):
        x, y = (0, index) if stacked else (index, 0)
        bottom = total - head - (y + 1) * high - y * 0.45
        axes = figure.add_axes(((left + x * (wide + gutter)) / width, bottom / total, wide / width, high / total),
                               sharey=drawn[0] if drawn else None)
        axes.set_title(DIRECTIONS.get(name, ""), loc="left", fontsize=10.5, fontweight="bold", pad=5)
        axes.tick_params(labelleft=x == 0, labelbottom=y == down - 1)
        drawn.append(axes)
    figure.text(0.2 / width, 1 - 0.15 / total, title, fontsize=12, fontweight="bold", va="top")
    figure.text(0.2 / width, 0.42 / total, textwrap.fill(text, int(width * 17)), fontsize=7.5, color=GREY, va="top",
                linespacing=1.4)
    if legend:
        add_legend(figure, [Line2D([], [], label=name, **marker(name, style)) for name, style in styles.items()],
                   columns)
    return figure, drawn


def add_legend(figure: Figure, handles: list[Line2D], columns: int = 8) -> None:
    """A legend in one or more lines under the title; ours in bold."""
    width, total = figure.get_size_inches()
    legend = figure.legend(handles=handles, loc="upper left", ncols=min(columns, len(handles)), frameon=False,
                           bbox_to_anchor=(0.15 / width, 1 - 0.4 / total), handletextpad=0.1, columnspacing=1.1,
                           handlelength=1.4, borderaxespad=0, borderpad=0, fontsize=9)
    for entry in legend.get_texts():
        entry.set_fontweight("bold" if entry.get_text() == "jfa" else "normal")


def _failed(rows: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """(short status, backends) of the rows without a time."""
    bad = rows[rows["status"] != "ok"]
    return [(SHORT_STATUS.get(str(status), str(status)), list(dict.fromkeys(found["backend"])))
            for status, found in bad.groupby("status", sort=False)]


def failures_width(rows: pd.DataFrame) -> float:
    """Inches that `mark_failures` takes to the right."""
    return sum(0.11 * len(backends) + 0.062 * len(status) + 0.11 for status, backends in _failed(rows))


def failures_height(rows: pd.DataFrame) -> float:
    """Inches that `mark_failures` takes downwards."""
    return sum(0.13 * len(backends) + 0.055 * len(status) + 0.1 for status, backends in _failed(rows))


def mark_failures(axes: Axes, at: tuple[float, float], rows: pd.DataFrame, styles: dict[str, Style],
                  down: bool = False) -> None:
    """Hollow markers of the backends without a time, each group followed by its status.

    They go to the right of the panel at row ``at[1]``, or downwards from ``at`` in data coordinates.
    """
    base = axes.transData if down else axes.get_yaxis_transform()
    points = 8.0

    def away(distance: float) -> tuple[float, float]:
        return (0.0, -distance) if down else (distance, 0.0)

    for status, backends in _failed(rows):
        for backend in backends:
            style = styles[backend]
            place = offset_copy(base, axes.get_figure(root=True), *away(points), units="points")
            axes.plot(*at, transform=place, clip_on=False, marker=style.marker, markersize=style.size * 0.75,
                      markerfacecolor="white", markeredgecolor=style.colour, markeredgewidth=1.1, zorder=6)
            points += 8.0
        axes.annotate(status, at, xytext=away(points - 3), xycoords=base, textcoords="offset points", color=GREY,
                      fontsize=6 if down else 7, rotation=90 if down else 0, ha="center" if down else "left",
                      va="top" if down else "center", annotation_clip=False)
        points += (3.6 if down else 4.46) * len(status) + (5.0 if down else 8.0)


def ours_and_fa4(timed: pd.DataFrame, key: str, value: str) -> list[tuple]:
    """``(key, value of jfa, value of fa4)`` of each case that both timed."""
    wide = timed.pivot_table(index=key, columns="backend", values=value)
    return list(wide[["jfa", "fa4"]].dropna().itertuples(name=None)) if {"jfa", "fa4"} <= set(wide) else []
