"""Two runs side by side, for a person: what `harness.regression.comparison` finds, as tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd

from harness import plot_parts as parts
from harness.errors import UserError
from harness.regression.comparison import Comparison, compare
from harness.regression.comparison_output import differences, value_text
from harness.regression.forest import forest_figure
from harness.regression.measures import Measure
from harness.regression.runs import Refused, load_run
from harness.report.show import Note, Picture, Table
from harness.statistics import Interval


def compare_runs(before: Path | str, after: Path | str, by: str = "latency", backend: str | None = None) -> Comparison:
    """The comparison of two records CSVs with their raw samples beside them.

    ``by`` is ``latency``, ``speedup`` (over FA4) or ``floor_share``. Raises `UserError` where they can't be compared.
    """
    try:
        return compare(load_run(Path(before)), load_run(Path(after)), by=Measure(by), backend=backend,
                       names=("before", "after"))
    except Refused as error:
        raise UserError(str(error)) from None


def compare_speedups(before: Path | str, after: Path | str, backend: str = "jfa") -> Comparison | str:
    """The same of a backend's speed-up over FA4; where a run has none, a sentence that says so."""
    try:
        return compare_runs(before, after, "speedup", backend)
    except UserError as error:
        return str(error)


def verdict(comparison: Comparison | str) -> Note:
    """How many rows are clearly faster, clearly slower, or neither, in words; or why there is no comparison."""
    if isinstance(comparison, str):
        return Note(f"Not compared: {comparison}.")
    faster, slower = (sum(beyond(row.ratio) for row in comparison.rows) for beyond in (_above, _below))
    record = comparison.rows[0].b
    by = comparison.by.value.replace("_", " ")
    return Note(f"Measured on {record.gpu or 'an unnamed device'}. Of {len(comparison.rows)} rows with a time in both "
                f"runs, by {by}, **{faster}** are faster after, **{slower}** slower, "
                f"and {len(comparison.rows) - faster - slower} can't be told apart: their 95 % interval holds 1. With "
                "so many rows, some lie beyond by chance alone.")


def means(comparison: Comparison) -> Table:
    """Geometric means of the ratio by backend and direction."""
    return Table(pd.DataFrame([(name, *_ratio_cells(ratio), str(count))
                               for name, (ratio, count) in comparison.means.items()],
                              columns=["backend, direction", "after / before (speed)", "95 %", "rows"]))


def changed_rows(comparison: Comparison) -> Table | Note:
    """Each row whose interval doesn't hold 1, the greatest slow-down first."""
    found = sorted((row for row in comparison.rows if _above(row.ratio) or _below(row.ratio)),
                   key=lambda row: row.ratio.value)
    if not found:
        return Note("None: every interval holds 1.")
    return Table(pd.DataFrame(
        [(row.label, value_text(row.a, comparison.by), value_text(row.b, comparison.by), *_ratio_cells(row.ratio))
         for row in found], columns=["row", "before", "after", "after / before (speed)", "95 %"]))


def what_differs(comparison: Comparison) -> Note:
    """Versions, commits, ceilings and whatever else is not the same, and what was left out."""
    lines: Sequence[str] = differences(comparison)
    return Note("\n".join(f"- {line}" for line in lines) if lines else "Nothing: both ran with the same versions.")


def forest(comparison: Comparison | str) -> Picture:
    """The ratio of each row with its interval, and the geometric means."""
    if isinstance(comparison, str):
        return Picture("there is no comparison", "")
    with matplotlib.rc_context(rc=parts.RC):
        return Picture(forest_figure(comparison), "Speed after over before, a line per row, with 95 % intervals")


def _ratio_cells(ratio: Interval) -> tuple[str, str]:
    return f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"


def _above(ratio: Interval) -> bool:
    return ratio.low > 1


def _below(ratio: Interval) -> bool:
    return ratio.high < 1
