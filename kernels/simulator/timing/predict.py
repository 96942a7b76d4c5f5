"""`predict`: one call of an implementation on a machine."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from kernels import dispatch
from kernels.implementation import Direction
from kernels.problem import JaggedProblem
from kernels.simulator.timing.backward_plan import backward_plan
from kernels.simulator.timing.engine import TimedMachine
from kernels.simulator.timing.forward_plan import forward_plan
from kernels.simulator.timing.launches import TimedSimulator
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.plans import Plan
from kernels.simulator.timing.power import clock_under_cap
from kernels.simulator.timing.prediction import RESOURCES, Event, KernelTime, Prediction
from kernels.tile_schedule import TileShape

ARCHITECTURES = {"hopper": 90, "blackwell": 100}
_SERVERS = dict(zip(RESOURCES, ("tensor", "issue", "fma", "alu", "mufu", "smem", "tmem", "l2", "hbm"), strict=True))


def predict(implementation: str, problem: JaggedProblem, direction: Direction, machine: Machine,
            options: Mapping[str, object] | None = None, schedule: str | None = None, *,
            events: bool = False, budget: int = 1500) -> Prediction:
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
    kernels = dispatch.load(implementation)
    made = kernels.make_options(direction, options) if options else None
    variant = kernels.describe(problem, direction, schedule, made)
    plan = _plan(implementation, problem, direction, made, schedule, machine, budget)
    tensors = [torch.empty(shape, dtype=problem.dtype) for shape in (
        plan.problem.q_shape, plan.problem.kv_shape, plan.problem.kv_shape, plan.problem.out_shape)]
    q, k, v, out = tensors
    simulator = TimedSimulator(machine, float(machine.clock_mhz), plan.main, plan.arguments, plan.pids, plan.traffic,
                               resident=plan.resident, record=events)
    with simulator:
        if direction == "fwd":
            kernels.forward(plan.problem, q, k, v, schedule=schedule, options=made)
        else:
            lse = torch.empty((problem.num_heads_q, plan.problem.layout_q.total), dtype=torch.float32)
            kernels.backward(plan.problem, q, k, v, out, lse, torch.empty_like(out), schedule=schedule, options=made)
    engine = simulator.machine
    assert engine is not None, "the call launched no main kernel"
    shares = _shares(engine)
    clock = clock_under_cap(machine, shares, engine.time * plan.scale / machine.clock_mhz / 1e3)
    main = KernelTime(plan.main, machine.launch_us / 1e3 + engine.time * plan.scale / clock / 1e3, "simulated")
    passes = [[KernelTime(name, machine.launch_us / 1e3 + nbytes / machine.hbm_tbps / 1e9, "bytes")
               for name, nbytes in each.items()] for each in (plan.before, plan.after)]
    times = (*passes[0], main, *passes[1])
    busiest = max(shares, key=lambda name: shares[name])
    text = f"{busiest} ({shares[busiest]:.0%})"
    return Prediction(machine.name, variant, direction, sum(each.ms for each in times), times, clock, shares,
                      text if shares[busiest] >= 0.5 else f"waiting (busiest: {text})", 1, engine.tiles,
                      engine.matmuls, plan.scale, time.perf_counter() - began, _events(engine, clock))


def _plan(implementation: str, problem: JaggedProblem, direction: Direction, made: object, schedule: str | None,
          machine: Machine, budget: int) -> Plan:
    from kernels.hopper import resolve_forward
    from kernels.hopper.backward import BLOCK_M, BLOCK_N
    from kernels.hopper.backward_options import HopperBackwardOptions, select
    from kernels.hopper.backward_schedule import build

    if direction == "bwd":
        chosen = made if isinstance(made, HopperBackwardOptions) else select(problem)
        block_m = BLOCK_M[problem.head_dim]
        programs = min(int(machine.sms), problem.num_heads_kv * int((-(-problem.layout_k.lengths // BLOCK_N)).sum()))
        built = build(problem, chosen, schedule or "zigzag", programs, block_m, BLOCK_N)
        return backward_plan(problem, built, "jagged_backward_ahead" if chosen.ahead else "jagged_backward", block_m,
                             chosen.kernel_delta, machine, budget)
    options = resolve_forward(problem, schedule, made)
    return forward_plan(problem, TileShape(options.block_m, options.block_n), options.schedule, options.streams,
                        options.ctas_per_sm, options.consumer_groups, machine, budget)


def _shares(engine: TimedMachine) -> dict[str, float]:
    return {name: min(1.0, getattr(engine.sms[0], server).busy / engine.time) for name, server in _SERVERS.items()}


def _events(engine: TimedMachine, clock_mhz: float) -> tuple[Event, ...]:
    return tuple(Event(lane, name, start / clock_mhz, length / clock_mhz, stall)
                 for lane, name, start, length, stall in sorted(engine.spans, key=lambda span: span[2]))
