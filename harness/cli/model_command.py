"""`harness model`: modelled times of TLX kernels on a GPU that needn't be here, and how far off they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli.base import INTERRUPTED, app, examples, make_console, show_plots
from harness.cli.paths import config_path, records_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.model import Modelled
    from harness.model_check import Matched
    from harness.model_records import ModelledRecord
    from harness.records import Record

    Measured = Mapping[Path, Sequence[Record]]

MACHINE = "h200"
TRACED = 8  # rows in a trace at most


@app.command("model", epilog=examples(
    "harness model configs/gem.yaml --machine b200",
    "harness model configs/gem.yaml --machine h200 --case self_u512 --backend jfa --trace self_u512.json",
    "harness model configs/ablation_bwd.yaml --against results/baselines/nvidia-h200/ablation_bwd.csv",
    "harness model results/runs/<run>/gem.modelled.csv --against results/baselines/nvidia-h200/gem.csv"))
def model_command(
    source: Annotated[Path, typer.Argument(
        metavar="CONFIG|CSV", help="A config to model, or what an earlier `harness model` wrote.")],
    machine: Annotated[str | None, typer.Option(
        "--machine", metavar="NAME", help="h200 (default), b200 or a YAML file that describes a GPU.")] = None,
    impl: Annotated[str | None, typer.Option(
        "--impl", metavar="NAME", help="hopper or blackwell; default the machine's.")] = None,
    case: Annotated[list[str] | None, typer.Option(
        "--case", metavar="ID", help="Only this case (its id or name); may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option(
        "--backend", metavar="NAME", help="Only this variant (its name in the config); may be repeated.")] = None,
    against: Annotated[list[Path] | None, typer.Option(
        "--against", metavar="CSV", help="Hold the figures against this run's measured ones; may be repeated.")] = None,
    trace: Annotated[Path | None, typer.Option(
        "--trace", metavar="FILE", help=f"Write a trace of the rows, {TRACED} at most, for Perfetto.")] = None,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory to write; default results/runs/<config>-modelled-<machine>-<UTC "
        "stamp>, or where CSV lies.")] = None,
    jobs: Annotated[int | None, typer.Option(
        "--jobs", metavar="N", min=1, help="Processes that share the rows; default 1.")] = None,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Write no plots.")] = False,
) -> None:
    """Predict a config's times on a machine with the simulator's timing model: modelled, none of them measured.

    Writes <config>.modelled.csv, which no command takes for measurements, and plots; with --against also a table of
    errors. The exit status is 1 if no row could be modelled, or if the error is beyond its limits on the half of the
    measurements that nothing was fitted on.
    """
    from harness.model_plots import draw_modelled
    from harness.model_records import SUFFIX, is_modelled, load_modelled, modelled_frame
    from harness.model_table import model_table
    from harness.records import load_records
    from harness.summary import print_table

    measured = {path: load_records(records_path(path)) for path in against or ()}
    if source.suffix == ".csv":
        path = records_path(source)
        if not is_modelled(path):
            raise UserError(f"{path}: holds no modelled figures; allowed: a config, or a <config>{SUFFIX} that harness "
                            "model wrote; measured records go to --against")
        given = {"--machine": machine, "--impl": impl, "--case": case, "--backend": backend, "--trace": trace,
                 "--jobs": jobs}
        if unused := next((flag for flag, value in given.items() if value), None):
            raise UserError(f"{unused}: is for a config; {path} is modelled already")
        directory, records, interrupted = out or path.parent, load_modelled(path), False
    else:
        path, records, interrupted = _model(config_path(source), machine or MACHINE, impl, case, backend, measured,
                                            trace, out, jobs or 1)
        directory = path.parent
    if not records:
        raise UserError(f"{path}: holds a header and no rows")
    console = make_console()
    print_table(console, model_table(records))
    matched = _check(console, measured, records, directory) if measured else None
    if not no_plots:
        frame = modelled_frame(records)
        show_plots(directory / "plots", lambda folder: draw_modelled(frame, folder, matched.points if matched else ()))
    typer.echo(f"modelled, not measured: {path}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    _end(records, matched)


def _model(config: Path, machine: str, impl: str | None, case: Sequence[str] | None, backend: Sequence[str] | None,
           measured: Measured, trace: Path | None, out: Path | None,
           jobs: int) -> tuple[Path, list[ModelledRecord], bool]:
    """Model a config; the file, its rows and whether Ctrl-C ended it early."""
    from harness.cases import expand
    from harness.config import load_config
    from harness.runner import RUNS, choose_cases

    loaded = load_config(config)
    cases = choose_cases(expand(loaded), case)
    try:
        from harness import model
    except ImportError as error:
        raise UserError(f"the simulator can't be imported: {error}; it needs greenlet and a Triton with TLX") from None
    from harness.model_check import demand_same_gpu
    from harness.model_records import SUFFIX, append_modelled
    from harness.model_trace import write_trace

    described = model.choose_machine(machine)
    demand_same_gpu(measured, described.name)
    run_id = model.name_model_run(loaded, described)
    tasks = model.plan(loaded, cases, backend or None, model.choose_impl(described, impl), described, run_id,
                       events=trace is not None)
    if trace is not None and len(tasks) > TRACED:
        raise UserError(f"--trace: got {len(tasks)} rows; allowed: {TRACED} at most, choose by --case and --backend")
    path = (out or RUNS / run_id) / f"{loaded.name}{SUFFIX}"
    if path.exists():
        raise UserError(f"{path}: holds modelled figures already; choose another --out")
    rows: list[Modelled] = []
    interrupted = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Console(stderr=True).status("") as status:  # shows on a terminal only
            for row in model.model(tasks, jobs):
                append_modelled(path, [row.record])
                rows.append(row)
                status.update(f"{len(rows)} of {len(tasks)} rows; {row.record.case}, {row.record.direction}, "
                              f"{row.record.backend}")
    except OSError as error:
        raise UserError(f"{error.filename or path}: can't be written: {error.strerror or error}") from None
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
        typer.echo(f"interrupted; {len(rows)} of {len(tasks)} rows were modelled, and are kept", err=True)
    if trace is not None:
        write_trace(trace, rows)
        typer.echo(f"trace, modelled: {trace}; open it at ui.perfetto.dev")
    return path, [row.record for row in rows], interrupted


def _check(console: Console, measured: Measured, records: Sequence[ModelledRecord], out: Path) -> Matched:
    from harness.model_check import demand_same_gpu, match, parts
    from harness.model_report import check_tables, verdict_lines, without_lines, write_check
    from harness.summary import print_table

    machine = records[0].machine
    demand_same_gpu(measured, machine)
    matched = match([row for rows in measured.values() for row in rows], records)
    if not matched.points:
        raise UserError(f"{', '.join(map(str, measured))}: no ok row of kernel scope has the lengths and the variant "
                        "of a modelled one; model the config that it was measured with")
    for table in check_tables(matched):
        print_table(console, table)
    for line in [*without_lines(matched), *verdict_lines(parts(matched.points))]:
        typer.echo(line)
    csv, markdown = out / "model_check.csv", out / "model_check.md"
    write_check(csv, markdown, matched, f"{machine}, description {records[0].machine_digest}, run {records[0].run_id}, "
                f"kernels of {records[0].commit or 'an unknown commit'}")
    typer.echo(f"check: {csv}, {markdown}")
    return matched


def _end(records: Sequence[ModelledRecord], matched: Matched | None) -> None:
    """Ends with exit status 1 where nothing was modelled, or the held half is beyond a limit."""
    from harness.model_check import HELD, parts

    if all(record.predicted_ms is None for record in records):
        typer.echo("no row could be modelled; the reasons are above", err=True)
        raise typer.Exit(1)
    if matched is not None and parts(matched.points)[HELD].beyond:
        raise typer.Exit(1)
