"""The history of a config on a GPU: one line per row and run, appended, and its picture with change points."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness import plot_parts as parts
from harness.errors import UserError
from harness.records import Record, Status
from harness.regression.baseline import slug
from harness.regression.change_points import change_points
from harness.regression.runs import Refused, Run

HISTORY = Path("results/history")
HISTORY_SCHEMA = 1
COLUMNS_ACROSS = 3


class HistoryRow(BaseModel):
    """One line of ``results/history/<gpu>/<config>.csv``; what the records hold too means the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    history_schema: int = Field(HISTORY_SCHEMA, description="version of these columns")
    date: str = Field(description="UTC time of the measurement, ISO 8601")
    run_id: str = Field(description="as in the records")
    commit: str = Field("", description="as in the records")
    gpu: str = Field(description="as in the records")
    driver: str = Field("", description="as in the records")
    torch: str = Field(description="as in the records")
    triton: str = Field("", description="as in the records")
    case_id: str = Field(description="as in the records")
    case: str = Field(description="as in the records")
    backend: str = Field(description="as in the records")
    backend_version: str = Field("", description="as in the records")
    direction: str = Field(description="as in the records")
    scope: str = Field(description="as in the records")
    latency_ms: float = Field(gt=0, description="as in the records")
    tflops: float = Field(gt=0, description="as in the records")
    floor_share: float | None = Field(None, description="as in the records")
    speedup_vs_fa4: float | None = Field(None, description="as in the records")
    note: str = Field("", description="why the run was kept")

    @property
    def series(self) -> tuple[str, str, str, str]:
        """What its points are joined by."""
        return (self.case_id, self.backend, self.direction, self.scope)


HISTORY_COLUMNS: tuple[str, ...] = tuple(HistoryRow.model_fields)
_MAY_BE_EMPTY = frozenset(name for name, info in HistoryRow.model_fields.items() if info.default is None)


def default_history(run: Run, root: Path = HISTORY) -> Path:
    """Where a run's history is kept."""
    return root / slug(run.gpu) / run.csv.name


def history_rows(run: Run, note: str = "") -> list[HistoryRow]:
    """The run's timed rows."""
    return [_row(record, note) for record in run.records if record.status is Status.OK]


def _row(record: Record, note: str) -> HistoryRow:
    return HistoryRow(note=note, **{name: getattr(record, name) for name in HISTORY_COLUMNS
                                    if name not in ("history_schema", "note")})


def append_history(path: Path, rows: Sequence[HistoryRow]) -> bool:
    """Append a run's rows, unless the file has the run already; whether it did.

    Raises `UserError` if the file can't be written, `Refused` if it can't be read.
    """
    known = read_history(path) if path.exists() else []
    if {row.run_id for row in rows} <= {row.run_id for row in known}:
        return False
    temporary = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HISTORY_COLUMNS)
            for row in (*known, *rows):
                cells = (getattr(row, name) for name in HISTORY_COLUMNS)
                writer.writerow(["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else cell
                                 for cell in cells])
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error
    return True


def demand_history(path: Path) -> None:
    """Raises what `append_history` would, as far as can be known before: `UserError`, `Refused`."""
    if path.exists():
        read_history(path)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{path}: can't be written: {folder} is {'read-only' if folder.is_dir() else 'no directory'}")


def demand_picture(out: Path) -> None:
    """Raises `UserError` for what is no name of a PNG file."""
    if out.is_dir():
        raise UserError(f"--out: {out} is a directory; name a PNG file, such as {out / 'history.png'}")
    if out.suffix != ".png":
        raise UserError(f"--out: got {out}; allowed: a name that ends in .png (an SVG is written beside it)")


