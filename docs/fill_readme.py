"""Fills README.md's headline from the committed records, so that no figure in it is typed by hand.

    python docs/fill_readme.py

It is a table, then where JFA is the slower one and what the run lacks. It stands between ``<!-- headline of CSV -->``
and ``<!-- end -->``; CSV is a path from the repository's root.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from harness.headline import mean_speedups
from harness.plot_parts import caption
from harness.report.run_data import RunData, not_run, read_run

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TABLE = re.compile(r"(<!-- headline of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
OURS, RIVAL = "jfa", "fa4"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def filled(text: str) -> str:
    """The README with its table as the records have it."""
    return TABLE.sub(lambda match: match[1] + headline(read_run(ROOT / match[2])) + match[3], text)


def headline(run: RunData) -> str:
    """Markdown: the measurement's label; TFLOP/s by case, kernel scope; means of both scopes."""
    records = run.records
    rows = records[(records["scope"] == "kernel") & records["backend"].isin([OURS, RIVAL])]
    heads = [f"{name}: JFA | FA4 | JFA / FA4" for name in DIRECTIONS.values()]
    lines = [caption(rows) + " TFLOP/s of useful work.", "",
             "| case | " + " | ".join(heads) + " |", "|---" + "|---:" * 3 * len(DIRECTIONS) + "|"]
    for case, found in rows.groupby("case", sort=False):
        cells = [cell for direction in DIRECTIONS for cell in _cells(found[found["direction"] == direction])]
        lines.append(f"| `{case}` | " + " | ".join(cells) + " |")
    operation = records[records["scope"] == "operation"]
    lines.append(_means("geometric mean", rows))
    lines.append(_means("the same in operation scope", operation))
    said = [f"Slower than FA4 beyond the interval, {scope} scope: {_slower(found)}."
            for scope, found in (("kernel", rows), ("operation", operation))]
    return "\n".join([*lines, "", *said, *_missing(run), ""])


def _slower(rows: pd.DataFrame) -> str:
    """Where the interval of our speed-up lies below 1, worst first; ``rows`` are of one scope."""
    ours = rows[(rows["backend"] == OURS) & (rows["speedup_vs_fa4_ci_high"] < 1)].sort_values("speedup_vs_fa4")
    said = [f"{name} {', '.join(f'`{row.case}` ({row.speedup_vs_fa4:.2f}x)' for row in found.itertuples())}"
            for direction, name in DIRECTIONS.items() if len(found := ours[ours["direction"] == direction])]
    return "; ".join(said) or "no row"


def _missing(run: RunData) -> list[str]:
    """What the run's config asks for and the run lacks."""
    lacking = not_run(run)
    backends = len(run.facts["config"]["backends"]) if run.facts else 0
    said = []
    for case, found in lacking.groupby("case", sort=False):
        who = "all backends" if len(found) == backends else ", ".join(found["backend"])
        said.append(f"`{case}` ({who})")
    return ["", f"Not in this run: {', '.join(said)}."] if said else []


def _means(label: str, rows: pd.DataFrame) -> str:
    """The line of geometric means of the speed-ups; ``rows`` are of one scope."""
    means = {each.direction: f"{each.mean:.2f}x" for each in mean_speedups(rows) if each.backend == OURS}
    return f"| **{label}** | " + " | ".join(f"| | **{means[direction]}**" for direction in DIRECTIONS) + " |"


def _cells(found: pd.DataFrame) -> list[str]:
    """TFLOP/s of both, or the status of a row without a time, and the speed-up."""
    by_backend = found.set_index("backend")
    cells = []
    for name in (OURS, RIVAL):
        row = by_backend.loc[name]
        cells.append(f"{row['tflops']:.0f}" if row["status"] == "ok" else str(row["status"]))
    speedup = by_backend.loc[OURS, "speedup_vs_fa4"]
    return [*cells, "" if pd.isna(speedup) else f"{speedup:.2f}x"]


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
