"""`harness plot` and `harness ablation`: what is made of a run's records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.base import (
    CsvPath,
    Scope,
    TableFormat,
    app,
    examples,
    make_console,
    read_modelled,
    read_rows,
    show_plots,
    write_plots,
)
from harness.errors import UserError


@app.command("plot", epilog=examples(
    "harness plot results/runs/<run>/gem.csv",
    "harness plot results/runs/<run>/gem.csv --scope operation --out plots"))
def plot_command(
    csv: CsvPath,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory to write; default plots/ beside the CSV.")] = None,
    scope: Annotated[Scope | None, typer.Option(
        "--scope", help="Rows to draw; default kernel, or operation where there are no others.")] = None,
) -> None:
    """Draw the plots of a run's records as PNG and SVG; of modelled figures one of their own, hatched."""
    from harness.model_plots import draw_modelled
    from harness.model_records import is_modelled

    target = out or csv.parent / "plots"
    if is_modelled(csv):
        if scope is Scope.operation:
            raise UserError(f"--scope: got operation, but {csv} holds modelled figures, which are of kernel scope")
        rows = read_modelled(csv)
        show_plots(target, lambda folder: draw_modelled(rows, folder))
    else:
        write_plots(read_rows(csv), target, scope.value if scope else None)


@app.command("ablation", epilog=examples(
    "harness ablation results/runs/<run>/ablation_fwd.csv",
    "harness ablation results/runs/<run>/ablation_bwd.csv --full jfa_default --format markdown"))
def ablation_command(
    csv: CsvPath,
    full: Annotated[str, typer.Option("--full", metavar="NAME", help="Backend with every switch on.")] = "jfa",
    scope: Annotated[Scope, typer.Option("--scope", help="Rows to compare.")] = Scope.kernel,
    form: Annotated[TableFormat, typer.Option("--format", help="How to write the table.")] = TableFormat.table,
) -> None:
    """Tabulate what each switch is worth: the latency of each variant over that of the full kernel."""
    from harness.ablation import ablate, ablation_markdown, ablation_table
    from harness.backends.registry import BACKENDS
    from harness.model_records import is_modelled
    from harness.summary import DIRECTIONS, print_table

    modelled = is_modelled(csv)
    records = read_modelled(csv) if modelled else read_rows(csv)
    what = "Latency"
    if modelled:
        what = f"Latency modelled for {' / '.join(dict.fromkeys(records['machine']))}, not measured,"
        records = records.assign(**dict.fromkeys(("latency_ms", "latency_ms_ci_low", "latency_ms_ci_high"),
                                                 records["predicted_ms"]))
    rivals = tuple(name for name in BACKENDS if name != full)
    try:
        ratios = ablate(records, full, scope.value, rivals)
    except UserError as error:
        raise UserError(f"{csv}: {error}") from None
    if modelled:
        ratios = ratios.assign(clear=True)  # there is no noise
    if form is TableFormat.csv:
        typer.echo(ratios.to_csv(index=False, lineterminator="\n"), nl=False)
    elif form is TableFormat.markdown:
        typer.echo(ablation_markdown(ratios, full, what))
    else:
        for direction in DIRECTIONS:
            if (ratios["direction"] == direction).any():
                print_table(make_console(), ablation_table(ratios, direction, full, what))
