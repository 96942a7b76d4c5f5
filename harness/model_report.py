"""What `harness.model_check` found, as a CSV, as Markdown and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from harness.errors import UserError
from harness.model_check import APART, MEDIAN_LIMIT, ORDER_LIMIT, WORST_LIMIT, Matched, Point, Score, parts
from harness.summary import new_table

SHOWN = 8  # rows without a counterpart that are named
HEADINGS = ("rows", "median error", "worst error", "order right")


def check_frame(points: Sequence[Point]) -> pd.DataFrame:
    """One line per row that was both measured and modelled."""
    return pd.DataFrame([{
        "measured_run": point.run, "measured_gpu": point.gpu, "measured_commit": point.commit,
        "case_id": point.case_id, "case": point.case, "direction": point.direction, "variant": point.variant,
        "impl": point.impl, "half": point.half,
        "measured_ms": float(f"{point.measured_ms:.6g}"), "modelled_ms": float(f"{point.modelled_ms:.6g}"),
        "error": round(point.error, 4), "bound_by": point.bound_by} for point in points])


def write_check(csv: Path, markdown: Path, matched: Matched, modelled: str) -> None:
    """Write both files; ``modelled`` says by which machine's description. Raises `UserError` if that fails."""
    try:
        csv.parent.mkdir(parents=True, exist_ok=True)
        check_frame(matched.points).to_csv(csv, index=False, lineterminator="\n")
        markdown.write_text(check_markdown(matched, modelled), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or csv}: can't be written: {error.strerror or error}") from None


def check_markdown(matched: Matched, modelled: str) -> str:
    """What was held against what, the scores, the rows, and what has no counterpart."""
    points = matched.points
    measured = "; ".join(dict.fromkeys(f"{point.run} on {point.gpu}, kernels of {point.commit or 'an unknown commit'}"
                                       for point in points))
    lines = [
        "# Modelled against measured", "",
        f"Modelled: {modelled}. Measured: {measured}. Kernel scope. The error is modelled over measured, less 1; "
        f"median and worst are of its absolute value. Limits: median {MEDIAN_LIMIT:.0%}, worst {WORST_LIMIT:.0%}, "
        f"order right in {ORDER_LIMIT:.0%} of the pairs of a case's variants that were measured more than {APART:.0%} "
        "apart.", "",
        *_markdown(["rows of", *HEADINGS], [[name, *_cells(score)] for name, score in parts(points).items()], 1), "",
        *_markdown(["case", "direction", "variant", "half", "measured ms", "modelled ms", "error", "bound by"],
                   [_row(point) for point in points], 4),
        *_without("Measured, but not modelled", matched.not_modelled),
        *_without("Modelled, but not measured", matched.not_measured),
        *_without("Of cases that aren't modelled", [f"{matched.other_cases} rows"] if matched.other_cases else [])]
    return "\n".join(lines) + "\n"


def check_tables(matched: Matched) -> list[Table]:
    """Rows and scores for the terminal."""
    rows = new_table("Modelled against measured", case="left", direction="left", variant="left", half="left",
                     **{"measured ms": "right", "modelled ms": "right", "error": "right", "bound by": "left"})
    for point in matched.points:
        rows.add_row(*_row(point))
    scores = new_table("Scores", **{"rows of": "left"}, **dict.fromkeys(HEADINGS, "right"))
    for name, score in parts(matched.points).items():
        scores.add_row(name, *_cells(score))
    return [rows, scores]


def verdict_lines(scores: Mapping[str, Score]) -> list[str]:
    """What the half that was held back says, a line for each limit that isn't kept."""
    held = scores["held"]
    if not held.rows:
        return ["held half: no row, so nothing is said of the limits"]
    if not held.beyond:
        return ["held half: within the limits"]
    return [f"held half: beyond the limits: {said}" for said in held.beyond]


def without_lines(matched: Matched) -> list[str]:
    """Counts of what has no counterpart, with the first few."""
    found = (("measured, but not modelled", matched.not_modelled), ("modelled, but not measured", matched.not_measured))
    said = [f"{len(names)} rows {what}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
            for what, names in found if names]
    others = [f"{matched.other_cases} rows measured of cases that aren't modelled"] if matched.other_cases else []
    return said + others


def _row(point: Point) -> list[str]:
    return [point.case, point.direction, point.variant, point.half, f"{point.measured_ms:.4g}",
            f"{point.modelled_ms:.4g}", f"{point.error:+.1%}", point.bound_by]


def _cells(score: Score) -> list[str]:
    worst = "-" if score.worst is None else f"{score.worst.error:+.1%} ({score.worst.name})"
    order = f"{score.ordered} of {score.pairs} pairs" if score.pairs else "no pair"
    return [str(score.rows), "-" if score.median is None else f"{score.median:.1%}", worst, order]


def _without(title: str, names: Sequence[str]) -> list[str]:
    return ["", f"{title}: {'; '.join(names)}."] if names else []


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> list[str]:
    """A table, the first ``text`` columns of which are texts."""
    marks = [":--"] * text + ["--:"] * (len(headings) - text)
    return ["| " + " | ".join(cells) + " |" for cells in (headings, marks, *rows)]