def read_history(path: Path) -> list[HistoryRow]:
    """All lines, in order. Raises `UserError` without the file, `Refused` for another schema or a corrupt one."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory; a history is a CSV file")
    if not path.is_file():
        raise UserError(f"{path}: no such file; harness baseline update and harness history --add write it")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: can't be read as a history: byte {error.start} is no UTF-8") from None
    if text and not text.endswith("\n"):
        raise Refused(f"{path}: its last line has no end, so it was cut short; restore it")
    rows = []
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if reader.fieldnames != list(HISTORY_COLUMNS):
        raise Refused(f"{path}: not a history of schema {HISTORY_SCHEMA}: its columns differ")
    for line in reader:
        if line["history_schema"] != str(HISTORY_SCHEMA):
            raise Refused(f"{path}: line {reader.line_num}: history_schema is {line['history_schema']}; this version "
                          f"reads {HISTORY_SCHEMA}")
        try:
            rows.append(HistoryRow.model_validate(
                {name: None if name in _MAY_BE_EMPTY and cell == "" else cell for name, cell in line.items()}))
        except (ValidationError, TypeError) as error:
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise Refused(f"{path}: line {reader.line_num}: {said}") from None
    return rows


def draw_history(rows: Sequence[HistoryRow], out: Path, column: str = "tflops") -> list[str]:
    """Draw ``column`` over the runs, a panel for each case and direction of kernel scope, as PNG ``out`` and as SVG.

    A change point is a dashed line. Returns a line of text for each. Raises `UserError` without any row.
    """
    frame = pd.DataFrame([row.model_dump() for row in rows])
    frame = frame[(frame["scope"] == "kernel") & frame[column].notna()] if len(frame) else frame
    if frame.empty:
        raise UserError(f"history: no row of kernel scope has {column}")
    runs = list(dict.fromkeys(frame.sort_values("date", kind="stable")["run_id"]))
    labels = [str(frame.loc[frame["run_id"] == run, "commit"].iloc[0])[:7] or run[-16:] for run in runs]
    panels = list(frame.groupby(["case", "direction"], sort=False))
    styles = parts.backend_styles(frame["backend"])
    said = []
    with matplotlib.rc_context(rc=parts.RC):
        down = -(-len(panels) // COLUMNS_ACROSS)
        figure = Figure(figsize=(4.2 * COLUMNS_ACROSS, 2.1 * down + 0.9), layout="constrained")
        axes = np.atleast_1d(figure.subplots(down, COLUMNS_ACROSS, squeeze=False)).ravel()
        for axis, ((case, direction), found) in zip(axes, panels, strict=False):
            for backend, points in found.groupby("backend", sort=False):
                places = np.array([runs.index(run) for run in points["run_id"]])
                order = np.argsort(places, kind="stable")
                at, values = places[order], points[column].to_numpy(dtype=float)[order]
                style = styles[str(backend)]
                axis.plot(at, values, color=style.colour, linewidth=0.9, zorder=2)
                axis.plot(at, values, **parts.marker(str(backend), style) | {"markersize": style.size * 0.7})
                for index in change_points(np.log(values)):
                    axis.axvline(at[index] - 0.5, color=style.colour, linestyle="--", linewidth=1.1)
                    said.append(f"{case} {direction} {backend}: from {labels[at[index - 1]]} to {labels[at[index]]}, "
                                f"{np.median(values[:index]):.4g} to {np.median(values[index:]):.4g} {column}")
            axis.set_title(f"{case} {direction}", loc="left", fontsize=9, fontweight="bold")
            axis.set_xlim(-0.5, len(runs) - 0.5)
            axis.set_xticks(range(len(runs)), labels, rotation=60, fontsize=6.5)
            axis.set_ylim(0, 1.12 * float(found[column].max()))
            axis.grid(axis="y")
        for axis in axes[len(panels):]:
            axis.set_visible(False)
        figure.suptitle(f"{column} by commit, kernel scope, measured on {parts.values(frame, 'gpu')}; dashed: change "
                        "points; " + ", ".join(styles), fontsize=10)
        for suffix in (".png", ".svg"):
            try:
                out.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(out.with_suffix(suffix), dpi=130, metadata={"Date": None} if suffix == ".svg" else None)
            except OSError as error:
                raise UserError(f"{out}: can't be written: {error.strerror or error}") from error
    return said
