"""`harness run`, `harness cases` and `harness doctor`: what is run, and what would be."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.base import INTERRUPTED, ConfigPath, app, examples, make_console, write_plots

if TYPE_CHECKING:
    import pandas as pd

    from harness.cluster import ClusterOptions
    from harness.runner import RunOptions, RunResult

JOBS = 4  # of a launcher


@app.command("run", epilog=examples(
    "harness run configs/gem.yaml",
    "harness run configs/gem.yaml --case self_u1024 --backend jfa --backend fa4",
    "harness run configs/gem.yaml --out results/runs/gem-20260102T030405Z --resume"))
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
    gpus: Annotated[str | None, typer.Option(
        "--gpus", metavar="LIST", help="Share the cases among GPUs: all, or indices such as 0,2.")] = None,
    replay: Annotated[Path | None, typer.Option(
        "--from", metavar="DIR", help="Replay the cases of the run in DIR, with its exact lengths.")] = None,
    launcher: Annotated[str | None, typer.Option(
        "--launcher", metavar="NAME", help="Share the cases among jobs: slurm, or local for processes here.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Jobs of the launcher; default 4.")] = None,
    parameter: Annotated[list[str] | None, typer.Option(
        "--parameter", metavar="KEY=VALUE", help="Parameter of submitit's executor, such as slurm_partition=gpu; may "
        "be repeated.")] = None,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Write no plots.")] = False,
) -> None:
    """Run a config: check every backend on every case, time it, write CSV and plots, print a summary.

    Rows that fail are data, not errors: the exit status is 0 once the run is complete, or 1 if no row came out
    ok or untimed. After Ctrl-C it is 130, and what is complete is kept.
    """
    from harness import runner
    from harness.cluster import run_on_cluster
    from harness.config import load_config
    from harness.errors import UserError
    from harness.progress import make_listener
    from harness.records import to_frame
    from harness.replay import load_cases
    from harness.summary import print_summary

    console = make_console()
    loaded = load_config(config)
    if gpus is not None and device is not None:
        raise UserError("--gpus: --device says where to run already; allowed is one of the two")
    if launcher is None and (jobs or parameter):
        raise UserError(f"{'--jobs' if jobs else '--parameter'}: is for --launcher, which isn't given")
    jobs = jobs or JOBS
    options = runner.RunOptions(
        out_dir=out, case_ids=tuple(case) if case else None, backends=tuple(backend) if backend else None,
        resume=resume, device=device, gpus=gpus, cases=tuple(load_cases(replay)) if replay else None)
    listener = make_listener(console)
    if launcher is None:
        result = runner.run(loaded, options, listener)
    else:
        result = run_on_cluster(config, options, _cluster_options(launcher, jobs, parameter or []), listener)
    records = to_frame(result.records)
    if len(records):
        print_summary(console, records)
        if not no_plots:
            write_plots(records, result.out_dir / "plots", None)
        typer.echo(f"records: {result.csv_path}")
        typer.echo(f"one page of it all: harness report {shlex.quote(str(result.csv_path))}")
    _say_what_a_gpu_adds(records)
    if result.interrupted:
        more = {"--from": replay, "--no-plots": no_plots, "--launcher": launcher, "--jobs": jobs if launcher else None,
                "--parameter": parameter}
        typer.echo(_how_to_go_on(result, config, options, more), err=True)
        raise typer.Exit(INTERRUPTED)
    if not records["status"].isin(["ok", "untimed"]).any():
        typer.echo("no row came out ok or untimed; the reasons are above", err=True)
        raise typer.Exit(1)


@app.command("cases", epilog=examples(
    "harness cases configs/gem.yaml",
    "harness cases configs/gem.yaml --case self_lognormal",
    "harness cases configs/gem.yaml --csv > cases.csv"))
def cases_command(
    config: ConfigPath,
    case: Annotated[list[str] | None, typer.Option(
        "--case", metavar="ID", help="Only this case (its id or name), with its lengths; may be repeated.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV, with more columns.")] = False,
    tflops: Annotated[float, typer.Option(
        "--tflops", min=1e-6, help="Matmul TFLOP/s that the floor assumes; default as measured on an H200.")] = 690.0,
    tbps: Annotated[float, typer.Option(
        "--tbps", min=1e-6, help="Copy TB/s that the floor assumes; default as measured on an H200.")] = 4.3,
) -> None:
    """List a config's cases with lengths, token counts, FLOPs, bytes and the floor, without running them."""
    from harness.case_table import cases_table, describe_cases
    from harness.cases import expand, find_case
    from harness.config import load_config
    from harness.flops import Ceilings
    from harness.length_histogram import histogram_lines
    from harness.runner import choose_backends
    from harness.summary import print_table

    loaded = load_config(config)
    choose_backends(loaded, None)  # a mistake there is better found now
    cases = expand(loaded)
    chosen = [find_case(cases, wanted) for wanted in case] if case else cases
    described = describe_cases(chosen, Ceilings(tflops, tbps))
    if as_csv:
        typer.echo(described.to_csv(index=False, lineterminator="\n"), nl=False)
        return
    title = f"{loaded.name}: {len(described)} cases (floor: computed for {tflops:g} TFLOP/s and {tbps:g} TB/s)"
    print_table(make_console(), cases_table(chosen, described, title))
    for one in chosen if case else []:
        typer.echo("\n".join([*histogram_lines(one), ""]))


@app.command("doctor", epilog=examples("harness doctor", "harness doctor --json"))
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
        print_report(make_console(), report)
    if not report.usable:
        raise typer.Exit(1)


def _cluster_options(launcher: str, jobs: int, parameters: list[str]) -> ClusterOptions:
    from harness.cluster import ClusterOptions
    from harness.errors import UserError

    if launcher not in ("slurm", "local"):
        raise UserError(f"--launcher: no such launcher {launcher!r}; allowed: slurm, local")
    values: dict[str, int | str] = {}
    for text in parameters:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UserError(f"--parameter: {text!r}: expected KEY=VALUE")
        values[key] = int(value) if value.isascii() and value.isdigit() else value
    return ClusterOptions("slurm" if launcher == "slurm" else "local", jobs, parameters=values)


def _say_what_a_gpu_adds(records: pd.DataFrame) -> None:
    if len(records) and (records["device_type"] == "cpu").all():
        from harness.doctor import WHAT_A_GPU_ADDS

        typer.echo(WHAT_A_GPU_ADDS)


def _how_to_go_on(result: RunResult, config: Path, options: RunOptions, more: dict[str, Any]) -> str:
    """What to say after Ctrl-C: the command that goes on with the same choices."""
    if not result.run_json_path.exists():
        return "interrupted before the first case; there is nothing to go on with"
    words = ["harness", "run", str(config), "--out", str(result.out_dir), "--resume"]
    for flag, chosen in (("--case", options.case_ids), ("--backend", options.backends)):
        words += [word for value in chosen or () for word in (flag, value)]
    for flag, where in (("--device", options.device), ("--gpus", options.gpus)):
        words += [flag, where] if where else []
    for flag, given in more.items():
        for value in given if isinstance(given, list) else [given]:
            words += ([flag] if value is True else [flag, str(value)]) if value else []
    return f"interrupted; what is complete was kept. To go on: {shlex.join(words)}"
