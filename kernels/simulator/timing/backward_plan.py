"""Plans of the backwards: some of the tiles of one CTA of the full schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from kernels.hopper.backward_schedule import (
    ACC_BLOCK,
    AFTER_ITSELF,
    NEVER,
    OUT_START,
    Q_LEN,
    STEPS,
    BackwardSchedule,
)
from kernels.problem import JaggedProblem
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.plans import GAP, Plan, nearest
from kernels.simulator.timing.traffic import Reuse, Traffic

FP32, BF16 = 4, 2


class Habits(NamedTuple):
    """What of a backward's variant the model has to be told; the rest it sees in the kernel.

    ``rotated``: CTAs begin their rounds at different places. ``hinted``: partial dQ stays in L2 first. ``turns``: the
    tiles of sequences that are not owned take turns, see `kernels.hopper.backward_schedule.takes_turns`.
    """

    rotated: bool
    hinted: bool
    turns: bool = False


def backward_plan(problem: JaggedProblem, schedule: BackwardSchedule, main: str, block_m: int, ctas: int,
                  habits: Habits, machine: Machine, budget: int) -> Plan:
    """The plan of a backward with these tiles, dealt to persistent clusters of ``ctas`` CTAs beforehand.

    Where tiles take turns, all counters stand beyond what any tile waits for, as if other CTAs had been in time: a tile
    looks at its counter and counts itself, but nobody waits.
    """
    tiles, bounds = schedule.tiles.astype(np.int64), schedule.bounds.astype(np.int64)
    cost = tiles[:, STEPS] * problem.group_size + GAP
    work = np.array([cost[first:last].sum() for first, last in pairwise(bounds)])
    cluster = nearest(work)
    mine = np.arange(bounds[cluster], bounds[cluster + 1])
    chosen = _sample(tiles, mine, cost, budget, problem.broadcast_q)
    ends = np.zeros(len(bounds), dtype=np.int32)
    ends[cluster + 1 :] = len(chosen)
    tables = {"tiles": torch.from_numpy(schedule.tiles[chosen]), "bounds": torch.from_numpy(ends)}
    if habits.turns:
        tables["counters"] = torch.full((problem.batch * problem.num_heads_kv,), NEVER, dtype=torch.int32)
    return _plan(problem, schedule, main, block_m, habits, machine, tables, [ctas * cluster],
                 float(work.max() / cost[chosen].sum()), len(chosen))


def drawn_plan(problem: JaggedProblem, schedule: BackwardSchedule, main: str, block_m: int, ctas: int, habits: Habits,
               machine: Machine, budget: int) -> Plan:
    """The plan of a backward whose clusters draw tiles, each of which a cluster of the grid stands for."""
    cost = schedule.tiles[:, STEPS].astype(float) * problem.group_size + GAP
    clusters = int(machine.sms) // ctas
    fair = cost.sum() / clusters
    mine = np.arange(clusters // 2 % len(cost), len(cost), clusters)
    every = max(1, min(round(2 * fair / budget), len(mine) // 6))
    chosen = mine[every // 2 :: every]
    return _plan(problem, schedule, main, block_m, habits, machine, {}, (ctas * chosen).tolist(),
                 float((fair + cost[mine[-1]] / 2) / cost[chosen].sum()), len(chosen))


def _plan(problem: JaggedProblem, schedule: BackwardSchedule, main: str, block_m: int, habits: Habits,
          machine: Machine, tables: Mapping[str, torch.Tensor], pids: Sequence[int], scale: float,
          tiles: int) -> Plan:
    before, after = _passes(problem, schedule, block_m, habits.turns)
    traffic = _traffic(problem, schedule, habits, machine)
    return Plan(problem, main, lambda _: tables, pids, 1, traffic, scale, tiles, before=before, after=after)


def _sample(tiles: np.ndarray, mine: np.ndarray, cost: np.ndarray, budget: int, broadcast: bool) -> np.ndarray:
    """Some of a CTA's tiles, evenly; sequences that it owns stay whole."""
    begins = np.ones(len(mine), dtype=bool) if broadcast else tiles[mine, AFTER_ITSELF] == 0
    unit = np.cumsum(begins) - 1
    every = max(1, round(2 * cost[mine].sum() / budget))
    every = min(every, max(1, (unit[-1] + 1) // 6))
    return mine[unit % every == every // 2]


def _traffic(problem: JaggedProblem, schedule: BackwardSchedule, habits: Habits, machine: Machine) -> Traffic:
    """Q and dO are read once by each tile of their sequence.

    Where the tiles are dealt one by one, that is at the same time; unless rounds are ``rotated``, and then each read
    finds nothing. Where they take ``turns``, it is at three times, for the opening tile, those in the middle and the
    closing one, and between two of them pass Q, dO and partial dQ of all such sequences. Where one CTA has a sequence's
    tiles, Q, dO and partial dQ stay in L2 from tile to tile as far as those of all CTAs fit it: all CTAs are at
    sequences like this one, or ``rotated`` at any. ``hinted``: partial dQ of owned sequences stays first.

    Which way a tile walks has no part in this, so a serpentine walk is worth nothing here. That the share of a set that
    fits is found again is right for one, in a cache that keeps what was used last; a walk that always goes forwards may
    find less.
    """
    tiles = schedule.tiles.astype(np.int64)
    tiles = tiles[tiles[:, STEPS] > 0]
    heads, ctas = problem.num_heads_kv, len(schedule.bounds) - 1
    ends, first, counts = np.unique(tiles[:, OUT_START] + tiles[:, Q_LEN], return_index=True, return_counts=True)
    owned = (tiles[first, ACC_BLOCK] < schedule.shared_at) & (counts > heads) & (not problem.broadcast_q)
    row_bytes = problem.head_dim * problem.group_size * (2 * BF16 + FP32)
    rows = tiles[first, Q_LEN].astype(float)
    weight = np.where(owned, counts * rows, 0.0)
    if habits.rotated and weight.sum():
        rows[:] = np.average(rows, weights=weight)
    alone = np.where(owned, rows * row_bytes * ctas, 0.0)
    times = np.where(habits.rotated & ~owned & (not problem.broadcast_q), 1.0, counts / heads)
    if habits.turns:
        in_turn = tiles[first, ACC_BLOCK] >= schedule.shared_at
        passed = float(rows[in_turn].sum()) * row_bytes * heads
        lost = max(0.0, 1 - machine.l2_mib * 2**20 / passed) if passed else 0.0
        times = np.where(in_turn, times / (1 + (np.minimum(times, 3) - 1) * lost), times)
    reads = Reuse(dict(zip(ends.tolist(), times.tolist(), strict=True)),
                  dict(zip(ends.tolist(), alone.tolist(), strict=True)))
    mean_times = float(np.average(times, weights=counts)) if len(times) else 1.0
    mean_set = float(np.average(alone, weights=weight)) if weight.sum() else 0.0
    queries = Reuse(otherwise=float(len(tiles))) if problem.broadcast_q else reads
    kept = problem.broadcast_q or not schedule.shared_blocks  # each block is written again and again
    partial = Reuse(otherwise=float(len(tiles)) if kept else mean_times,
                    otherwise_set=mean_set * (FP32 / (2 * BF16 + FP32) if habits.hinted else 1.0))
    return Traffic({"desc_q": queries, "desc_do": reads, "rows": Reuse(otherwise=mean_times), "desc_acc": partial},
                   machine.l2_mib * 2**20)


def _passes(problem: JaggedProblem, schedule: BackwardSchedule, block_m: int,
            turns: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of the kernels before and after, by name. Where tiles take turns, none zeroes or casts dQ."""
    heads, dim = problem.num_heads_q, problem.head_dim
    rows = problem.layout_q.total * heads
    shared = 0 if turns else schedule.shared_blocks * block_m * heads * dim
    prepare = rows * (2 * dim * BF16 + 3 * FP32) + shared * FP32
    if problem.broadcast_q:
        one = problem.layout_q.max_seqlen * heads * dim
        return {"prepare": prepare}, {"sum": one * (schedule.copies * FP32 + BF16)}
    return {"prepare": prepare}, {"cast": shared * (FP32 + BF16)} if shared else {}
