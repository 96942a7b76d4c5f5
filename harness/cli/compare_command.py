"""`harness compare`: two runs, two configs or two commits."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.base import app, examples, make_console
from harness.cli.gate_commands import YAML, Device, refusals
from harness.cli.paths import config_path, records_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.regression.runs import Run


class CompareBy(str, Enum):
    """What of a row is compared."""

    latency = "latency"
    speedup = "speedup"
    floor_share = "floor_share"


@app.command("compare", epilog=examples(
    "harness compare results/runs/<old>/gem.csv results/runs/<new>/gem.csv --by speedup",
    "harness compare configs/mine.yaml configs/yours.yaml",
    "harness compare main HEAD --config configs/gate.yaml",
    "harness compare results/runs/<run>/gem.csv results/runs/<run>/gem.csv --backend fa4 --against fa4@4.0.0b15"))
def compare_command(
    a: Annotated[str, typer.Argument(metavar="A", help="Records CSV, config or commit.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same of the other side.")],
    by: Annotated[CompareBy, typer.Option(
        "--by", help="latency, speed-up over FA4 in the same run, or share of the floor.")] = CompareBy.latency,
    backend: Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Only this backend.")] = None,
    against: Annotated[str | None, typer.Option(
        "--against", metavar="NAME", help="What --backend is called in B; default the same.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare what isn't comparable, with a note.")] = False,
    config: Annotated[Path, typer.Option(
        "--config", metavar="CONFIG", help="What two commits run.")] = Path("configs/gate.yaml"),
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=50, help="Runs of each of two commits.")] = 2,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", help="Directory of runs and plot; default results/runs/compare-<UTC stamp>.")] = None,
    device: Device = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown.")] = None,
) -> None:
    """Compare two runs, two configs (run in turns) or two commits (run in turns in worktrees), row by row.

    Prints each row's ratio with its interval, geometric means and what differs in the environment, and draws a forest
    plot. Rows are matched by case id. The exit status is 1 if the two can't be compared.
    """
    from harness.regression.comparison import compare
    from harness.regression.comparison_output import comparison_markdown, comparison_table, differences
    from harness.regression.forest import draw_forest
    from harness.regression.gate_output import write_text
    from harness.regression.measures import Measure
    from harness.summary import print_table

    directory = out or Path("results/runs") / f"compare-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    if against and not backend:
        raise UserError("--against: needs --backend, the name in A")
    with refusals():
        run_a, run_b, interleaved = _sides(a, b, config, rounds, directory, device, force)
        comparison = compare(run_a, run_b, by=Measure(by.value), backend=backend, against=against,
                             names=_names(a, b, backend, against), interleaved=interleaved, force=force)
    print_table(make_console(), comparison_table(comparison))
    for line in differences(comparison):
        typer.echo(line)
    draw_forest(comparison, directory / "forest.png")
    draw_forest(comparison, directory / "forest.svg")
    typer.echo(f"plot: {directory / 'forest.png'}")
    if markdown:
        write_text(markdown, comparison_markdown(comparison))


def _sides(a: str, b: str, config: Path, rounds: int, out: Path, device: str | None,
           force: bool) -> tuple[Run, Run, bool]:
    """Both sides' runs, and whether they were measured block by block in turns."""
    from harness.config import load_config
    from harness.progress import make_listener
    from harness.regression.interleaved import is_commit, run_two_commits, run_two_configs
    from harness.regression.runs import load_run

    paths = Path(a), Path(b)
    suffixes = [path.suffix for path in paths]
    if suffixes == [".csv", ".csv"]:
        run_a = load_run(records_path(paths[0]))
        return run_a, run_a if paths[0] == paths[1] else load_run(records_path(paths[1])), False
    if all(suffix in YAML for suffix in suffixes):
        first, second = (load_config(config_path(path)) for path in paths)
        return *run_two_configs((first, second), out, device, make_listener(make_console()), force), True
    for name in (a, b):
        if Path(name).suffix in (".csv", *YAML) or not is_commit(name):
            raise UserError(f"{name}: got {a} and {b}; compare takes two records CSVs, two configs (.yaml) or two "
                            "commits that git knows here")
    more = ["--device", device] if device else []
    return *run_two_commits((a, b), config_path(config), out, more, rounds, typer.echo), False


def _names(a: str, b: str, backend: str | None, against: str | None) -> tuple[str, str]:
    """Short and different: file names or their folders, backends, or commits as they were given."""
    if against:
        return str(backend), against
    path_a, path_b = Path(a), Path(b)
    if path_a.suffix and path_b.suffix:
        return (path_a.stem, path_b.stem) if path_a.stem != path_b.stem else (path_a.parent.name, path_b.parent.name)
    return a, b
