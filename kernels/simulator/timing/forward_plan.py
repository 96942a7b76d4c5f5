"""Plans of the forwards: a thinned batch on one SM."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels.problem import JaggedProblem
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.plans import GAP, Plan, by_end, nearest, thinned
from kernels.simulator.timing.traffic import Reuse, Traffic
from kernels.tile_schedule import TileShape, deal, tile_records


def forward_plan(problem: JaggedProblem, shape: TileShape, schedule: str, streams: int, ctas_per_sm: int, groups: int,
                 machine: Machine, budget: int) -> Plan:
    """The plan of a forward whose workers (``streams`` in a CTA) take items in the order of ``schedule``."""
    sms = int(machine.sms)
    steps = _steps(problem, shape, _order(schedule))
    total = steps.sum() * problem.num_heads_q * groups / sms
    most = max(1, int(len(steps) * problem.num_heads_q / (sms * ctas_per_sm * streams * 4)))  # four turns at least
    thin = thinned(problem, min(max(1, round(total / budget)), most, max(1, problem.batch // 2)))
    work = _sm_work(thin, shape, schedule, streams, ctas_per_sm, sms)
    sm = nearest(work)
    whole = _sm_work(problem, shape, schedule, streams, ctas_per_sm, sms)
    most_work = whole.mean() if schedule in ("dynamic", "clc") else whole.max()
    records = tile_records(thin.layout_q, thin.layout_k, shape, _order(schedule), thin.mask, thin.broadcast_q)
    header = torch.tensor([0, 0, len(records), 0], dtype=torch.int32)
    tables = {"tiles": torch.from_numpy(records), "header": header}

    def arguments(_: dict[str, Any]) -> dict[str, Any]:
        return tables

    tiles = -(-thin.layout_q.lengths // shape.rows)
    times = by_end(thin.layout_k, np.maximum(tiles, 1.0) * thin.group_size)
    reads = Reuse(times)
    queries = Reuse(otherwise=float(thin.batch) if thin.broadcast_q else 1.0)
    traffic = Traffic({"desc_k": reads, "desc_v": reads, "desc_q": queries}, machine.l2_mib * 2**20)
    items = len(records) * thin.num_heads_q
    if schedule == "clc":
        pids, resident = list(range(sm, items, sms)), 1
    else:
        grid = min(sms * ctas_per_sm, -(-items // streams))
        pids, resident = [pid for pid in range(sm, sms * ctas_per_sm, sms) if pid < grid], ctas_per_sm
    return Plan(thin, "jagged_forward", arguments, pids, resident, traffic, float(most_work / work[sm]))


def _order(schedule: str) -> str:
    return "none" if schedule == "none" else "sorted"


def _steps(problem: JaggedProblem, shape: TileShape, order: str) -> np.ndarray:
    """Blocks that each tile walks, at least one."""
    records = tile_records(problem.layout_q, problem.layout_k, shape, order, problem.mask, problem.broadcast_q)
    row, rows, keys = (records[:, field].astype(np.int64) for field in (2, 1, 5))
    low, _ = problem.mask.key_bounds(row, rows, keys)
    _, high = problem.mask.key_bounds(np.minimum(row + shape.rows, rows) - 1, rows, keys)
    return np.maximum(-(-high // shape.block) - low // shape.block, 1)


def _sm_work(problem: JaggedProblem, shape: TileShape, schedule: str, streams: int, ctas_per_sm: int,
             sms: int) -> np.ndarray:
    """Steps of each SM, with `GAP` for each tile."""
    cost = np.repeat(_steps(problem, shape, _order(schedule)) + GAP, problem.num_heads_q)
    ctas = min(sms * ctas_per_sm, -(-len(cost) // streams))
    dealt = deal(len(cost), ctas * streams, "zigzag" if schedule == "zigzag" else "sorted")
    work = np.zeros(sms)
    for worker, items in enumerate(dealt):
        work[worker // streams % sms] += cost[items].sum()
    return work
