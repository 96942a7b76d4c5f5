"""A config's cases through the timing model of the simulator: modelled times in kernel scope, none of them measured."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import torch

from harness.cases import Case
from harness.config import BenchConfig
from harness.environment import Checkout, describe_checkout, triton_version
from harness.errors import UserError
from harness.inputs import make_problem
from harness.model_records import ModelledRecord
from harness.records import Status
from harness.rows import case_values
from harness.variants import ARCHITECTURES, Variant, choose_variants, distinct, load_implementation
from kernels.simulator import SimulationError
from kernels.simulator.processes import in_order
from kernels.simulator.timing import Event, Machine, load_machine, predict


@dataclass(frozen=True)
class Modelled:
    """A row of the file, and the events of a simulated SM where they were asked for."""

    record: ModelledRecord
    events: Sequence[Event] = ()


@dataclass(frozen=True)
class _Facts:
    run_id: str
    config_hash: str
    machine: Machine
    digest: str
    checkout: Checkout


@dataclass(frozen=True)
class Task:
    """One row to model; ``token`` is what the implementation calls the variant on this case."""

    case: Case
    variant: Variant
    impl: str
    token: str
    facts: _Facts
    events: bool


def choose_machine(name: str) -> Machine:
    """The machine of that name, or of a YAML file. Raises `UserError`."""
    try:
        return load_machine(name)
    except ValueError as error:
        raise UserError(f"--machine: {error}") from None


def choose_impl(machine: Machine, impl: str | None) -> str:
    """``impl``, or the implementation for the machine. Raises `UserError` for one that can't run there."""
    fitting = [name for name, arch in ARCHITECTURES.items() if arch == machine.arch]
    if impl is not None and impl not in fitting:
        raise UserError(f"--impl: got {impl!r}, but the machine {machine.name} is an sm_{machine.arch}; allowed: "
                        f"{', '.join(fitting)}")
    return fitting[0]


def digest(machine: Machine) -> str:
    """12 hex digits: a hash of the machine's values, where they come from left out."""
    values = {key: value for key, value in vars(machine).items() if key != "note"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def name_model_run(config: BenchConfig, machine: Machine) -> str:
    """The id of a new file of modelled figures."""
    return f"{config.name}-modelled-{machine.name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


def plan(config: BenchConfig, cases: Sequence[Case], backends: Sequence[str] | None, impl: str, machine: Machine,
         run_id: str, events: bool = False) -> list[Task]:
    """The rows to model: cases x the config's variants of ``impl``; of those that are the same for a case, the first.

    ``backends`` are names in the config, None for all. Raises `UserError` for one that isn't there.
    """
    implementation = load_implementation(impl)
    variants = choose_variants(config, backends, impl, implementation)
    facts = _Facts(run_id, config.config_hash, machine, digest(machine), describe_checkout())
    return [Task(case, variant, impl, token, facts, events) for case in cases
            for variant, token in distinct(variants, make_problem(case, "cpu"), implementation)]


def model(tasks: Sequence[Task], jobs: int = 1) -> Iterator[Modelled]:
    """The planned rows, one by one; ``jobs`` processes share them, their order and figures don't depend on it."""
    yield from in_order(_row, tasks, jobs)


def _row(task: Task) -> Modelled:
    variant, machine = task.variant, task.facts.machine
    try:
        found = predict(task.impl, make_problem(task.case, "cpu"), variant.direction, machine, variant.switches,
                        variant.schedule, events=task.events)
    except SimulationError as error:
        return Modelled(_record(task, Status.CRASH, f"the simulation found: [{error.check}] {error.text}"))
    except ValueError as error:  # options that exclude each other, or the problem
        return Modelled(_record(task, Status.UNSUPPORTED, str(error)))
    except Exception as error:  # of the model itself: the row's, not the run's
        return Modelled(_record(task, Status.CRASH, f"the model failed: {type(error).__name__}: {error}"))
    figures = {
        "predicted_ms": found.ms, "predicted_clock_mhz": found.clock_mhz, "bound_by": found.bound_by,
        "bound_share": max(found.shares.values(), default=0.0),
        "shares": _joined({name: f"{share:.3g}" for name, share in found.shares.items()}),
        "kernels": _joined({each.name: f"{each.ms:.4g} ms {each.how}" for each in found.kernels}),
        "model_s": found.seconds}
    message = f"modelled for {machine.name}, not measured"
    return Modelled(_record(task, Status.MODELLED, message, figures), found.events)


def _joined(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}={text}" for name, text in texts.items())


def _record(task: Task, status: Status, message: str, figures: Mapping[str, object] | None = None) -> ModelledRecord:
    facts, of_case = task.facts, case_values(task.case, task.variant.direction)
    values = dict(figures or {})
    if isinstance(ms := values.get("predicted_ms"), float):
        values["predicted_tflops"] = of_case["flops"] / ms / 1e9
    return ModelledRecord.model_validate({
        "run_id": facts.run_id, "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config_hash": facts.config_hash, "machine": facts.machine.name, "machine_digest": facts.digest,
        "backend": task.variant.name, "impl": task.token, "direction": task.variant.direction, "scope": "kernel",
        "status": status, "message": " ".join(message.split()) or status.value, "cache": "cold",
        "device_type": "model", "gpu": f"{facts.machine.name} (modelled)", "torch": torch.__version__,
        "triton": triton_version(), "python": platform.python_version(), "commit": facts.checkout.commit,
        "dirty": facts.checkout.dirty, **of_case, **values})
