"""Tables for the terminal: what a run measured, case by case, what failed and why, and the means over FA4."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.headline import SCOPES, mean_speedups
from harness.units import significant, throughput_unit

DIRECTIONS = ("fwd", "bwd")


def print_summary(console: Console, records: pd.DataFrame) -> None:
    """Print the tables of ``records`` (as `harness.records.to_frame` gives, one row or more)."""
    scope = "kernel" if (records["scope"] == "kernel").any() else "operation"
    print_table(console, case_table(records[records["scope"] == scope], scope))
    means = mean_table(records)
    if means is not None:
        print_table(console, means)
    for line in headline_lines(records):
        console.print(Text(line, style="bold"), soft_wrap=True)
    for title, lines in (("Rows without a time:", failures(records)), ("Remarks on timed rows:", remarks(records))):
        if lines:
            console.print(title, style="bold")
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)
    counts = records["status"].value_counts()
    console.print(f"{len(records)} rows: " + ", ".join(f"{count} {status}" for status, count in counts.items()))


def print_table(console: Console, table: Table) -> None:
    """Print a table at its full width, so that no cell is cut or wrapped, however narrow the terminal."""
    wanted = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    before, console.width = console.width, max(wanted, console.width)
    console.print(table)
    console.width = before


def new_table(title: str, **columns: str) -> Table:
    """A table in the one style of this CLI; ``columns`` map headings to ``left`` or ``right``."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for heading, justify in columns.items():
        table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
    return table


def case_table(rows: pd.DataFrame, scope: str) -> Table:
    """One line per (case, backend): throughput, speed-up over FA4 and share of the floor, forward and backward."""
    factor, unit = throughput_unit(rows["tflops"].max() if rows["tflops"].notna().any() else 1.0)
    directions = [name for name in DIRECTIONS if (rows["direction"] == name).any()]
    table = new_table(f"Medians, {scope} scope", case="left", backend="left")
    for name in directions:
        for heading in (f"{name} {unit}", "x FA4", "floor"):
            table.add_column(heading, justify="right", no_wrap=True)
    for _, case in rows.groupby("case_id", sort=False):
        for index, (backend, found) in enumerate(case.groupby("backend", sort=False)):
            label = str(case["case"].iloc[0]) if index == 0 else ""
            cells: list[Text | str] = [label, Text(str(backend), style="bold" if backend == "jfa" else "")]
            for name in directions:
                cells += _figures(found[found["direction"] == name], factor)
            table.add_row(*cells)
        table.add_section()
    return table


def _figures(row: pd.DataFrame, factor: float) -> list[Text | str]:
    """Throughput, speed-up and share of one row; its status in place of the first where there is no time."""
    if row.empty:
        return ["", "", ""]
    found = row.iloc[0]
    if found["status"] != "ok":
        style = "dim" if found["status"] in ("unsupported", "untimed") else "red"
        return [Text(str(found["status"]), style=style), "", ""]
    speedup, share = found["speedup_vs_fa4"], found["floor_share"]
    return [significant(found["tflops"] * factor), "" if pd.isna(speedup) else f"{speedup:.2f}x",
            "" if pd.isna(share) else f"{share:.0%}" if share >= 0.005 else "<1%"]


def mean_table(records: pd.DataFrame) -> Table | None:
    """Geometric means of the speed-up over FA4, with the number of cases of each; None without any."""
    means = {(each.backend, each.scope, each.direction): each for each in mean_speedups(records)}
    if not means:
        return None
    kinds = [(scope, name) for scope in SCOPES for name in DIRECTIONS
             if any(key[1:] == (scope, name) for key in means)]
    table = new_table("Geometric mean of the speed-up over FA4 (cases)", backend="left")
    for scope, name in kinds:
        table.add_column(f"{scope} {name}", justify="right", no_wrap=True)
    for backend in dict.fromkeys(key[0] for key in means):
        found = [means.get((backend, *kind)) for kind in kinds]
        table.add_row(Text(backend, style="bold" if backend == "jfa" else ""),
                      *(f"{each.mean:.2f}x ({each.cases})" if each else "" for each in found))
    return table


def headline_lines(records: pd.DataFrame) -> list[str]:
    """What there is to say of ``jfa`` over FA4: a line per scope, with the means' 95 % intervals."""
    ours = [each for each in mean_speedups(records) if each.backend == "jfa"]
    lines = []
    for scope in SCOPES:
        said = [f"{each.direction} {each.mean:.2f}x [{each.low:.2f}, {each.high:.2f}] over {each.cases} cases"
                for each in ours if each.scope == scope]
        if said:
            lines.append(f"jfa over fa4, {scope} scope: {', '.join(said)}")
    return lines


def failures(records: pd.DataFrame) -> list[str]:
    """A line for each distinct (backend, status, message), with the cases and directions that it befell."""
    bad = records[records["status"] != "ok"]
    return list(_grouped(bad.assign(said=bad["status"] + ": " + bad["message"])))


def remarks(records: pd.DataFrame) -> list[str]:
    """The same for what the messages of `ok` rows add, such as why a fallback ran."""
    good = records[(records["status"] == "ok") & (records["message"] != "")]
    return list(_grouped(good.assign(said=good["message"])))


def _grouped(rows: pd.DataFrame) -> Iterator[str]:
    for (backend, said), found in rows.groupby(["backend", "said"], sort=False):
        cases = list(dict.fromkeys(found["case"].astype(str)))
        where = ", ".join(cases[:4]) + (f" and {len(cases) - 4} more cases" if len(cases) > 4 else "")
        directions = "/".join(name for name in DIRECTIONS if (found["direction"] == name).any())
        yield f"{backend}: {' '.join(str(said).split())} [{directions}: {where}]"
