"""Runs the operator as TritonBench's own ``run.py`` runs those of its tree: its parser, its loop, its output."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from harness.backends import registry
from harness.config import load_config
from harness.errors import UserError
from harness.integrations.tritonbench import do_bench

NAME = "jagged_flash_attention"
MODULES = (*do_bench.MODULES, "tabulate", "psutil")
REFUSED = {  # options of theirs that can't mean anything here, and why; by their names in the parser's result
    "ci": "it is for operators of their tree", "isolate": "it is for operators of their tree",
    "operator_loader": "it is for operators of their tree", "input_loader": "the config gives the inputs",
    "list_metrics": "it is for operators of their tree", "list_backends": "the config lists the backends",
    "side_a": "`harness compare` compares", "export": "inputs follow from the config", "plot": "it draws nothing",
    "tritonparse": "it is for operators of their tree"}
REFUSED_METRICS = {"compile_time", "compile_time_by_stage", "compile_trace"}  # load the operator from their tree


def run(config: Path, arguments: Sequence[str] = (), scope: str = "kernel", cases: Sequence[str] = (),
        forward: bool = False) -> Any:
    """Run the operator on a config's cases; returns their `BenchmarkOperatorResult`, which was printed and written.

    ``arguments`` are TritonBench's options. ``forward`` insists on its default mode. Raises `UserError` for what the
    user can mend, and `RuntimeError` when a backend fails, unless ``--keep-going`` is among the arguments.
    """
    if problem := do_bench.missing(MODULES):
        raise UserError(problem)
    device = _device(arguments)
    for backend in load_config(config).backends:  # before anything imports triton
        os.environ.update(registry.create(backend.backend, backend.options).environment(device))
    from tritonbench.utils.parser import get_parser

    from harness.integrations.tritonbench.operators.jagged_flash_attention import Operator

    words = ["--op", NAME, *arguments]
    options, rest = get_parser(words).parse_known_args(words)
    _refuse(options, forward)
    own = ["--config", str(config), "--scope", scope, *(word for case in cases for word in ("--case", case))]
    operator = Operator(tb_args=options, extra_args=[*own, *rest])
    try:
        with redirect_stdout(sys.stderr):  # standard output is the table's
            operator.run(options.warmup, options.iter)
    finally:
        _write(operator.output, options)
    return operator.output


def _device(arguments: Sequence[str]) -> str:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--device", "-d", default="cuda")
    device = parser.parse_known_args(arguments)[0].device
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: there is no GPU here; allowed: --device cpu")
    return device


def _refuse(options: argparse.Namespace, forward: bool) -> None:
    given = vars(options)
    for name, why in REFUSED.items():
        if given[name]:
            raise UserError(f"--{name.replace('_', '-')}: can't be used here: {why}")
    if options.op != NAME:
        raise UserError(f"--op: got {options.op!r}; allowed: {NAME}")
    if options.precision != "bypass":
        raise UserError(f"--precision: got {options.precision!r}, but the config's cases say their dtype")
    if found := REFUSED_METRICS & set((options.metrics or "").split(",")):
        raise UserError(f"--metrics: {', '.join(sorted(found))}: for operators of their tree only")
    if forward and (options.mode != "fwd" or options.bwd or options.fwd_bwd or options.fwd_no_grad):
        raise UserError("--fwd: another direction is asked for, too; allowed is one a run")


def _write(result: Any, options: argparse.Namespace) -> None:
    """To where their options say, in their formats."""
    if not options.skip_print:
        if options.csv:
            result.write_csv_to_file(sys.stdout)
        else:
            print(result)
    files = [(options.output, result.write_csv_to_file), (options.output_json, result.write_json_to_file)]
    if options.output_dir:
        ending, write = ("csv", result.write_csv_to_file) if options.csv else ("json", result.write_json_to_file)
        files.append((os.path.join(options.output_dir, f"{NAME}.{ending}"), write))
    for path, write in files:
        if path:
            with open(path, "w", encoding="utf-8") as file:
                write(file)
