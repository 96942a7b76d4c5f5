"""What a comparison prints: its rows, what differs between the two sides, and both as Markdown."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from harness.records import Record
from harness.regression.comparison import Comparison
from harness.regression.measures import Measure
from harness.statistics import Interval
from harness.summary import new_table
from harness.units import significant


def comparison_table(comparison: Comparison) -> Table:
    """A line a row, then the geometric means. The ratio is B's speed over A's."""
    a, b = comparison.names
    table = new_table(f"{a} against {b}: above 1, {b} is faster", row="left", A="right", B="right", **{
        "B / A": "right", "95 %": "right"})
    for row in comparison.rows:
        table.add_row(row.label, value_text(row.a, comparison.by), value_text(row.b, comparison.by), *_ratio(row.ratio))
    table.add_section()
    for name, (ratio, n) in comparison.means.items():
        table.add_row(f"geometric mean, {name} ({n})", "", "", *_ratio(ratio))
    return table


def value_text(record: Record, by: Measure) -> str:
    """What is compared of one row, with its unit; empty where the row has none."""
    value = {Measure.LATENCY: record.latency_ms, Measure.SPEEDUP: record.speedup_vs_fa4,
             Measure.FLOOR_SHARE: record.floor_share}[by]
    unit = {Measure.LATENCY: " ms", Measure.SPEEDUP: "x", Measure.FLOOR_SHARE: ""}[by]
    return "" if value is None else f"{significant(value, 4)}{unit}"


def _ratio(ratio: Interval) -> tuple[Text, str]:
    style = "green" if ratio.low > 1 else "red" if ratio.high < 1 else ""
    return Text(f"{ratio.value:.3f}", style=style), f"{ratio.low:.3f} to {ratio.high:.3f}"


def differences(comparison: Comparison) -> list[str]:
    """A line for each fact that differs, and each note."""
    return [f"{what}: {a} against {b}" for what, a, b in comparison.differences] + list(comparison.notes)


def comparison_markdown(comparison: Comparison) -> str:
    """The same as Markdown."""
    a, b = comparison.names
    lines = [f"## {a} against {b}", "", f"Ratios are the speed of {b} over {a}: above 1, {b} is faster. Measured on "
             f"{comparison.rows[0].a.gpu or 'an unnamed device'}.", "",
             "| row | A | B | B / A | 95 % interval |", "|---|---:|---:|---:|---:|"]
    for row in comparison.rows:
        value, interval = _ratio(row.ratio)
        both = f"{value_text(row.a, comparison.by)} | {value_text(row.b, comparison.by)}"
        lines.append(f"| {row.label} | {both} | {value} | {interval} |")
    for name, (ratio, n) in comparison.means.items():
        value, interval = _ratio(ratio)
        lines.append(f"| **geometric mean, {name} ({n})** | | | **{value}** | {interval} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in differences(comparison))]).rstrip() + "\n"
