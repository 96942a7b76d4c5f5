"""``python -m kernels.simulator``: the TLX tutorials over many schedules, mutation campaigns, agreement with a GPU.

For this project's own kernels: ``harness simulate``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import torch
import typer

from kernels.simulator.campaigns import ARGUMENTS, CAMPAIGNS
from kernels.simulator.cases import Case, Sweep, run_schedule
from kernels.simulator.mutation import run_campaign, write_survivors
from kernels.simulator.scheduler import Mode
from kernels.simulator.schedules import Schedule, schedules
from kernels.simulator.tutorials import TUTORIALS

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


def _cases(patterns: list[str]) -> dict[str, Case]:
    chosen = {name: case for name, case in TUTORIALS.items() if not patterns or any(each in name for each in patterns)}
    if not chosen:
        raise typer.BadParameter(f"no case contains {' or '.join(patterns)}; the cases are {', '.join(TUTORIALS)}")
    return chosen


@app.command("list")
def list_cases() -> None:
    """Names of the tutorials' cases."""
    typer.echo("\n".join(_cases([])))


@app.command()
def sweep(patterns: Annotated[list[str] | None, typer.Argument(help="Parts of case names; all cases if none.")] = None,
          schedule_count: Annotated[int, typer.Option("--schedules", min=1, help="Schedules per case.")] = 20,
          mode: Annotated[str | None, typer.Option(help="With --seed: one schedule only, to reproduce it.")] = None,
          seed: Annotated[int, typer.Option(help="See --mode.")] = 0) -> None:
    """Run tutorials over schedules; exit code 1 if any fails, with the first failure of each kind in full."""
    torch.set_num_threads(1)
    if mode not in (None, *get_args(Mode)):
        raise typer.BadParameter(f"--mode: expected one of {', '.join(get_args(Mode))}, got {mode}")
    over = [Schedule(mode, seed)] if mode else schedules(schedule_count)  # type: ignore[arg-type]
    failed = 0
    for case in _cases(patterns or []).values():
        call = case.prepare()
        result = Sweep(case, [run_schedule(case, call, each)[0] for each in over])
        typer.echo(result.summary())
        shown: set[str | None] = set()
        for outcome in result.failures:
            if outcome.check not in shown:
                typer.echo(f"  {outcome.schedule}: {outcome.text}\n")
            shown.add(outcome.check)
        failed += bool(result.failures)
    raise typer.Exit(1 if failed else 0)


@app.command()
def mutants(kernels: Annotated[list[str] | None, typer.Argument(help="Campaign names; all if none.")] = None,
            schedule_count: Annotated[int, typer.Option("--schedules", min=1, help="Most schedules per mutant.")] = 20,
            csv: Annotated[Path | None, typer.Option(help="Write the survivors here, with their arguments.")] = None,
            every: Annotated[int, typer.Option(min=1, help="Only every n-th mutant.")] = 1,
            jobs: Annotated[int, typer.Option(min=1, help="Mutants tried at a time.")] = 1,
            verbose: Annotated[bool, typer.Option(help="A line per mutant.")] = False) -> None:
    """Break kernels in one place at a time, and count what is caught."""
    torch.set_num_threads(1)
    unknown = set(kernels or []) - set(CAMPAIGNS)
    if unknown:
        raise typer.BadParameter(f"no campaign {sorted(unknown)}; there are {', '.join(CAMPAIGNS)}")
    done = []
    for name in kernels or CAMPAIGNS:
        layouts, skip = CAMPAIGNS[name]
        campaign = run_campaign(name, layouts(), schedule_count, skip, typer.echo if verbose else None, every,
                                jobs)
        done.append(campaign)
        typer.echo(campaign.summary(ARGUMENTS))
        for verdict in campaign.survivors():
            site = verdict.site
            typer.echo(f"  survived: {site.kind} | {site.function}:{site.line} | {site.statement}")
    if csv:
        write_survivors(csv, done, ARGUMENTS)


@app.command()
def agree(csv: Annotated[Path | None, typer.Option(help="Write every row here.")] = None) -> None:
    """Compare the Hopper kernels on this GPU with the simulator, on ten layouts; exit code 1 if any output differs."""
    from kernels.hopper import IMPLEMENTATION
    from kernels.simulator import agreement

    torch.set_num_threads(1)
    reason = IMPLEMENTATION.declines(agreement.LAYOUTS["self"].problem(), "fwd",
                                     torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if reason:
        raise typer.BadParameter(reason)
    rows = []
    for name in agreement.LAYOUTS:
        for row in agreement.measure(name):
            rows.append(row)
            typer.echo(f"{name} {row.direction}/{row.variant} {row.tensor}: difference {row.difference:.2g} of at most "
                       f"{row.limit:.2g}, {row.equal:.1%} equal{'' if row.agrees else '; DISAGREES'}")
    if csv:
        agreement.write_rows(csv, rows, f"simulated vs measured on one {torch.cuda.get_device_name()}")
    raise typer.Exit(0 if all(row.agrees for row in rows) else 1)


if __name__ == "__main__":
    app()
