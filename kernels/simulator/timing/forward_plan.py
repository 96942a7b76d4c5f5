"""Plans of the forwards: a thinned batch on one SM."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels.problem import JaggedProblem
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.plans import GAP, Plan, nearest, thinned
from kernels.simulator.timing.traffic import Reuse, Traffic
from kernels.tile_schedule import TileShape, deal, tile_records

ALONE = 1.2  # a worker's speed where the others of its SM have ended, to its speed beside them; assumed


def forward_plan(problem: JaggedProblem, shape: TileShape, schedule: str, streams: int, ctas_per_sm: int, groups: int,
                 section: int, sinks: bool, machine: Machine, budget: int) -> Plan:
    """The plan of a forward whose workers (``streams`` in a CTA) take items in the order of ``schedule``.

    ``section``: heads of a sequence that go together.
    """
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

    ends, of_tile = np.unique(records[:, 4].astype(np.int64) + records[:, 5], return_inverse=True)
    blocks = np.zeros(len(ends))
    blocks[of_tile] = -(-records[:, 5].astype(np.int64) // shape.block)
    walked = np.bincount(of_tile, _steps(thin, shape, _order(schedule)), len(ends))
    often = np.maximum(walked / np.maximum(blocks, 1), 1.0) * thin.group_size
    times = dict(zip(ends.tolist(), often.tolist(), strict=True))
    at_once = _walked_at_once(problem, shape, schedule, section, streams * ctas_per_sm, sms)
    reads = Reuse(times, otherwise_set=at_once * machine.drift_share)
    queries = Reuse(otherwise=float(thin.batch) if thin.broadcast_q else 1.0)
    traffic = Traffic({"desc_k": reads, "desc_v": reads, "desc_q": queries}, machine.l2_mib * 2**20)
    items = len(records) * thin.num_heads_q
    if schedule == "clc":
        pids, resident = list(range(sm, items, sms)), 1
        tiles_here = len(pids)
    else:
        grid = min(sms * ctas_per_sm, -(-items // streams))
        pids, resident = [pid for pid in range(sm, sms * ctas_per_sm, sms) if pid < grid], ctas_per_sm
        tiles_here = round(items * len(pids) / grid)
    return Plan(thin, "jagged_forward", arguments, pids, resident, traffic, float(most_work / work[sm]), tiles_here,
                sinks)


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
    """Steps of each SM, with `GAP` for each tile; those that a worker does alone, others having ended, count more."""
    cost = np.repeat(_steps(problem, shape, _order(schedule)) + GAP, problem.num_heads_q)
    ctas = min(sms * ctas_per_sm, -(-len(cost) // streams))
    dealt = deal(len(cost), ctas * streams, "zigzag" if schedule == "zigzag" else "sorted")
    workers: list[list[float]] = [[] for _ in range(sms)]
    for worker, items in enumerate(dealt):
        workers[worker // streams % sms].append(float(cost[items].sum()))
    return np.array([_time(sorted(each)) for each in workers])


def _walked_at_once(problem: JaggedProblem, shape: TileShape, schedule: str, section: int, workers_per_sm: int,
                    sms: int) -> float:
    """Bytes of K and V that the workers are at, at one moment of the launch: few where they keep pace with each other.

    Dealt tiles of unequal length let them drift apart, so that tiles of one sequence are no longer walked together.
    """
    if schedule in ("dynamic", "clc"):
        return 0.0
    records = tile_records(problem.layout_q, problem.layout_k, shape, _order(schedule), problem.mask,
                           problem.broadcast_q)
    heads = problem.num_heads_q
    cost = np.repeat(_steps(problem, shape, _order(schedule)) + GAP, heads)
    ends = [(items, np.cumsum(cost[items])) for items in
            deal(len(cost), sms * workers_per_sm, "zigzag" if schedule == "zigzag" else "sorted") if len(items)]
    longest = max(each[-1] for _, each in ends)
    sizes = []
    for moment in (0.3, 0.5, 0.7):
        at = np.array([items[min(np.searchsorted(each, moment * longest), len(items) - 1)] for items, each in ends])
        tile = at // heads
        in_run = at - records[tile, 6] * heads  # a run's tiles go section by section of its heads
        head = in_run // (records[tile, 7] * section) * section + in_run % section
        spans = np.unique(np.stack([records[tile, 4], records[tile, 5], head // problem.group_size], 1), axis=0)
        sizes.append(spans[:, 1].sum() * problem.head_dim * 4.0)
    return float(np.mean(sizes))


def _time(work: list[float]) -> float:
    """Of workers of one SM, in the steps that all of them do in that time: what is left of the longest is slower."""
    total = before = 0.0
    for ended, each in enumerate(work):
        left = len(work) - ended
        total += (each - before) * left / min(1.0, ALONE * left / len(work))
        before = each
    return total
