"""`harness xray`: compiled kernels, read without a GPU."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from harness.cli.base import TableFormat, app, examples, make_console
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.xray.rows import XrayRow


class Arch(str, Enum):
    """What to compile for."""

    sm_90a = "sm_90a"
    sm_100a = "sm_100a"


@app.command("xray", epilog=examples(
    "harness xray --arch sm_90a --quick",
    "harness xray --arch sm_90a --check results/baselines/xray_sm90a.csv",
    "harness xray --arch sm_90a --write results/baselines/xray_sm90a.csv",
    "harness xray --arch sm_90a --backend jfa --options 'fwd: {variant: pair128, block_n: 64}'"))
def xray_command(
    arch: Annotated[Arch, typer.Option("--arch", help="Architecture to compile for.")] = Arch.sm_90a,
    backend: Annotated[str, typer.Option(
        "--backend", metavar="NAMES", help="jfa, fa4 or both, separated by a comma.")] = "jfa,fa4",
    config: Annotated[list[str] | None, typer.Option(
        "--config", metavar="NAME", help="Only this configuration, shape or SHAPE/CONFIGURATION.")] = None,
    options: Annotated[str | None, typer.Option(
        "--options", metavar="YAML", help="Switches by direction to compile instead of the configurations.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Of this project's kernels only the reduced set.")] = False,
    baseline: Annotated[Path | None, typer.Option(
        "--check", metavar="CSV", help="Fail if this project's kernels are worse than in this file.")] = None,
    write: Annotated[Path | None, typer.Option(
        "--write", metavar="CSV", help="Write or refresh a baseline.")] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="How to write the result.")] = TableFormat.table,
    lines: Annotated[bool, typer.Option("--lines", help="Count lines of source instead; compiles nothing.")] = False,
) -> None:
    """Compile kernels for a GPU that needn't be here, and tabulate registers, spills, memory and main loops.

    --check compiles this project's kernels only; the exit status is 1 if anything is worse than in the baseline.
    """
    from harness.xray.baseline import offered, write_baseline
    from harness.xray.check import check
    from harness.xray.rows import read_csv, to_csv
    from harness.xray.source_lines import source_lines
    from harness.xray.survey import plan, survey

    backends = [name.strip() for name in backend.split(",")]
    if lines:
        given = {"--write": write, "--check": baseline, "--options": options, "--config": config, "--quick": quick}
        if unused := next((flag for flag, value in given.items() if value), None):
            raise UserError(f"{unused}: is for compiled kernels; --lines compiles nothing")
        _show_lines(arch.value, {name: source_lines(arch.value, name) for name in backends}, form)
        return
    if baseline is not None:
        backends = ["jfa"]
    known = [] if baseline is None else [row for row in read_csv(baseline) if row.arch == arch.value]
    if baseline is not None and not known:
        raise UserError(f"{baseline}: arch: holds no row of {arch.value}")
    jobs = plan(arch.value, backends, config or (), quick, _options(options))
    with Console(stderr=True).status("") as status:  # shows on a terminal only
        rows = survey(jobs, lambda done: status.update(f"{done} of {len(jobs)} configurations compiled"))
    if write is not None:
        write_baseline(write, arch.value, rows)
    if baseline is None:
        if form is TableFormat.csv:
            typer.echo(to_csv(rows), nl=False)
        else:
            _show(arch.value, rows, form)
        return
    findings = check(rows, known, offered(arch.value, backends))
    for finding in findings:
        typer.echo(str(finding), err=True)
    compiled = len({row.key[:4] for row in rows})
    typer.echo(f"{compiled} configurations for {arch.value} against {baseline}: {len(findings)} findings")
    if findings:
        raise typer.Exit(1)


def _options(text: str | None) -> dict[str, dict[str, Any]] | None:
    from harness.strict_model import YamlSource

    if text is None:
        return None
    values = YamlSource("--options", text).data
    if not isinstance(values, dict) or not all(isinstance(each, dict) for each in values.values()):
        raise UserError(f"--options: got {text!r}; allowed: switches by direction, such as 'fwd: {{block_n: 64}}'")
    return values


def _show(arch: str, rows: list[XrayRow], form: TableFormat) -> None:
    from harness.records import Status
    from harness.summary import print_table
    from harness.xray import tables

    for title, (headings, cells), text in (
            (f"{arch}: kernels", tables.kernel_cells(rows), 4), (f"{arch}: main loops", tables.loop_cells(rows), 4)):
        if form is TableFormat.markdown:
            typer.echo(tables.markdown(headings, cells, text) + "\n")
        else:
            print_table(make_console(), tables.table(title, headings, cells, text))
    if form is TableFormat.table:
        typer.echo(tables.limits_line())
    for message in dict.fromkeys(f"{row.backend}: {row.status.value}: {row.message}" for row in rows
                                 if row.status is not Status.OK):
        typer.echo(message, err=True)


def _show_lines(arch: str, counted: dict[str, Any], form: TableFormat) -> None:
    from harness.summary import print_table
    from harness.xray import tables

    headings, cells = tables.line_cells(counted)
    if form is TableFormat.table:
        print_table(make_console(), tables.table(f"{arch}: lines of kernel source", headings, cells, 2))
    elif form is TableFormat.markdown:
        typer.echo(tables.markdown(headings, cells, 2))
    else:
        typer.echo("arch,backend,file,own,code,comment,blank")
        for backend, files in counted.items():
            for each in files:
                typer.echo(f"{arch},{backend},{each.name},{each.own},{each.code},{each.comment},{each.blank}")
