"""Plans of the backwards: some of the tiles of one CTA of the full schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kernels.hopper.backward_schedule import (
    ACC_BLOCK,
    AFTER_ITSELF,
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


def backward_plan(problem: JaggedProblem, schedule: BackwardSchedule, main: str, block_m: int, delta_inside: bool,
                  machine: Machine, budget: int) -> Plan:
    """The plan of a backward with these tiles, dealt to persistent CTAs beforehand, one an SM."""
    tiles, bounds = schedule.tiles.astype(np.int64), schedule.bounds.astype(np.int64)
    cost = tiles[:, STEPS] * problem.group_size + GAP
    work = np.array([cost[first:last].sum() for first, last in pairwise(bounds)])
    pid = nearest(work)
    mine = np.arange(bounds[pid], bounds[pid + 1])
    chosen = _sample(tiles, mine, cost, budget, problem.broadcast_q)
    ends = np.zeros(len(bounds), dtype=np.int32)
    ends[pid + 1 :] = len(chosen)
    tables = {"tiles": torch.from_numpy(schedule.tiles[chosen]), "bounds": torch.from_numpy(ends)}

    def arguments(_: dict[str, Any]) -> dict[str, Any]:
        return tables

    before, after = _passes(problem, schedule, block_m, delta_inside)
    return Plan(problem, main, arguments, [pid], 1, _traffic(problem, schedule, machine),
                float(work.max() / cost[chosen].sum()), before, after)


def _sample(tiles: np.ndarray, mine: np.ndarray, cost: np.ndarray, budget: int, broadcast: bool) -> np.ndarray:
    """Some of a CTA's tiles, evenly; sequences that it owns stay whole."""
    begins = np.ones(len(mine), dtype=bool) if broadcast else tiles[mine, AFTER_ITSELF] == 0
    unit = np.cumsum(begins) - 1
    every = max(1, round(2 * cost[mine].sum() / budget))
    every = min(every, max(1, (unit[-1] + 1) // 6))
    return mine[unit % every == every // 2]


def _traffic(problem: JaggedProblem, schedule: BackwardSchedule, machine: Machine) -> Traffic:
    """Q and dO are read once by each tile of their sequence. Where one CTA has all of these, they stay in L2 in between
    as far as all CTAs' sequences fit it; where the tiles are dealt, they go at the same time."""
    tiles = schedule.tiles.astype(np.int64)
    tiles = tiles[tiles[:, STEPS] > 0]
    heads = problem.num_heads_kv
    end = tiles[:, OUT_START] + tiles[:, Q_LEN]
    ends, first, counts = np.unique(end, return_index=True, return_counts=True)
    times = counts / heads
    row_bytes = problem.head_dim * problem.group_size * (2 * BF16 + FP32)
    owned = (tiles[first, ACC_BLOCK] < schedule.shared_at) & (times > 1)
    alone = np.where(owned & (not problem.broadcast_q), tiles[first, Q_LEN] * row_bytes, 0) * len(schedule.bounds[:-1])
    by_row = dict(zip(ends.tolist(), times.tolist(), strict=True))
    sets = dict(zip(ends.tolist(), alone.tolist(), strict=True))
    steps = tiles[:, STEPS].sum()
    mean_times = float(steps / max((tiles[first, STEPS] * heads).sum(), 1))
    per_step = np.repeat(times, counts) if len(ends) else np.ones(0)
    mean_set = float((np.repeat(alone, counts)).mean()) if len(per_step) else 0.0
    reads = Reuse(by_row, sets, mean_times)
    queries = Reuse(otherwise=float(len(tiles))) if problem.broadcast_q else reads
    kept = problem.broadcast_q or not schedule.shared_blocks  # each block written again and again
    partial = Reuse(otherwise=float(len(tiles)) if kept else mean_times / 2, otherwise_set=mean_set)
    return Traffic({"desc_q": queries, "desc_do": reads, "rows": Reuse(otherwise=mean_times), "desc_acc": partial},
                   machine.l2_mib * 2**20)


def _passes(problem: JaggedProblem, schedule: BackwardSchedule, block_m: int,
            delta_inside: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of the kernels before and after, by name."""
    heads, dim = problem.num_heads_q, problem.head_dim
    rows = problem.layout_q.total * heads
    shared = schedule.shared_blocks * block_m * heads * dim
    prepare = (0.0 if delta_inside else rows * (2 * dim * BF16 + 3 * FP32)) + shared * FP32
    if problem.broadcast_q:
        one = problem.layout_q.max_seqlen * heads * dim
        return {"prepare": prepare}, {"sum": one * (schedule.copies * FP32 + BF16)}
    return {"prepare": prepare}, {"cast": shared * (FP32 + BF16)} if schedule.shared_blocks else {}
