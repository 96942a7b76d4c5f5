"""What the gate prints and writes: a table for the terminal, Markdown for a job's summary, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from harness.errors import UserError
from harness.regression.gate import GateResult, GateRow
from harness.regression.measures import Measure
from harness.regression.static import StaticResult
from harness.regression.verdicts import Verdict
from harness.summary import new_table

GATE_SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """What a gate found: of times, of compiled kernels, or of both."""

    result: GateResult | None
    static: tuple[StaticResult, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether either fails."""
        return bool(self.result and self.result.failed) or any(each.findings for each in self.static)


STYLES = {Verdict.FAST: "green", Verdict.SLOW: "bold red", Verdict.SAME: "", Verdict.UNDECIDED: "yellow",
          Verdict.MISSING: "bold red", Verdict.BROKEN: "bold red"}
ORDER = (Verdict.BROKEN, Verdict.MISSING, Verdict.SLOW, Verdict.UNDECIDED, Verdict.FAST, Verdict.SAME)


def headline(result: GateResult) -> str:
    """One line: passed or failed, and how many rows of each verdict."""
    counts = ", ".join(f"{result.count(verdict)} {verdict.value}" for verdict in ORDER if result.count(verdict))
    again = f"; re-run {len(result.runs) - 1} times" if len(result.runs) > 1 else ""
    strict = "; strict: UNDECIDED fails" if result.strict else ""
    return f"gate {'FAILED' if result.failed else 'passed'}: {counts or 'no row to judge'}{again}{strict}"


def _order(result: GateResult) -> list[GateRow]:
    """Worst first."""
    return sorted(result.rows, key=lambda row: ORDER.index(row.verdict))


def gate_table(result: GateResult) -> Table:
    """A line a row, in the baseline's order."""
    table = new_table(f"Against {result.baseline.csv}", row="left", verdict="left", before="right", now="right",
                      why="left")
    for row in result.rows:
        table.add_row(row.label, Text(row.verdict.value, style=STYLES[row.verdict]), *_before_and_now(row), row.reason)
    return table


def _before_and_now(row: GateRow) -> tuple[str, str]:
    """Of the measure that decided: a speed-up, or a share of the floor."""
    if not row.measures:
        return "", ""
    which, judged = next(iter(row.measures.items()))
    if which is Measure.SPEEDUP:
        return f"{judged.before:.3f}x", f"{judged.now:.3f}x"
    return f"{judged.before:.1%}", f"{judged.now:.1%}"


def markdown(report: Report) -> str:
    """For the summary page of a CI job."""
    parts = [_gate_markdown(report.result)] if report.result else []
    for each in report.static:
        lines = [f"## static gate {'FAILED' if each.findings else 'passed'}: {len(each.findings)} findings", "",
                 f"Compiled kernels against `{each.baseline}`; no GPU took part.", "",
                 *(f"- {_cell(finding)}" for finding in each.findings)]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def _gate_markdown(result: GateResult) -> str:
    run, baseline = result.runs[0], result.baseline
    lines = [f"## {headline(result)}", "",
             f"`{run.run_id}` (commit {_commit(run.values('commit'))}) against `{baseline.run_id}` (commit "
             f"{_commit(baseline.values('commit'))}), both measured on {run.gpu}. `x` is the speed-up over FA4 in the "
             "same run, `%` the share of the floor.", "",
             "| row | verdict | before | now | why |", "|---|---|---:|---:|---|"]
    for row in _order(result):
        mark = f"**{row.verdict.value}**" if row.verdict is not Verdict.SAME else row.verdict.value
        lines.append(f"| {' | '.join(map(_cell, [row.label, mark, *_before_and_now(row), row.reason]))} |")
    lines += ["", *(f"- {_cell(note)}" for note in result.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _commit(values: Iterable[str]) -> str:
    return ", ".join(values) or "unknown"


def as_json(report: Report) -> dict[str, Any]:
    """Everything, for other programs. Changes, intervals and thresholds are ratios of speed, now over before."""
    return {"gate_schema": GATE_SCHEMA, "passed": not report.failed,
            "gate": _gate_json(report.result) if report.result else None,
            "static": [{"baseline": str(each.baseline), "findings": list(each.findings)} for each in report.static]}


def _gate_json(result: GateResult) -> dict[str, Any]:
    return {
        "counts": {verdict.value: result.count(verdict) for verdict in Verdict},
        "runs": [run.run_id for run in result.runs], "baseline": result.baseline.run_id, "gpu": result.baseline.gpu,
        "notes": list(result.notes), "rows": [_row_json(row) for row in result.rows]}


def _row_json(row: GateRow) -> dict[str, Any]:
    record = row.record
    measures = {}
    for which, judged in row.measures.items():
        low, high = judged.change.interval
        measures[which.value] = {
            "before": judged.before, "now": judged.now, "change": judged.ratio, "low": low, "high": high,
            "threshold": math.exp(-judged.change.threshold), "noise_floor": math.exp(-judged.change.noise_floor),
            "p_holm": judged.decision.p_holm, "verdict": judged.decision.verdict.value}
    return {"case_id": record.case_id, "case": record.case, "backend": record.backend, "direction": record.direction,
            "scope": record.scope, "verdict": row.verdict.value, "reason": row.reason, "measures": measures}


def write_text(path: Path, text: str) -> None:
    """Write a file, its folder too. Raises `UserError` if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error


def write_json(path: Path, report: Report) -> None:
    """`as_json` as a file."""
    write_text(path, json.dumps(as_json(report), indent=1) + "\n")
