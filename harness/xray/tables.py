"""Rows side by side: per shape, each backend's kernels as a whole, and the main loops of their roles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from harness.records import Status
from harness.summary import new_table
from harness.xray.check import SMEM_LIMIT, TMEM_LIMIT
from harness.xray.counting import COUNTS
from harness.xray.main_loops import ROLES
from harness.xray.rows import KERNEL, XrayRow
from harness.xray.source_lines import Lines

_WORDS = {"stack_bytes": "stack B", "local_bytes": "local B", "smem_bytes": "SMEM B", "tmem_columns": "TMEM cols",
          "code_bytes": "code B", "instructions": "instr."}
_KERNEL_COLUMNS = ("threads", "registers", "setmaxnreg", "stack_bytes", "local_bytes", "smem_bytes", "tmem_columns",
                   "code_bytes")


def kernel_cells(rows: Iterable[XrayRow]) -> tuple[list[str], list[list[str]]]:
    """``(headings, lines)``: a line for each kernel that was compiled; shapes together."""
    headings = ["shape", "backend", "config", "kernel", *(_WORDS.get(name, name) for name in _KERNEL_COLUMNS)]
    lines = []
    for row in _by_shape(rows):
        if row.role == KERNEL and row.status is Status.OK:
            cells = (_cell(getattr(row, name)) for name in _KERNEL_COLUMNS)
            lines.append([row.shape, row.backend, row.config, row.kernel, *cells])
    return headings, lines


def loop_cells(rows: Sequence[XrayRow]) -> tuple[list[str], list[list[str]]]:
    """``(headings, lines)``: a line for each role; roles of one shape together, so that backends are side by side.

    Counts that are 0 in every row are left out.
    """
    roles = sorted((row for row in _by_shape(rows) if row.role != KERNEL),
                   key=lambda row: ([other.shape for other in rows].index(row.shape), ROLES.index(row.role)))
    shown = [name for name in COUNTS if any(getattr(row, name) for row in roles)]
    headings = ["shape", "role", "backend", "config", "registers", "loops", *(_WORDS.get(name, name) for name in shown)]
    lines = [[row.shape, row.role, row.backend, row.config, row.registers, _cell(row.loops),
              *(_cell(getattr(row, name)) for name in shown)] for row in roles]
    return headings, lines


def line_cells(counted: dict[str, Sequence[Lines]]) -> tuple[list[str], list[list[str]]]:
    """``(headings, lines)``: lines of source of each backend, its own files and those that are shared."""
    headings = ["backend", "files of", "files", "code", "comment", "blank"]
    lines = []
    for backend, files in counted.items():
        for whose, chosen in (("the architecture", [each for each in files if each.own]), ("all", list(files))):
            lines.append([backend, whose, str(len(chosen)), *(f"{sum(getattr(each, kind) for each in chosen):,}"
                                                              for kind in ("code", "comment", "blank"))])
    return headings, lines


def table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]], text_columns: int) -> Table:
    """For the terminal; the first ``text_columns`` are text, the others numbers."""
    made = new_table(title)
    for at, heading in enumerate(headings):
        made.add_column(heading, justify="left" if at < text_columns else "right", no_wrap=True)
    for line in lines:
        made.add_row(*line)
    return made


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]], text_columns: int) -> str:
    """The same as Markdown."""
    rule = ["---"] * text_columns + ["---:"] * (len(headings) - text_columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [list(headings), rule, *map(list, lines)])


def limits_line() -> str:
    """What a GPU has, to put below the table of kernels."""
    return f"limits: {SMEM_LIMIT:,} B of shared memory a CTA, {TMEM_LIMIT} columns of tensor memory an SM"


def _by_shape(rows: Iterable[XrayRow]) -> list[XrayRow]:
    found: dict[str, list[XrayRow]] = {}
    for row in rows:
        found.setdefault(row.shape, []).append(row)
    return [row for group in found.values() for row in group]


def _cell(value: int | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value or "-"
