"""A case: a call that launches kernels, and what its outputs must be. Sweeps run cases over schedules."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.simulator.errors import Allowed, SimulationError
from kernels.simulator.launcher import Simulator
from kernels.simulator.schedules import Schedule


@dataclass(frozen=True)
class Output:
    """One output of a case and what it is compared with.

    ``value`` and ``reference`` have one shape. The error is the largest difference divided by the reference's
    largest magnitude (at least 1e-6), infinities and NaNs having to match; ``where`` (bool, broadcast) says which
    elements are compared. ``times``: how often kernels may write each element; None for any number from one, 0 for no
    such check (host code writes it).
    """

    name: str
    value: torch.Tensor
    reference: torch.Tensor
    tolerance: float = 2e-2
    times: int | None = 1
    where: torch.Tensor | None = None

    def error(self) -> float:
        """Relative to the largest finite magnitude; infinite where exactly one side is not finite."""
        value, reference = self.value.double(), self.reference.double()
        if self.where is not None:
            where = self.where.expand(value.shape)
            value, reference = value[where], reference[where]
        finite = reference.isfinite()
        same = torch.where(finite, value.isfinite(), (value == reference) | (value.isnan() & reference.isnan()))
        if not bool(same.all()):
            return float("inf")
        if not bool(finite.any()):
            return 0.0
        scale = max(float(reference[finite].abs().max()), 1e-6)
        return float((value - reference)[finite].abs().max()) / scale


Call = Callable[[], Sequence[Output]]


@dataclass(frozen=True)
class Case:
    """``prepare()`` makes inputs and references once and returns the call to simulate, which returns its outputs."""

    name: str
    arch: int
    prepare: Callable[[], Call]
    allow: tuple[Allowed, ...] = ()
    config: Callable[[str, Any], bool] | None = None
    sms: int = 2
    resident: int = 1
    equivalents: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What one schedule gave: ``check`` is None if all was right, else a key of `CHECKS`, ``wrong`` or ``python``."""

    schedule: Schedule
    check: str | None
    text: str
    seconds: float
    counts: Mapping[str, int]
    worst: float = float("nan")

    @property
    def ok(self) -> bool:
        """Right, and nothing found."""
        return self.check is None


def run_schedule(case: Case, call: Call, schedule: Schedule, **options: Any) -> tuple[Outcome, Simulator]:
    """Run ``call`` (from ``case.prepare()``) once; ``options`` override the simulator's."""
    settings: dict[str, Any] = {"arch": case.arch, "allow": case.allow, "config": case.config, "sms": case.sms,
                                "resident": case.resident, "equivalents": case.equivalents}
    simulator = Simulator(schedule.seed, schedule.mode, **{**settings, **options})
    began = time.perf_counter()
    check, text, worst = None, "", float("nan")
    try:
        with simulator:
            outputs = call()
        errors = {output.name: output.error() for output in outputs}
        worst = max(errors.values())
        for output in outputs:
            if not errors[output.name] <= output.tolerance:
                check, text = "wrong", f"{output.name}: error {errors[output.name]:.3g} > {output.tolerance:g}"
                break
            if output.times != 0 and simulator.races:
                simulator.check_written(output.value, name=output.name, times=output.times)
    except SimulationError as error:
        check, text = error.check, str(error)
    seconds = time.perf_counter() - began
    return Outcome(schedule, check, text, seconds, dict(simulator.findings.counts), worst), simulator


@dataclass(frozen=True)
class Sweep:
    """A case over several schedules."""

    case: Case
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> list[Outcome]:
        """The outcomes that are not right."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def counts(self) -> Counter[str]:
        """Findings that were allowed, over all schedules."""
        total: Counter[str] = Counter()
        for outcome in self.outcomes:
            total.update(outcome.counts)
        return total

    def summary(self) -> str:
        """One line."""
        verdicts = Counter(outcome.check or "ok" for outcome in self.outcomes)
        seconds = sum(outcome.seconds for outcome in self.outcomes) / max(len(self.outcomes), 1)
        worst = max((outcome.worst for outcome in self.outcomes if outcome.ok), default=float("nan"))
        allowed = f"; allowed {dict(self.counts)}" if self.counts else ""
        return (f"{self.case.name}: {', '.join(f'{n} {what}' for what, n in verdicts.items())}; "
                f"worst error {worst:.2g}; {seconds:.2f} s a schedule{allowed}")


def sweep(case: Case, over: Iterable[Schedule], **options: Any) -> Sweep:
    """Run the case over the schedules, from one set of inputs."""
    call = case.prepare()
    return Sweep(case, [run_schedule(case, call, schedule, **options)[0] for schedule in over])
