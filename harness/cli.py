"""The `harness` command. Each subcommand imports what it needs when it runs, so that `--help` is quick.

Exit status: 0 done; 1 done, but without a single usable result, or with a finding of `simulate`; 2 something that the
user can mend, in one line on stderr; 130 interrupted.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from harness.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from harness.runner import RunOptions, RunResult

LOG_WIDTH = 160  # columns where the output is no terminal
INTERRUPTED = 130


class _Group(TyperGroup):
    """Turns a `UserError` of any subcommand into its one line and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="harness", cls=_Group, add_completion=False, no_args_is_help=True, rich_markup_mode=None,
    pretty_exceptions_enable=False, help="Measures jagged attention kernels against FlashAttention-4 and others.")


class Scope(str, Enum):
    """Which rows to take."""

    kernel = "kernel"
    operation = "operation"


class TableFormat(str, Enum):
    """How to write a table."""

    table = "table"
    markdown = "markdown"
    csv = "csv"


class ScheduleMode(str, Enum):
    """When the simulator's asynchronous operations complete."""

    lazy = "lazy"
    eager = "eager"
    random = "random"


ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file, such as configs/gem.yaml.")]
CsvPath = Annotated[Path, typer.Argument(metavar="CSV", help="Records of a run, such as results/runs/.../gem.csv.")]


def main() -> None:
    """Entry point of the `harness` script."""
    try:
        app(prog_name="harness")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would only spoil the exit status


@app.command("run")
def run_command(
    config: ConfigPath,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory to write; default results/runs/<config name>-<UTC stamp>.")] = None,
    case: Annotated[list[str] | None, typer.Option(
        "--case", metavar="ID", help="Only this case (its id or name); may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option(
        "--backend", metavar="NAME", help="Only this backend (its name in the config); may be repeated.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")] = False,
    device: Annotated[str | None, typer.Option(
        "--device", help="cuda, cuda:1 or cpu; default the GPU if there is one.")] = None,
    replay: Annotated[Path | None, typer.Option(
        "--from", metavar="DIR", help="Replay the cases of the run in DIR, with its exact lengths.")] = None,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Write no plots.")] = False,
) -> None:
    """Run a config: check every backend on every case, time it, write CSV and plots, print a summary.

    Rows that fail are data, not errors: the exit status is 0 once the run is complete, or 1 if no row came out
    ok or untimed. After Ctrl-C it is 130, and what is complete is kept.
    """
    from harness import runner
    from harness.config import load_config
    from harness.progress import make_listener
    from harness.records import to_frame
    from harness.replay import load_cases
    from harness.summary import print_summary

    console = _console()
    loaded = load_config(config)
    options = runner.RunOptions(
        out_dir=out, case_ids=tuple(case) if case else None, backends=tuple(backend) if backend else None,
        resume=resume, device=device, cases=tuple(load_cases(replay)) if replay else None)
    result = runner.run(loaded, options, make_listener(console))
    records = to_frame(result.records)
    if len(records):
        print_summary(console, records)
        if not no_plots:
            _draw(records, result.out_dir / "plots", None)
        typer.echo(f"records: {result.csv_path}")
    _say_what_a_gpu_adds(records)
    if result.interrupted:
        typer.echo(_how_to_go_on(result, config, options, {"--from": replay, "--no-plots": no_plots}), err=True)
        raise typer.Exit(INTERRUPTED)
    if not records["status"].isin(["ok", "untimed"]).any():
        typer.echo("no row came out ok or untimed; the reasons are above", err=True)
        raise typer.Exit(1)


@app.command("plot")
def plot_command(
    csv: CsvPath,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory to write; default plots/ beside the CSV.")] = None,
    scope: Annotated[Scope | None, typer.Option(
        "--scope", help="Rows to draw; default kernel, or operation where there are no others.")] = None,
) -> None:
    """Draw the plots of a run's records as PNG and SVG."""
    _draw(_read(csv), out or csv.parent / "plots", scope.value if scope else None)


@app.command("cases")
def cases_command(
    config: ConfigPath,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV, with more columns.")] = False,
    tflops: Annotated[float, typer.Option(
        "--tflops", min=1e-6, help="Matmul TFLOP/s that the floor assumes; default as measured on an H200.")] = 690.0,
    tbps: Annotated[float, typer.Option(
        "--tbps", min=1e-6, help="Copy TB/s that the floor assumes; default as measured on an H200.")] = 4.3,
) -> None:
    """List a config's cases with token counts, FLOPs, bytes and the floor, without running them."""
    from harness.case_table import cases_table, describe_cases
    from harness.cases import expand
    from harness.config import load_config
    from harness.flops import Ceilings
    from harness.summary import print_table

    loaded = load_config(config)
    described = describe_cases(expand(loaded), Ceilings(tflops, tbps))
    if as_csv:
        typer.echo(described.to_csv(index=False, lineterminator="\n"), nl=False)
        return
    title = f"{loaded.name}: {len(described)} cases (floor: computed for {tflops:g} TFLOP/s and {tbps:g} TB/s)"
    print_table(_console(), cases_table(described, title))


@app.command("doctor")
def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    timeout: Annotated[float, typer.Option(
        "--timeout", metavar="S", min=1, max=1e6, help="Seconds that each backend has to answer.")] = 120.0,
) -> None:
    """Say which backends can run here and why the others can't, with versions.

    The exit status is 1 if none can.
    """
    from harness.doctor import examine, print_report

    report = examine(timeout_s=timeout)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        print_report(_console(), report)
    if not report.usable:
        raise typer.Exit(1)


