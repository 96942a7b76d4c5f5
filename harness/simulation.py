"""A config's cases through one of this project's TLX implementations in the simulator, over many schedules.

Outputs are held to the limits that a run on a GPU is held to (`harness.correctness`), and every element of each must
be stored exactly once. The backward starts from the oracle's O and LSE.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
import torch
from rich.table import Table

from harness.backends.base import Outputs
from harness.cases import Case
from harness.config import BenchConfig, CheckConfig
from harness.correctness import Oracle
from harness.inputs import Inputs, make_inputs, make_problem
from harness.summary import new_table
from harness.variants import ARCHITECTURES, Variant, choose_variants, distinct, load_implementation
from kernels import dispatch, reference
from kernels.autograd import packed
from kernels.implementation import Direction, Implementation
from kernels.simulator import Schedule, SimulationError, Simulator
from kernels.simulator.processes import in_order

SMS = 2
WRONG = "wrong"  # beside the simulator's own checks: an output beyond its limit


@dataclass(frozen=True)
class Finding:
    """What one schedule showed: ``check`` is a key of `kernels.simulator.CHECKS`, or `WRONG`."""

    schedule: Schedule
    check: str
    text: str


@dataclass(frozen=True)
class Row:
    """One case, direction and variant. ``share``: the most that an output took of its limit, of schedules that passed.

    ``impl`` is what the implementation calls the variant; ``declined`` says why it ran none of the schedules.
    """

    case: Case
    direction: Direction
    backend: str
    impl: str
    schedules: int
    findings: Sequence[Finding]
    share: float
    seconds: float
    declined: str = ""

    @property
    def passed(self) -> int:
        """Schedules without a finding."""
        return 0 if self.declined else self.schedules - len(self.findings)

    @property
    def found(self) -> str:
        """Counts of the findings by check, or why nothing ran."""
        counts = Counter(finding.check for finding in self.findings)
        if self.declined:
            return f"declined: {self.declined}"
        return ", ".join(f"{count} {check}" for check, count in counts.items())

    @property
    def first_findings(self) -> list[Finding]:
        """The first of each check."""
        return list({finding.check: finding for finding in reversed(self.findings)}.values())[::-1]


@dataclass(frozen=True)
class _Task:
    """One row to simulate; ``token`` is what the implementation calls the variant on this case."""

    case: Case
    check: CheckConfig
    variant: Variant
    impl: str
    token: str
    schedules: Sequence[Schedule]


def simulate(config: BenchConfig, cases: Sequence[Case], backends: Sequence[str] | None, impl: str,
             schedules: Sequence[Schedule], jobs: int = 1) -> Iterator[Row]:
    """The rows of a config, one by one: cases x directions x the config's `jfa` backends that can be ``impl``.

    A backend with switches for one direction only runs in that one; of variants that are the same for a case, the
    first runs. Cases that are not meant for a CPU are left out. ``backends`` are names in the config, None for all.
    ``jobs`` processes share the rows, whose order and content don't depend on it.
    Raises `UserError` for one that isn't there, for an unknown ``impl``, and where nothing is left to simulate.
    """
    implementation = load_implementation(impl)
    variants = choose_variants(config, backends, impl, implementation)
    tasks = [_Task(case, config.check, variant, impl, token, schedules)
             for case in cases if not case.declines("cpu")  # else it is too large for a CPU
             for variant, token in distinct(variants, make_problem(case, "cpu"), implementation)]
    yield from in_order(_row, tasks, jobs)


def to_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """One line per row, for CSV."""
    return pd.DataFrame([{
        "case": row.case.name, "case_id": row.case.case_id, "direction": row.direction, "variant": row.backend,
        "impl": row.impl, "schedules": row.schedules, "passed": row.passed, "share_of_limit": float(f"{row.share:.3g}"),
        "found": row.found} for row in rows])


def simulation_table(rows: Sequence[Row], title: str) -> Table:
    """The same for the terminal."""
    table = new_table(title, case="left", direction="left", variant="left", impl="left", passed="right")
    for heading in ("of limit", "s each"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("findings", no_wrap=True)
    for row in rows:
        passed = "-" if row.declined else f"{row.passed}/{row.schedules}"
        share = "-" if pd.isna(row.share) else f"{row.share:.2f}"
        table.add_row(row.case.name, row.direction, row.backend, row.impl, passed, share,
                      f"{row.seconds / max(row.schedules, 1):.2f}", row.found)
    return table


@lru_cache(maxsize=1)  # the rows of a case follow each other
def _prepare(case: Case, check: CheckConfig) -> tuple[Inputs, Oracle]:
    inputs = make_inputs(case, "cpu")
    return inputs, Oracle(inputs, check.max_pairs, check.tolerance_factor)


def _row(task: _Task) -> Row:
    inputs, oracle = _prepare(task.case, task.check)
    variant, schedules, arch = task.variant, task.schedules, ARCHITECTURES[task.impl]
    implementation = dispatch.load(task.impl)
    call = _call(inputs, variant, implementation)
    findings: list[Finding] = []
    share, declined, began = float("nan"), "", time.perf_counter()
    for schedule in schedules:
        resident = SMS if schedule.seed % 2 else 1  # CTAs that run at the same time
        simulator = Simulator(schedule.seed, schedule.mode, arch=arch, sms=SMS, resident=resident)
        try:
            with simulator:
                declined = implementation.declines(inputs.problem, variant.direction, torch.device("cuda")) or ""
                if declined:
                    break
                outputs = call()
            check = oracle.check_forward if variant.direction == "fwd" else oracle.check_backward
            verdict = check(outputs)
            if verdict.message:
                findings.append(Finding(schedule, WRONG, verdict.message))
                continue
            if inputs.problem.layout_q.total and inputs.problem.layout_k.total:  # else the host writes them
                for name, tensor in vars(outputs).items():
                    if tensor is not None:
                        simulator.check_written(tensor, name=name)
            share = max(share, verdict.share) if share == share else verdict.share
        except SimulationError as error:
            findings.append(Finding(schedule, error.check, str(error)))
        except ValueError as error:
            if simulator.switches:  # a kernel had begun
                raise
            declined = str(error)  # options that exclude each other, or the problem
            break
    return Row(inputs.case, variant.direction, variant.name, task.token, len(schedules), findings, share,
               time.perf_counter() - began, declined)


def _call(inputs: Inputs, variant: Variant, implementation: Implementation) -> Callable[[], Outputs]:
    """The call to simulate, with a layout of its own each time: nothing that is kept there outlives a simulation."""
    q, k, v, dout = (packed(tensor) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout))
    plan = {"schedule": variant.schedule, "options": variant.options}
    if variant.direction == "fwd":
        def forward() -> Outputs:
            out, lse = implementation.forward(make_problem(inputs.case, "cpu"), q, k, v, **plan)  # type: ignore[arg-type]
            return Outputs(out=out, lse=lse)

        return forward
    exact, lse = reference.attention_reference(inputs.problem, q, k, v)
    out, lse = exact.to(q.dtype), lse.float()

    def backward() -> Outputs:
        problem = make_problem(inputs.case, "cpu")
        dq, dk, dv = implementation.backward(problem, q, k, v, out, lse, dout, **plan)  # type: ignore[arg-type]
        return Outputs(dq=dq, dk=dk, dv=dv)

    return backward
