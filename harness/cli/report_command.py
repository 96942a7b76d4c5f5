"""`harness report`: a run, or two, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.base import CsvPath, app, examples
from harness.cli.paths import records_path


@app.command("report", epilog=examples(
    "harness report results/runs/<run>/gem.csv",
    "harness report results/runs/<run>/gem.csv --ablation results/runs/<other>/ablation_fwd.csv",
    "harness report results/runs/<new>/gem.csv --against results/runs/<old>/gem.csv --out compared.html"))
def report_command(
    csv: CsvPath,
    against: Annotated[Path | None, typer.Option(
        "--against", metavar="CSV", help="Compare with this earlier run instead of reporting on one.")] = None,
    ablation: Annotated[list[Path] | None, typer.Option(
        "--ablation", metavar="CSV", help="Ablation run to show; may be repeated; default ablation_*.csv beside CSV.",
    )] = None,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="FILE", help="File to write, .html or .ipynb; default CSV's name with .html.")] = None,
) -> None:
    """Build a report of a run from its CSV: one HTML page with the plots inside, without a GPU.

    It runs notebooks/report.py (with --against notebooks/compare.py), which you can also open and change.
    """
    from harness.report.build import build, seen_from_notebooks

    run = seen_from_notebooks(csv)
    if against is not None:
        parameters: dict[str, object] = {"BEFORE": seen_from_notebooks(records_path(against)), "AFTER": run}
        out = out or csv.with_name(f"{csv.stem}.compared.html")
        build("compare", parameters, [out])
    else:
        chosen = [seen_from_notebooks(records_path(path)) for path in ablation] if ablation else None
        out = out or csv.with_suffix(".html")
        build("report", {"RUN": run, "ABLATIONS": chosen}, [out])
    typer.echo(f"report: {out}")