@app.command("ablation")
def ablation_command(
    csv: CsvPath,
    full: Annotated[str, typer.Option("--full", metavar="NAME", help="Backend with every switch on.")] = "jfa",
    scope: Annotated[Scope, typer.Option("--scope", help="Rows to compare.")] = Scope.kernel,
    form: Annotated[TableFormat, typer.Option("--format", help="How to write the table.")] = TableFormat.table,
) -> None:
    """Tabulate what each switch is worth: the latency of each variant over that of the full kernel."""
    from harness.ablation import ablate, ablation_markdown, ablation_table
    from harness.backends.registry import BACKENDS
    from harness.summary import DIRECTIONS, print_table

    records = _read(csv)
    rivals = tuple(name for name in BACKENDS if name != full)
    try:
        ratios = ablate(records, full, scope.value, rivals)
    except UserError as error:
        raise UserError(f"{csv}: {error}") from None
    if form is TableFormat.csv:
        typer.echo(ratios.to_csv(index=False, lineterminator="\n"), nl=False)
    elif form is TableFormat.markdown:
        typer.echo(ablation_markdown(ratios, full))
    else:
        for direction in DIRECTIONS:
            if (ratios["direction"] == direction).any():
                print_table(_console(), ablation_table(ratios, direction, full))


@app.command("simulate")
def simulate_command(
    impl: Annotated[str, typer.Option("--impl", metavar="NAME", help="TLX implementation to simulate.")] = "hopper",
    config: Annotated[Path, typer.Option(
        "--config", metavar="CONFIG", help="YAML file; its jfa backends are the variants.")] = Path("configs/sim.yaml"),
    count: Annotated[int, typer.Option("--schedules", metavar="N", min=1, help="Schedules of each row.")] = 20,
    case: Annotated[list[str] | None, typer.Option(
        "--case", metavar="ID", help="Only this case (its id or name); may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option(
        "--backend", metavar="NAME", help="Only this variant (its name in the config); may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(
        "--seed", metavar="N", min=0, help="Only the schedule of this seed.")] = None,
    mode: Annotated[ScheduleMode, typer.Option("--mode", help="Mode of the schedule of --seed.")] = ScheduleMode.random,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV instead of the table.")] = False,
) -> None:
    """Run a config's cases through TLX kernels on the CPU, and look for races, deadlocks and wrong results.

    The exit status is 1 if any schedule shows one (the first of each kind is printed, with a timeline and how to see
    it again), or if the implementation declines every row.
    """
    from harness.cases import expand, find_case
    from harness.config import load_config
    from harness.summary import print_table

    loaded = load_config(config)
    cases = expand(loaded)
    try:
        from harness import simulation
        from kernels.simulator import Schedule, schedules
    except ImportError as error:
        raise UserError(f"the simulator can't be imported: {error}; it needs greenlet and a Triton with TLX") from None

    over = schedules(count) if seed is None else [Schedule(mode.value, seed)]
    chosen = [find_case(cases, wanted) for wanted in case] if case else cases
    rows = []
    with Console(stderr=True).status("") as status:  # shows on a terminal only
        for row in simulation.simulate(loaded, chosen, backend or None, impl, over):
            rows.append(row)
            status.update(f"{len(rows)} rows; {row.case.name}, {row.direction}, {row.backend}")
            for finding in row.first_findings:
                shown = finding.schedule
                again = shlex.join(["harness", "simulate", "--impl", impl, "--config", str(config), "--case",
                                    row.case.name, "--backend", row.backend, "--mode", shown.mode, "--seed",
                                    str(shown.seed)])
                typer.echo(f"{row.case.name}, {row.direction}, {row.backend}, schedule {shown}: {finding.text}\n"
                           f"again: {again}\n", err=True)
    if as_csv:
        typer.echo(simulation.to_frame(rows).to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        title = f"{loaded.name}: {impl} in the simulator, {len(over)} schedules a row"
        print_table(_console(), simulation.simulation_table(rows, title))
    if any(row.findings for row in rows) or not any(row.passed for row in rows):
        raise typer.Exit(1)


def _console() -> Console:
    """Where tables and progress go; a log has no width of its own, so it gets a fixed one."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None where it is closed
    return Console(width=None if terminal else LOG_WIDTH, highlight=False, markup=False)


def _read(csv: Path) -> pd.DataFrame:
    """Records with at least one row. Raises `UserError`."""
    from harness.records import read_records

    records = read_records(csv)
    if records.empty:
        raise UserError(f"{csv}: holds a header and no rows")
    return records


def _draw(records: pd.DataFrame, out: Path, scope: str | None) -> None:
    from harness.plots import draw_plots

    try:
        plots = draw_plots(records, out, scope)
    except OSError as error:
        raise UserError(f"{out}: can't write the plots: {error.strerror or error}") from None
    for plot in plots:
        typer.echo(f"plot: no {plot.name}: {plot.skipped}" if plot.skipped else f"plot: {plot.paths[0]}")


def _say_what_a_gpu_adds(records: pd.DataFrame) -> None:
    if len(records) and (records["device_type"] == "cpu").all():
        from harness.doctor import WHAT_A_GPU_ADDS

        typer.echo(WHAT_A_GPU_ADDS)


def _how_to_go_on(result: RunResult, config: Path, options: RunOptions, more: dict[str, Path | bool | None]) -> str:
    """What to say after Ctrl-C: the command that goes on with the same choices."""
    if not result.run_json_path.exists():
        return "interrupted before the first case; there is nothing to go on with"
    words = ["harness", "run", str(config), "--out", str(result.out_dir), "--resume"]
    for flag, chosen in (("--case", options.case_ids), ("--backend", options.backends)):
        words += [word for value in chosen or () for word in (flag, value)]
    words += ["--device", options.device] if options.device else []
    for flag, value in more.items():
        words += ([flag] if value is True else [flag, str(value)]) if value else []
    return f"interrupted; what is complete was kept. To go on: {shlex.join(words)}"
