"""Fills the README's table of JFA against several versions of FA4 from the committed records.

    python docs/fill_versions.py

The table stands between ``<!-- versions of CSV -->`` and ``<!-- end -->``; CSV is a path from the repository's root. A
ratio is a quotient of medians of one run, in which the backends took turns.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from scipy import stats

from harness.plot_parts import caption
from harness.records import read_records

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TABLE = re.compile(r"(<!-- versions of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
OURS = "jfa"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def filled(text: str) -> str:
    """The README with its table as the records have it."""
    return TABLE.sub(lambda match: match[1] + table(read_records(ROOT / match[2])) + match[3], text)


def table(records: pd.DataFrame) -> str:
    """Markdown: the measurement's label, then by case JFA's TFLOP/s and its lead over each version."""
    rows = records[records["scope"] == "kernel"]
    rivals = {name: found["backend_version"].iloc[0]
              for name, found in rows[rows["backend"] != OURS].groupby("backend", sort=False)}
    latency = rows.pivot_table(index=["case", "direction"], columns="backend", values="latency_ms", sort=False)
    tflops = rows[rows["backend"] == OURS].set_index(["case", "direction"])["tflops"]
    ratios = latency[list(rivals)].div(latency[OURS], axis=0)
    heads = [text for name in DIRECTIONS.values()
             for text in (f"{name}: JFA", *(f"over {version}" for version in rivals.values()))]
    lines = [caption(rows) + " JFA: TFLOP/s of useful work; over: time of that FA4 / time of JFA.", "",
             "| case | " + " | ".join(heads) + " |", "|---" + "|---:" * len(heads) + "|"]
    for case in rows["case"].unique():
        cells = [cell for direction in DIRECTIONS
                 for cell in (f"{tflops[case, direction]:.0f}",
                              *(f"{ratios.loc[(case, direction), name]:.2f}x" for name in rivals))]
        lines.append(f"| `{case}` | " + " | ".join(cells) + " |")
    means = [cell for direction in DIRECTIONS
             for cell in ("", *(f"**{stats.gmean(ratios.xs(direction, level='direction')[name]):.2f}x**"
                                for name in rivals))]
    return "\n".join([*lines, "| **geometric mean** | " + " | ".join(means) + " |", ""])


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
