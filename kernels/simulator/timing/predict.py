"""`predict`: one call of an implementation on a machine."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from kernels import dispatch
from kernels.implementation import Direction, Implementation
from kernels.problem import JaggedProblem
from kernels.simulator.timing.choices import demand_covered, make_plan
from kernels.simulator.timing.engine import TimedMachine
from kernels.simulator.timing.launches import TimedSimulator
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.plans import Plan
from kernels.simulator.timing.power import clock_under_cap
from kernels.simulator.timing.prediction import RESOURCES, Event, KernelTime, Prediction

ARCHITECTURES = {"hopper": 90, "blackwell": 100}
_SERVERS = dict(zip(RESOURCES, ("tensor", "issue", "fma", "alu", "mufu", "smem", "tmem", "l2", "hbm"), strict=True))


def predict(implementation: str, problem: JaggedProblem, direction: Direction, machine: Machine,
            options: Mapping[str, object] | None = None, schedule: str | None = None, *,
            events: bool = False, budget: int = 600) -> Prediction:
    """How long ``implementation`` (``hopper`` or ``blackwell``) takes for the problem on the machine: modelled.

    Args:
        problem: with layouts on the CPU (`harness.inputs.make_problem(case, "cpu")`).
        options: plain values of the implementation's switches, as in a config's ``fwd`` or ``bwd``; None: its rule's.
        schedule: an order of tiles, as in a config; None: the implementation's own.
        events: collect `Prediction.events`, of the first ``budget`` steps at most.
        budget: steps (matmul rounds of a task) of one SM to simulate at most, about; the rest is extended linearly.

    Takes seconds. Raises `ValueError` for a machine of another architecture than the implementation's, and for
    options or a problem that the implementation refuses, with its reason.
    """
    began = time.perf_counter()
    if implementation not in ARCHITECTURES:
        raise ValueError(f"impl: expected one of {', '.join(ARCHITECTURES)}, got {implementation!r}")
    if ARCHITECTURES[implementation] != machine.arch:
        raise ValueError(f"impl: {implementation} is for sm_{ARCHITECTURES[implementation]}, {machine.name} is "
                         f"sm_{machine.arch}")
    demand_covered(implementation, problem, direction)
    kernels = dispatch.load(implementation)
    made = kernels.make_options(direction, options) if options else None
    variant = kernels.describe(problem, direction, schedule, made)
    plan = make_plan(implementation, problem, direction, made, schedule, machine, budget)
    engine = simulate(kernels, plan, direction, machine, made, schedule, record=events)
    shares = _shares(engine)
    clock = clock_under_cap(machine, shares, engine.time * plan.scale / machine.clock_mhz / 1e3)
    main = KernelTime(plan.main, machine.launch_us / 1e3 + engine.time * plan.scale / clock / 1e3, "simulated")
    passes = [[KernelTime(name, machine.launch_us / 1e3 + nbytes / machine.hbm_tbps / 1e9, "bytes")
               for name, nbytes in each.items()] for each in (plan.before, plan.after)]
    times = (*passes[0], main, *passes[1])
    busiest = max(shares, key=lambda name: shares[name])
    text = f"{busiest} ({shares[busiest]:.0%})"
    return Prediction(machine.name, variant, direction, sum(each.ms for each in times), times, clock, shares,
                      text if shares[busiest] >= 0.5 else f"waiting (busiest: {text})", 1, plan.tiles,
                      engine.matmuls, plan.scale, time.perf_counter() - began, _events(engine, clock))


def simulate(kernels: Implementation, plan: Plan, direction: Direction, machine: Machine, options: object | None,
             schedule: str | None, *, record: bool = False) -> TimedMachine:
    """The main kernel's launch, after it: times in clocks, busy units, and with ``record`` spans."""
    problem = plan.problem
    q, k, v, out = (torch.empty(shape, dtype=problem.dtype) for shape in (
        problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape))
    simulator = TimedSimulator(machine, float(machine.clock_mhz), plan.main, plan.arguments, plan.pids, plan.traffic,
                               resident=plan.resident, sinks=plan.sinks, record=record)
    with simulator:
        if direction == "fwd":
            kernels.forward(problem, q, k, v, schedule=schedule, options=options)
        else:
            lse = torch.empty((problem.num_heads_q, problem.layout_q.total), dtype=torch.float32)
            kernels.backward(problem, q, k, v, out, lse, torch.empty_like(out), schedule=schedule, options=options)
    assert simulator.machine is not None, "the call launched no main kernel"
    return simulator.machine


def _shares(engine: TimedMachine) -> dict[str, float]:
    busy = engine.sms[0].busy()
    return {name: min(1.0, busy[server] / engine.time) for name, server in _SERVERS.items()}


def _events(engine: TimedMachine, clock_mhz: float) -> tuple[Event, ...]:
    return tuple(Event(lane, name, start / clock_mhz, length / clock_mhz, stall)
                 for lane, name, start, length, stall in sorted(engine.spans, key=lambda span: span[2]))
