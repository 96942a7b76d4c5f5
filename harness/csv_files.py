"""CSV files as runs write them: whole lines, on disk when a call returns. They are read back strictly."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from harness.errors import UserError

SCHEMA_VERSION = 1  # of the records' columns
FOR_MODELLED = "harness model, harness plot and harness ablation take such a file, what needs measurements doesn't"
MODEL_SCHEMA_COLUMN = "model_schema"  # the first of a file of modelled figures, see `harness.model_records`


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Add rows in one write, on disk when this returns; the header first in a new file."""
    text = _lines(rows)
    if not path.exists() or path.stat().st_size == 0:
        text = _lines([columns]) + text
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write the whole file beside ``path``, then move it there: a crash leaves one or the other, whole."""
    temporary = path.with_name(path.name + ".partial")
    temporary.unlink(missing_ok=True)
    append(temporary, columns, rows)
    os.replace(temporary, path)


def whole_lines(content: bytes) -> bytes:
    """Without a last line that was cut short, and without what a disk gives for bytes that it never got: zeros."""
    written = content.partition(b"\0")[0]
    return written[: written.rfind(b"\n") + 1]


def read_rows(path: Path, columns: Sequence[str], drop_cut_line: bool) -> list[tuple[int, dict[str, str]]]:
    """``(line number, cells by column)`` of a CSV that must have exactly ``columns``. Raises `UserError`."""
    try:
        content = path.read_bytes()
        if drop_cut_line:
            content = whole_lines(content)  # before decoding: the cut may be within a character
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read as a records CSV: {error}") from error
    demand_kind(path, text.partition("\n")[0], columns)
    if text and not text.endswith(("\n", "\r")):
        raise UserError(f"{path}: its last line has no end, so it was cut short; a complete file is needed")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise UserError(f"{path}: not a CSV file: {error}") from error
    if not lines:
        if drop_cut_line:
            return []
        raise UserError(f"{path}: empty; expected a header and rows of schema {SCHEMA_VERSION}")
    header = lines[0][1]
    if "schema_version" in columns and "schema_version" in header and len(lines) > 1:
        position = header.index("schema_version")
        versions = {cells[position] for _, cells in lines[1:] if len(cells) > position} - {str(SCHEMA_VERSION)}
        if versions:
            raise UserError(f"{path}: written with schema {', '.join(sorted(versions))}; "
                            f"this version reads schema {SCHEMA_VERSION}")
    if header != list(columns):
        missing, extra = [c for c in columns if c not in header], [c for c in header if c not in columns]
        detail = "; ".join(f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("unknown", extra))
                           if names)
        raise UserError(f"{path}: not a file of schema {SCHEMA_VERSION}: its columns differ ({detail or 'order'})")
    for number, cells in lines[1:]:
        if len(cells) != len(columns):
            raise UserError(f"{path}: line {number}: expected {len(columns)} cells, got {len(cells)}")
    return [(number, dict(zip(columns, cells, strict=True))) for number, cells in lines[1:]]


def demand_kind(path: Path, first_line: str, columns: Sequence[str]) -> None:
    """Raises `UserError` if a file's first line says that it is of another kind than one with ``columns``."""
    header = first_line.strip().split(",")
    if MODEL_SCHEMA_COLUMN in header and MODEL_SCHEMA_COLUMN not in columns:
        raise UserError(f"{path}: holds modelled figures, none of them measured; {FOR_MODELLED}")
    if first_line.strip() and "schema_version" in columns and "schema_version" not in header:
        raise UserError(f"{path}: is not the records CSV of a run: its first line has no column schema_version")
