"""What each switch of a kernel is worth: every variant's latency over that of the full kernel, case by case."""

from __future__ import annotations

import pandas as pd
from rich.table import Table
from rich.text import Text
from scipy.stats import gmean

from harness.errors import UserError
from harness.summary import DIRECTIONS, new_table


def ablate(records: pd.DataFrame, full: str = "jfa", scope: str = "kernel",
           rivals: tuple[str, ...] = ()) -> pd.DataFrame:
    """One row per (variant, direction, case): ``ratio`` is the variant's latency over that of the backend ``full``.

    A ratio of 1.07 says that the switch which the variant lacks is worth 7 %. ``clear`` says whether the bootstrap
    intervals of the two medians are apart; ``status`` is that of the variant's row, or names ``full`` where only that
    one failed (``ratio`` is NaN unless both are ok). Variants are all backends but ``full`` and ``rivals``. Raises
    `UserError` when there is nothing to compare.
    """
    rows = records[records["scope"] == scope]
    names = list(dict.fromkeys(rows["backend"]))
    variants = [name for name in names if name != full and name not in rivals]
    if full not in names:
        held = ", ".join(names) or "none"
        raise UserError(f"no {scope} row of the full kernel {full!r}; backends with such rows: {held}")
    if not variants:
        raise UserError(f"no variant of {full!r} to compare; an ablation config gives each variant a name of its own")
    key = ["case_id", "case", "direction"]
    columns = ["status", "latency_ms", "latency_ms_ci_low", "latency_ms_ci_high"]
    pairs = rows[rows["backend"].isin(variants)][["backend", *key, *columns]].merge(
        rows[rows["backend"] == full][[*key, *columns]], on=key, suffixes=("", "_full"), how="left")
    return pd.DataFrame({
        "variant": pairs["backend"], "direction": pairs["direction"], "scope": scope, "case_id": pairs["case_id"],
        "case": pairs["case"],
        "status": pairs["status"].where((pairs["status"] != "ok") | (pairs["status_full"] == "ok"),
                                        full + " " + pairs["status_full"]),
        "ratio": pairs["latency_ms"] / pairs["latency_ms_full"],
        "clear": (pairs["latency_ms_ci_low"] > pairs["latency_ms_ci_high_full"])
        | (pairs["latency_ms_ci_high"] < pairs["latency_ms_ci_low_full"])})


def ablation_cells(ratios: pd.DataFrame, direction: str) -> tuple[list[str], list[list[str]]]:
    """``(headings, rows)`` of one direction: variant, geometric mean, then each case; rows in the order given.

    A trailing ``~`` marks a ratio whose intervals overlap; a case without one shows its status. The mean is over the
    cases with a ratio; their number is added where some have none.
    """
    here = ratios[ratios["direction"] == direction]
    cases = list(dict.fromkeys(zip(here["case_id"], here["case"], strict=True)))
    rows = []
    for variant, found in here.groupby("variant", sort=False):
        by_case = found.set_index("case_id")
        known = found["ratio"].dropna()
        mean = f"{gmean(known):.3f}" if len(known) else "-"
        if 0 < len(known) < len(cases):
            mean += f" ({len(known)} of {len(cases)})"
        rows.append([str(variant), mean, *(_cell(by_case, case_id) for case_id, _ in cases)])
    return ["variant", "geometric mean", *(str(name) for _, name in cases)], rows


def _cell(by_case: pd.DataFrame, case_id: str) -> str:
    if case_id not in by_case.index:
        return "-"
    row = by_case.loc[case_id]
    if pd.isna(row["ratio"]):
        return str(row["status"]) if pd.notna(row["status"]) else "-"
    return f"{row['ratio']:.3f}" + ("" if row["clear"] else "~")


def _unclear(rows: list[list[str]]) -> bool:
    return any(cell.endswith("~") for row in rows for cell in row)


def ablation_table(ratios: pd.DataFrame, direction: str, full: str, what: str = "Latency") -> Table:
    """The cells of one direction for the terminal; ``what`` the ratios are of."""
    headings, rows = ablation_cells(ratios, direction)
    scope = ratios["scope"].iloc[0]
    noise = " (~: within noise)" if _unclear(rows) else ""
    table = new_table(f"{what} over that of {full}, {direction}, {scope} scope{noise}")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def ablation_markdown(ratios: pd.DataFrame, full: str, what: str = "Latency") -> str:
    """The cells of all directions as Markdown tables, each under a line that says what it shows."""
    parts = []
    for direction in DIRECTIONS:
        if not (ratios["direction"] == direction).any():
            continue
        headings, rows = ablation_cells(ratios, direction)
        scope = ratios["scope"].iloc[0]
        noise = "; `~`: within noise" if _unclear(rows) else ""
        parts += [f"{what} over that of `{full}`, {direction}, {scope} scope{noise}.", ""]
        parts += ["| " + " | ".join(row) + " |" for row in (headings, [":--"] + ["--:"] * (len(headings) - 1), *rows)]
        parts.append("")
    return "\n".join(parts)
