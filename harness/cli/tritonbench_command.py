"""`harness tritonbench`: a config under TritonBench's runner."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

from harness.cli.base import ConfigPath, Scope, app, examples


class _HandsOn(TyperCommand):
    """Keeps options that it doesn't know, for TritonBench."""

    ignore_unknown_options = True
    allow_extra_args = True


@app.command("tritonbench", cls=_HandsOn, epilog=examples(
    "harness tritonbench configs/gem.yaml --metrics latency,tflops,speedup,accuracy --fwd --csv",
    "harness tritonbench configs/gem.yaml --bwd --only fa4,jfa --num-inputs 4 --output bwd.csv",
    "harness tritonbench configs/smoke.yaml --device cpu"))
def tritonbench_command(
    context: typer.Context,
    config: ConfigPath,
    case: Annotated[list[str] | None, typer.Option(
        "--case", metavar="ID", help="Only this case (its id or name); may be repeated.")] = None,
    scope: Annotated[Scope, typer.Option("--scope", help="What of a backend is run.")] = Scope.kernel,
    forward: Annotated[bool, typer.Option("--fwd", help="The forward, which is TritonBench's default.")] = False,
) -> None:
    """Run a config's cases and backends as TritonBench's operator jagged_flash_attention.

    All other options are TritonBench's, such as --metrics, --bwd, --fwd-bwd, --only, --baseline, --num-inputs, --csv,
    --output and --keep-going. The exit status is 1 if a backend fails without --keep-going.
    """
    from harness.integrations.tritonbench.runner import run

    try:
        run(config, context.args, scope.value, case or (), forward)
    except RuntimeError as error:
        typer.echo(f"failed: {error}", err=True)
        raise typer.Exit(1) from None
