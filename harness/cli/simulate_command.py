"""`harness simulate`: TLX kernels on the CPU."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cli.base import app, examples, make_console
from harness.cli.paths import config_path
from harness.errors import UserError


class ScheduleMode(str, Enum):
    """When the simulator's asynchronous operations complete."""

    lazy = "lazy"
    eager = "eager"
    random = "random"


@app.command("simulate", epilog=examples(
    "harness simulate --impl hopper --config configs/sim.yaml --schedules 20",
    "harness simulate --case causal_d64 --backend solo64 --mode lazy --seed 1"))
def simulate_command(
    impl: Annotated[str, typer.Option("--impl", metavar="NAME", help="TLX implementation to simulate.")] = "hopper",
    config: Annotated[Path, typer.Option(
        "--config", metavar="CONFIG", callback=config_path,
        help="YAML file; its jfa backends are the variants.")] = Path("configs/sim.yaml"),
    count: Annotated[int, typer.Option("--schedules", metavar="N", min=1, help="Schedules of each row.")] = 20,
    case: Annotated[list[str] | None, typer.Option(
        "--case", metavar="ID", help="Only this case (its id or name); may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option(
        "--backend", metavar="NAME", help="Only this variant (its name in the config); may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(
        "--seed", metavar="N", min=0, help="Only the schedule of this seed.")] = None,
    mode: Annotated[ScheduleMode, typer.Option("--mode", help="Mode of the schedule of --seed.")] = ScheduleMode.random,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Rows simulated at a time.")] = 1,
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
        for row in simulation.simulate(loaded, chosen, backend or None, impl, over, jobs):
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
        print_table(make_console(), simulation.simulation_table(rows, title))
    if any(row.findings for row in rows) or not any(row.passed for row in rows):
        raise typer.Exit(1)
