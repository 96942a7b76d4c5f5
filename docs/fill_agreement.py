"""Fills docs/tritonbench.md's table from the committed agreement of the ways to a latency.

    python docs/fill_agreement.py

It stands between ``<!-- agreement of CSV -->`` and ``<!-- end -->``; CSV is a path from the repository's root, as
`harness.integrations.tritonbench.agreement` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tritonbench.md"
WAYS = {"cuda_events_ms": "`cuda_events`", "cuda_events_sustained_ms": "`..._sustained`",
        "tritonbench_ms": "engine `tritonbench`", "operator_ms": "its runner"}
TABLE = re.compile(r"(<!-- agreement of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with its table as the records have it."""
    return TABLE.sub(lambda match: match[1] + table(pd.read_csv(ROOT / match[2])) + match[3], text)


def table(rows: pd.DataFrame) -> str:
    """Markdown: what was measured on what, a line a row, and how far do_bench is from our timer, in ranges."""
    known = rows.dropna(subset="torch").iloc[0]
    lines = [f"Measured on {known.gpu}, kernel scope, TritonBench `{known.revision}` (the last run: driver "
             f"{known.driver}, torch {known.torch}, {known.triton}). Medians in ms, and the difference from "
             "`cuda_events`.", "",
             "| run (UTC) | case | backend | direction | " + " | ".join(WAYS.values()) + " |",
             "|---|---|---|---" + "|---:" * len(WAYS) + "|"]
    for row in rows.itertuples():
        ours, *others = (getattr(row, way) for way in WAYS)
        cells = [row.run.replace("T", " ").removesuffix("Z"), f"`{row.case}`", row.backend, row.direction,
                 f"{ours:.3f}", *(_against(latency, ours) for latency in others)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Engine `tritonbench` against `cuda_events`: " + "; ".join(
        f"{backend} {direction} {_range(found.tritonbench_ms / found.cuda_events_ms)}"
        for (backend, direction), found in rows.groupby(["backend", "direction"], sort=False)) + ".", ""]
    return "\n".join(lines)


def _against(latency_ms: float, ours_ms: float) -> str:
    return "not measured" if pd.isna(latency_ms) else f"{latency_ms:.3f} ({latency_ms / ours_ms - 1:+.1%})"


def _range(ratios: pd.Series[float]) -> str:
    return f"{ratios.min() - 1:+.1%} to {ratios.max() - 1:+.1%}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
