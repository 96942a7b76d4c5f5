"""`harness gate`, `harness noise`, `harness baseline` and `harness history`: a CI's commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli.base import app, examples, make_console
from harness.cli.paths import config_path, records_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.regression.gate import GateResult, Settings
    from harness.regression.runs import Run
    from harness.regression.static import StaticResult

BaselinePath = Annotated[Path | None, typer.Option(
    "--baseline", metavar="CSV", help="Baseline; default results/baselines/<gpu>/<config>.csv.")]
Device = Annotated[str | None, typer.Option("--device", help="cuda, cuda:1 or cpu; default the GPU if there is one.")]
YAML = (".yaml", ".yml")
baseline_app = typer.Typer(no_args_is_help=True, help="The committed run that the gate holds others against.")


class HistoryColumn(str, Enum):
    """What the history draws."""

    tflops = "tflops"
    latency_ms = "latency_ms"
    floor_share = "floor_share"
    speedup_vs_fa4 = "speedup_vs_fa4"


@contextmanager
def refusals() -> Iterator[None]:
    """Prints a `Refused` as one line and ends with exit status 1."""
    from harness.regression.runs import Refused

    try:
        yield
    except Refused as error:
        typer.echo(f"refused: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


@app.command("gate", epilog=examples(
    "harness gate configs/gate.yaml --rerun 4",
    "harness gate results/runs/<run>/gate.csv --baseline results/baselines/nvidia-h200/gate.csv",
    "harness gate --static"))
def gate_command(
    run: Annotated[Path | None, typer.Argument(
        metavar="[RUN]", help="Records CSV of a run, or a config to run first.")] = None,
    baseline: BaselinePath = None,
    rerun: Annotated[int, typer.Option(
        "--rerun", metavar="N", min=0, max=20, help="Measure UNDECIDED rows again, up to N times.")] = 0,
    tolerance: Annotated[float, typer.Option(
        "--tolerance", metavar="SHARE", min=0.001, max=0.5, help="Change of the ratio to FA4 that passes.")] = 0.03,
    floor_tolerance: Annotated[float, typer.Option(
        "--floor-tolerance", metavar="SHARE", min=0.001, max=0.5,
        help="Change of the share of the floor that passes.")] = 0.10,
    alpha: Annotated[float, typer.Option(
        "--alpha", min=1e-6, max=0.5, help="Largest p-value, corrected over all rows, of FAST and SLOW.")] = 0.02,
    strict: Annotated[bool, typer.Option("--strict", help="UNDECIDED rows fail as well.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Check compiled kernels too; needs no GPU.")] = False,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory of the run, if RUN is a config.")] = None,
    device: Device = None,
    markdown: Annotated[Path | None, typer.Option(
        "--markdown", metavar="FILE", help="Write a summary for a CI job's page.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write JSON.")] = None,
) -> None:
    """Hold a run against the baseline, row by row: FAST, SLOW, SAME, UNDECIDED, MISSING or BROKEN, and why.

    The exit status is 1 if any row is SLOW, MISSING or BROKEN (with --strict UNDECIDED too), if --static finds
    something, or if the two can't be compared (another GPU, another schema, a file that was cut or edited).
    """
    from harness.regression import gate_output
    from harness.regression.gate import Settings

    if run is None and not static:
        raise UserError("RUN: missing; give a records CSV or a config, or --static alone")
    console, result, findings = make_console(), None, None
    with refusals():
        if run is not None:
            result = _gated(console, run, baseline, rerun, Settings(tolerance, floor_tolerance, alpha, strict), out,
                            device)
            _print_gate(console, result)
        if static:
            findings = _static(console)
    report = gate_output.Report(result, tuple(findings or ()))
    if markdown:
        gate_output.write_text(markdown, gate_output.markdown(report))
    if as_json:
        gate_output.write_json(as_json, report)
    if junit:
        from harness.regression.junit import write_junit

        write_junit(junit, report)
    if report.failed:
        raise typer.Exit(1)


def _gated(console: Console, run: Path, baseline: Path | None, rerun: int, settings: Settings, out: Path | None,
           device: str | None) -> GateResult:
    from harness.progress import make_listener
    from harness.regression.baseline import default_baseline, load_baseline
    from harness.regression.gate import gate
    from harness.regression.rerun import run_again
    from harness.regression.runs import load_run

    if run.suffix in YAML:
        first, path = _run_first(console, run, baseline, out, device)
    else:
        first = load_run(records_path(run))
        path = baseline or default_baseline(first.gpu, first.csv.stem)
    before, noise, notes = load_baseline(path)
    runs = [first]
    result = gate(runs, before, noise, settings, notes)
    for _ in range(rerun):
        again = result.undecided_case_ids
        if not again:
            break
        typer.echo(f"{len(again)} cases with UNDECIDED rows are measured again")
        runs.append(run_again(first, again, device, make_listener(console)))
        result = gate(runs, before, noise, settings, notes)
    return result


def _run_first(console: Console, config: Path, baseline: Path | None, out: Path | None,
               device: str | None) -> tuple[Run, Path]:
    """The run of a config, and where its baseline is; without any for the config there is no run."""
    from harness import runner
    from harness.config import load_config
    from harness.progress import make_listener
    from harness.regression.baseline import default_baseline, demand_baseline
    from harness.regression.runs import load_run

    loaded = load_config(config_path(config))
    demand_baseline(baseline, loaded.name)
    result = runner.run(loaded, runner.RunOptions(out_dir=out, device=device), make_listener(console))
    if result.interrupted:
        raise KeyboardInterrupt
    typer.echo(f"records: {result.csv_path}")
    first = load_run(result.csv_path)
    return first, baseline or default_baseline(first.gpu, loaded.name)


def _print_gate(console: Console, result: GateResult) -> None:
    from harness.regression.gate_output import gate_table, headline
    from harness.summary import print_table

    print_table(console, gate_table(result))
    for note in result.notes:
        typer.echo(f"note: {note}")
    typer.echo(headline(result))


def _static(console: Console) -> list[StaticResult]:
    from harness.regression.static import static_gate

    with Console(stderr=True).status("") as status:  # shows on a terminal only
        results = static_gate(status.update)
    for result in results:
        for finding in result.findings:
            typer.echo(f"{result.baseline.name}: {finding}")
        typer.echo(f"static gate {'FAILED' if result.findings else 'passed'}: {len(result.findings)} findings against "
                   f"{result.baseline}")
    return results


@app.command("noise", epilog=examples(
    "harness noise configs/gate.yaml --runs 5 --out results/runs/aa",
    "harness noise results/runs/aa/run-*/gate.csv"))
def noise_command(
    sources: Annotated[list[Path], typer.Argument(
        metavar="CONFIG|CSV...", help="A config to run, or the records CSVs of A/A runs that there are.")],
    count: Annotated[int, typer.Option("--runs", metavar="N", min=3, max=100, help="A/A runs of a config.")] = 5,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory of the runs of a config; what is complete there is kept.")] = None,
    baseline: BaselinePath = None,
    device: Device = None,
) -> None:
    """Measure how much rows differ between runs of the same code (A/A runs), and write it beside the baseline."""
    from harness.regression.baseline import default_baseline, manifest_path, seal
    from harness.regression.noise import noise_path, noise_rows, noise_table, write_noise
    from harness.regression.runs import load_run
    from harness.summary import print_table

    with refusals():
        if sources[0].suffix in YAML:
            runs = _repeated(sources, count, out, device)
        else:
            runs = [load_run(records_path(path)) for path in sources]
        rows = noise_rows(runs)
        print_table(make_console(), noise_table(rows))
        path = baseline or default_baseline(runs[0].gpu, runs[0].csv.stem)
        write_noise(noise_path(path), rows)
        if manifest_path(path).is_file():
            seal(path)
        typer.echo(f"noise: {noise_path(path)}")


def _repeated(sources: list[Path], count: int, out: Path | None, device: str | None) -> list[Run]:
    from datetime import datetime, timezone

    from harness.config import load_config
    from harness.progress import make_listener
    from harness.regression.rerun import repeat
    from harness.runner import RUNS

    if len(sources) > 1:
        raise UserError(f"{sources[1]}: a config stands alone; or give the records CSVs of three or more runs")
    config = load_config(config_path(sources[0]))
    directory = out or RUNS / f"{config.name}-noise-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    return repeat(config, count, directory, device, lambda: make_listener(make_console()))


@baseline_app.command("update", epilog=examples(
    "harness baseline update results/runs/<run>/gate.csv --note 'FA4 4.0.0b36'"))
def baseline_update_command(
    csv: Annotated[Path, typer.Argument(metavar="CSV", help="Records of the run that becomes the baseline.")],
    note: Annotated[str, typer.Option("--note", metavar="WHY", help="Why it is the baseline; kept with it.")],
    baseline: BaselinePath = None,
    history: Annotated[Path | None, typer.Option(
        "--history", metavar="CSV", help="History to add it to; default results/history/<gpu>/<config>.csv.")] = None,
) -> None:
    """Make a run the baseline of its GPU, with a note of why, and add it to the history."""
    from harness.regression.baseline import default_baseline, manifest_path, update
    from harness.regression.history import append_history, default_history, demand_history, history_rows
    from harness.regression.runs import load_run

    with refusals():
        run = load_run(records_path(csv))
        path = baseline or default_baseline(run.gpu, run.csv.stem)
        kept = history or default_history(run)
        demand_history(kept)  # before anything is written
        update(run, path, note)
        append_history(kept, history_rows(run, note.strip()))
        typer.echo(f"baseline: {path} ({manifest_path(path).name} says why)\nhistory: {kept}")


app.add_typer(baseline_app, name="baseline")


@app.command("history", epilog=examples(
    "harness history results/history/nvidia-h200/gate.csv",
    "harness history results/history/nvidia-h200/gate.csv --add results/runs/<run>/gate.csv"))
def history_command(
    csv: Annotated[Path, typer.Argument(metavar="CSV", help="History, such as results/history/<gpu>/gate.csv.")],
    add: Annotated[Path | None, typer.Option("--add", metavar="CSV", help="Add this run's records first.")] = None,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="FILE", help="PNG to write, an SVG beside it; default beside the CSV.")] = None,
    column: Annotated[HistoryColumn, typer.Option("--column", help="What to draw.")] = HistoryColumn.tflops,
) -> None:
    """Plot each row's TFLOP/s by commit, with the change points marked and listed."""
    from harness.regression.history import append_history, demand_picture, draw_history, history_rows, read_history
    from harness.regression.runs import load_run

    target = out or csv.with_suffix(".png")
    demand_picture(target)
    with refusals():
        if add and not append_history(csv, history_rows(load_run(records_path(add)))):
            typer.echo("the history has this run already")
        points = draw_history(read_history(csv), target, column.value)
        for line in points:
            typer.echo(f"change point: {line}")
        typer.echo(f"plot: {target}; {len(points)} change points")
