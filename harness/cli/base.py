"""The Typer app that all subcommands join, and what they share. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from harness.cli.paths import config_path, records_path
from harness.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from harness.plots import Plot

UsageError: Any = typer.BadParameter.__base__  # Click's, of the package or of the copy within Typer
LOG_WIDTH = 160  # columns where the output is no terminal
INTERRUPTED = 130


def examples(*commands: str) -> str:
    """The end of a command's ``--help``: commands to copy, a line each."""
    return "\n".join(["Examples:", "", "\b", *(f"  {command}" for command in commands)])


class _Group(TyperGroup):
    """Turns a `UserError` of any subcommand, and what is wrong with the words, into one line and exit status 2."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        said = str(error)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # prints the help
            raise
        command = error.ctx.command_path if error.ctx else "harness"
        said = f"{error.format_message().removesuffix('.')}; see {command} --help"
    else:
        return
    typer.echo(f"error: {' '.join(said.split())}", err=True)
    raise typer.Exit(2)


app = typer.Typer(
    name="harness", cls=_Group, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Measures jagged attention kernels against FlashAttention-4 and others.",
    epilog=examples("harness doctor", "harness run configs/smoke.yaml", "harness report results/runs/<run>/smoke.csv"))


class Scope(str, Enum):
    """Which rows to take."""

    kernel = "kernel"
    operation = "operation"


class TableFormat(str, Enum):
    """How to write a table."""

    table = "table"
    markdown = "markdown"
    csv = "csv"


ConfigPath = Annotated[Path, typer.Argument(
    metavar="CONFIG", callback=config_path, help="YAML file, such as configs/gem.yaml.")]
CsvPath = Annotated[Path, typer.Argument(
    metavar="CSV", callback=records_path, help="Records of a run, such as results/runs/.../gem.csv.")]


def main() -> None:
    """Entry point of the `harness` script."""
    try:
        app(prog_name="harness")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would only spoil the exit status


def make_console() -> Console:
    """Where tables and progress go; a log has no width of its own, so it gets a fixed one."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None where it is closed
    return Console(width=None if terminal else LOG_WIDTH, highlight=False, markup=False)


def read_rows(csv: Path) -> pd.DataFrame:
    """Records with at least one row. Raises `UserError`."""
    from harness.records import read_records

    records = read_records(csv)
    if records.empty:
        raise UserError(f"{csv}: holds a header and no rows")
    return records


def read_modelled(csv: Path) -> pd.DataFrame:
    """Modelled figures with at least one row. Raises `UserError`."""
    from harness.model_records import load_modelled, modelled_frame

    rows = load_modelled(csv)
    if not rows:
        raise UserError(f"{csv}: holds a header and no rows")
    return modelled_frame(rows)


def write_plots(records: pd.DataFrame, out: Path, scope: str | None) -> None:
    """Draw a run's plots and say where they are. Raises `UserError` if they can't be written."""
    from harness.plots import draw_plots

    show_plots(out, lambda folder: draw_plots(records, folder, scope))


def show_plots(out: Path, draw: Callable[[Path], list[Plot]]) -> None:
    """Draw plots into ``out`` and say where they are. Raises `UserError` if they can't be written."""
    try:
        plots = draw(out)
    except OSError as error:
        raise UserError(f"{out}: can't write the plots: {error.strerror or error}") from None
    for plot in plots:
        typer.echo(f"plot: no {plot.name}: {plot.skipped}" if plot.skipped else f"plot: {plot.paths[0]}")
