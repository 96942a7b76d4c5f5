"""`harness profile`: a case under Nsight Compute."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.base import app, examples, make_console
from harness.cli.paths import RUNS, config_path

SHOWN = ("direction", "kernel", "duration_us", "tensor_pipe_pct", "l2_pct", "dram_pct", "occupancy_pct")


class OneDirection(str, Enum):
    """Which pass."""

    fwd = "fwd"
    bwd = "bwd"


@app.command("profile", epilog=examples(
    "harness profile self_u1024 --backend jfa",
    "harness profile self_u1024 --backend jfa --direction fwd --ptxas",
    "harness profile self_u1024 --backend fa4 --from results/runs/gem-20260102T030405Z"))
def profile_command(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case of the config, by its id or name.")],
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="Its name in the config.")] = "jfa",
    config: Annotated[Path, typer.Option(
        "--config", metavar="CONFIG", callback=config_path, help="YAML file.")] = Path("configs/gem.yaml"),
    replay: Annotated[Path | None, typer.Option(
        "--from", metavar="DIR", help="Take the case of the run in DIR, with its lengths, and write there.")] = None,
    direction: Annotated[OneDirection | None, typer.Option("--direction", help="fwd or bwd; default both.")] = None,
    ptxas: Annotated[bool, typer.Option("--ptxas", help="Keep what ptxas says of Triton kernels.")] = False,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory to write; default that of --from, or results/runs/profile-<UTC stamp>.")
    ] = None,
) -> None:
    """Check one case, run it under Nsight Compute, and write a fixed, small set of metrics of each kernel as CSV.

    Tensor-pipe use, L2 and DRAM throughput, stall reasons, occupancy. Needs a GPU, ncu, and the right to read counters.
    """
    from harness.cases import expand, find_case
    from harness.config import load_config
    from harness.profiling import profile
    from harness.replay import load_cases
    from harness.runner import choose_backends
    from harness.summary import new_table, print_table

    loaded = load_config(config)
    chosen = find_case(load_cases(replay) if replay else expand(loaded), case)
    directory = out or replay or RUNS / f"profile-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    directions = ("fwd", "bwd") if direction is None else (direction.value,)
    found = profile(chosen, choose_backends(loaded, [backend])[0], loaded.check, directory, directions,
                    ptxas)
    table = new_table(f"{chosen.name}, {backend}: kernels under Nsight Compute",
                      **{column: "left" if column in ("direction", "kernel") else "right" for column in SHOWN})
    for row in found.rows:
        table.add_row(*(row[column] for column in SHOWN))
    print_table(make_console(), table)
    typer.echo(f"profile: {found.csv_path}")
    if found.ptxas_path:
        typer.echo(f"ptxas: {found.ptxas_path}")
