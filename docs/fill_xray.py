"""Fills docs/xray.md from the committed CSVs: the columns, ours beside FlashAttention-4's, and the lines of source.

    python docs/fill_xray.py          the page, from results/baselines/xray_*.csv
    python docs/fill_xray.py lines    counts lines of source first; FA4's stay as they are where it isn't installed
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from harness.xray import tables
from harness.xray.rows import XrayRow, read_csv
from harness.xray.source_lines import ENTRIES, Lines, source_lines

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "xray.md"
BASELINES = ROOT / "results" / "baselines"
LINES = BASELINES / "xray_lines.csv"
PART = re.compile(r"(<!-- (columns|kernels|loops|lines)(?: of (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
SHAPES = ("fwd-d128-full", "fwd-d64-full", "bwd-d128-full", "bwd-d64-full")
HEADER = ("arch", "backend", "name", "own", "code", "comment", "blank")


def filled(text: str) -> str:
    """The page with its tables as the CSVs have them."""
    return PART.sub(lambda match: match[1] + part(match[2], match[3]) + "\n" + match[4], text)


def part(what: str, arch: str | None) -> str:
    """One table, as Markdown."""
    if what == "columns":
        return tables.markdown(["column", ""], [[f"`{name}`", field.description or ""]
                                                for name, field in XrayRow.model_fields.items()], 2)
    if what == "lines":
        parts = []
        for name in dict.fromkeys(line["arch"] for line in read_lines()):
            headings, cells = tables.line_cells(counted(name))
            parts += [[name, *line] for line in cells]
        return tables.markdown(["arch", *headings], parts, 3)
    rows = shown(arch or "")
    headings, cells = tables.kernel_cells(rows) if what == "kernels" else tables.loop_cells(rows)
    return tables.markdown(headings, cells, 4)


def shown(arch: str) -> list[XrayRow]:
    """The kernels with main loops, unmasked, of a baseline."""
    rows = [row for row in read_csv(BASELINES / f"xray_{arch}.csv") if row.shape in SHAPES and "clc" not in row.config]
    busy = {row.key[:5] for row in rows if row.loops}
    return sorted((row for row in rows if row.key[:5] in busy), key=lambda row: SHAPES.index(row.shape))


def read_lines() -> list[dict[str, str]]:
    """The committed counts."""
    return list(csv.DictReader(LINES.read_text(encoding="utf-8").splitlines()))


def counted(arch: str) -> dict[str, list[Lines]]:
    """The committed counts of an architecture, by backend."""
    found: dict[str, list[Lines]] = {}
    for line in read_lines():
        if line["arch"] == arch:
            found.setdefault(line["backend"], []).append(Lines(
                line["name"], int(line["code"]), int(line["comment"]), int(line["blank"]), line["own"] == "True"))
    return found


def count_lines() -> None:
    """Writes the counts of what is installed, and keeps the others."""
    old = read_lines() if LINES.exists() else []
    lines = []
    for arch, backend in ENTRIES:
        fresh = [{"arch": arch, "backend": backend, **{key: str(getattr(each, key)) for key in HEADER[2:]}}
                 for each in source_lines(arch, backend)]
        lines += fresh or [line for line in old if (line["arch"], line["backend"]) == (arch, backend)]
    with LINES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["lines"]:
        count_lines()
    elif sys.argv[1:]:
        sys.exit(f"error: got {' '.join(sys.argv[1:])!r}; allowed: lines, or nothing")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
