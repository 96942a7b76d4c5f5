"""The plan of each implementation's call: what its launcher would choose, and what its compiled code was seen to do."""

from __future__ import annotations

from kernels.blackwell import backward_options as blackwell_backward
from kernels.blackwell import options as blackwell_forward
from kernels.blackwell.backward import tables
from kernels.hopper import options as hopper_forward
from kernels.hopper import resolve_forward
from kernels.hopper.backward import BLOCK_M, BLOCK_N
from kernels.hopper.backward_options import HopperBackwardOptions, select
from kernels.hopper.backward_schedule import TOUCHED, build, takes_pairs, takes_turns
from kernels.hopper.forward import heads_a_section
from kernels.implementation import Direction
from kernels.problem import JaggedProblem
from kernels.simulator.timing.backward_plan import Habits, backward_plan, drawn_plan
from kernels.simulator.timing.forward_plan import forward_plan
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.plans import Plan
from kernels.tile_schedule import TileShape, heads_within
from kernels.tlx_support import not_covered


def demand_covered(implementation: str, problem: JaggedProblem, direction: Direction) -> None:
    """Raises `ValueError` for a problem that the implementation declines on any GPU, or for which no kernel runs."""
    head_dims = {"hopper": hopper_forward.HEAD_DIMS, "blackwell": blackwell_forward.HEAD_DIMS}[implementation]
    if reason := not_covered(problem, direction, head_dims):
        raise ValueError(f"{implementation}: {reason}")
    if not (problem.layout_q.total and problem.layout_k.total):
        raise ValueError("no sequence has rows of Q, or none has keys: no main kernel runs that could be timed")


def make_plan(implementation: str, problem: JaggedProblem, direction: Direction, options: object | None,
              schedule: str | None, machine: Machine, budget: int) -> Plan:
    """The plan of a call of ``hopper`` or ``blackwell``; ``options`` are the implementation's own, None its rule's."""
    plans = {("hopper", "fwd"): _hopper_forward, ("hopper", "bwd"): _hopper_backward,
             ("blackwell", "fwd"): _blackwell_forward, ("blackwell", "bwd"): _blackwell_backward}
    return plans[implementation, direction](problem, options, schedule, machine, budget)


def _hopper_forward(problem: JaggedProblem, options: object | None, schedule: str | None, machine: Machine,
                    budget: int) -> Plan:
    """Exponentials don't run beside their own group's O += P V: without a mask ptxas was seen to move them below the
    wait, and where they stay above, behind a mask, nothing was won (kernels/hopper/NOTES.md)."""
    chosen = resolve_forward(problem, schedule, options)
    section = heads_a_section(chosen, problem.num_heads_q, problem.num_heads_kv, problem.head_dim,
                              problem.layout_k.max_seqlen)
    return forward_plan(problem, TileShape(chosen.block_m, chosen.block_n), chosen.schedule, chosen.streams,
                        chosen.ctas_per_sm, chosen.consumer_groups, section, True, machine, budget)


def _blackwell_forward(problem: JaggedProblem, options: object | None, schedule: str | None, machine: Machine,
                       budget: int) -> Plan:
    chosen = blackwell_forward.resolve_forward(problem, schedule, options)
    section = heads_within(chosen.section_mb, problem.num_heads_q, problem.num_heads_kv, problem.head_dim,
                           problem.layout_k.max_seqlen)
    return forward_plan(problem, TileShape(chosen.block_m, chosen.block_n), chosen.schedule, 1, 1, 2, section, False,
                        machine, budget)


def _hopper_backward(problem: JaggedProblem, options: object | None, schedule: str | None, machine: Machine,
                     budget: int) -> Plan:
    chosen = options if isinstance(options, HopperBackwardOptions) else select(problem)
    block_n = BLOCK_N[problem.head_dim]
    tiles = problem.num_heads_kv * int((-(-problem.layout_k.lengths // block_n)).sum())
    programs = min(int(machine.sms), tiles)
    built = build(problem, chosen, schedule or "zigzag", programs, BLOCK_M, block_n)
    if built.tiles[:, TOUCHED].any():
        raise ValueError("counted: not modelled, as CTAs of all SMs wait for each other's counts")
    if takes_pairs(problem, chosen, programs, BLOCK_M, block_n):
        raise ValueError("pairs: not modelled, as one CTA of a pair waits for the other")
    turns = takes_turns(problem, chosen, programs)
    habits = Habits(chosen.rotate and not problem.broadcast_q, chosen.l2_hints, turns)
    return backward_plan(problem, built, "jagged_backward", BLOCK_M, 1, habits, machine, budget)


def _blackwell_backward(problem: JaggedProblem, options: object | None, schedule: str | None, machine: Machine,
                        budget: int) -> Plan:
    order = schedule or "zigzag"
    chosen = (options if isinstance(options, blackwell_backward.BlackwellBackwardOptions)
              else blackwell_backward.select(problem, order))
    device = problem.layout_k.cu_seqlens.device
    built = tables(problem, chosen, order, int(machine.sms), device).schedule
    habits = Habits(False, False)
    if order == "clc":
        return drawn_plan(problem, built, "jagged_backward", chosen.block_m, chosen.ctas, habits, machine, budget)
    return backward_plan(problem, built, "jagged_backward", chosen.block_m, chosen.ctas, habits, machine, budget)
