"""The Hopper backward as `kernels.implementation` wants it: what it can run, which variant, and the launches."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from kernels.hopper.backward_kernel import jagged_backward
from kernels.hopper.backward_options import (
    ORDERS,
    HopperBackwardOptions,
    alternates,
    select,
    why_not,
)
from kernels.hopper.backward_passes import cast_kernel, prepare_kernel, sum_kernel
from kernels.hopper.backward_plan import Bounds, device_plan
from kernels.hopper.backward_schedule import counted, holds
from kernels.hopper.forward import sm_count, stream_of
from kernels.hopper.ragged import packed_blocks
from kernels.launch import Blocks, Launcher
from kernels.problem import JaggedProblem

BLOCK_M = 64  # rows of Q in a step
BLOCK_N = {64: 256, 128: 128}  # keys in a tile, by head_dim
SUM_ROWS = 8


def describe(problem: JaggedProblem, schedule: str | None = None, options: object | None = None) -> str:
    """The variant, such as ``hopper/q2o2k1s2d2-own4/zigzag``."""
    chosen = _options(problem, options)
    return f"hopper/{chosen.token}/{_order(schedule)}"


def backward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, dout: torch.Tensor, schedule: str | None = None,
             options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` in the problem's dtype, see `JaggedProblem`.

    Raises `ValueError` for an unknown schedule or options that can't run the problem, `TypeError` for options of
    another kind.
    """
    chosen = _options(problem, options)
    order = _order(schedule)
    if not out.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dim, heads, mask, device = problem.head_dim, problem.num_heads_q, problem.mask, q.device
    row_stride = heads * dim
    plan = device_plan(problem, chosen, order, sm_count(device), BLOCK_M, BLOCK_N[dim], stream_of(device))
    known = plan.known
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    rows = torch.empty((heads * known.num_blocks * 2 * BLOCK_M,), dtype=torch.float32, device=device)
    acc_rows = max(known.acc_blocks, 1) * BLOCK_M
    acc = torch.empty((acc_rows, dim), dtype=torch.float32, device=device)
    if problem.broadcast_q and not mask.is_full:
        acc.zero_()  # a CTA's first tile doesn't touch all blocks
    counts = counted(problem, chosen)
    counters = plan.counters
    if counts:
        counters = torch.empty((heads * known.num_blocks,), dtype=torch.int32, device=device)
    launch = _launchers(problem, chosen, known, device)
    launch.prepare((known.num_blocks, heads), out, dout, lse, rows, dq, counters if counts else acc, plan.blocks,
                   known.num_blocks, problem.layout_q.total, row_stride, known.shared_at, known.shared_blocks,
                   problem.softmax_scale)
    left, right = problem.window_bounds
    launch.main((known.programs, 1), packed_blocks(q, BLOCK_M, dim), packed_blocks(dout, BLOCK_M, dim),
                packed_blocks(k, 64, dim), packed_blocks(v, 64, dim), packed_blocks(dq, BLOCK_M, dim // 2),
                packed_blocks(dk, 64, dim), packed_blocks(dv, 64, dim),
                Blocks(acc, [acc_rows, dim], [dim, 1], [BLOCK_M, dim // 2]), rows, plan.tiles, plan.bounds,
                known.num_blocks, problem.softmax_scale * math.log2(math.e), problem.softmax_scale, left, right, acc,
                dq, counters, row_stride)
    if problem.broadcast_q:
        len_q = problem.layout_q.max_seqlen
        launch.sum((-(-len_q // SUM_ROWS), heads), acc, dq, len_q, known.copies, row_stride, 1.0)
    elif known.shared_blocks and not (counts or known.turns):
        launch.cast((known.num_blocks, heads), acc, dq, plan.blocks, row_stride, known.shared_at,
                    known.shared_blocks, 1.0)
    return dq, dk, dv


@dataclass(frozen=True)
class _Launchers:
    prepare: Launcher
    main: Launcher
    sum: Launcher
    cast: Launcher


_LAUNCHERS: dict[Hashable, _Launchers] = {}


def _launchers(problem: JaggedProblem, options: HopperBackwardOptions, known: Bounds,
               device: torch.device) -> _Launchers:
    """The launchers of a variant for one kind of problem."""
    key = (options, problem.head_dim, problem.group_size, problem.dtype, problem.mask.left is None,
           problem.mask.right is None, problem.broadcast_q, _keeps(problem, options), counted(problem, options),
           known.turns, known.pairs, known.all_seen, device)
    if key not in _LAUNCHERS:
        blocks = {"BLOCK_M": BLOCK_M, "D": problem.head_dim}
        small = {"num_warps": 4}
        _LAUNCHERS[key] = _Launchers(
            Launcher(prepare_kernel, {**blocks, "COUNTED": counted(problem, options)}, small),
            Launcher(jagged_backward, kernel_constants(problem, options, known.turns, known.pairs, known.all_seen),
                     {**small, "num_stages": 1, "launch_cooperative_grid": counted(problem, options) or known.turns,
                      **({"ctas_per_cga": (2, 1, 1)} if known.pairs else {})}),
            Launcher(sum_kernel, {"GROUP": problem.group_size, **blocks, "ROWS": SUM_ROWS, "SPREAD": True}, small),
            Launcher(cast_kernel, {**blocks, "SPREAD": True}, small))
    return _LAUNCHERS[key]


def _keeps(problem: JaggedProblem, options: HopperBackwardOptions) -> bool:
    return (options.keep_dq and problem.broadcast_q and problem.layout_q.max_seqlen <= 64 and problem.head_dim == 128
            and problem.group_size == 1 and problem.mask.is_full)


def kernel_constants(problem: JaggedProblem, options: HopperBackwardOptions, turns: bool, pairs: bool,
                     all_seen: bool) -> dict[str, int | bool]:
    """The main kernel's compile-time constants; the last three arguments: of the schedule's `Bounds`."""
    return {"GROUP": problem.group_size, "D": problem.head_dim,
            "NUM_Q": options.q_stages, "NUM_DO": options.do_stages, "NUM_KV": options.kv_stages,
            "STAGES": options.dq_stages, "DS_STAGES": options.ds_stages,
            "HAS_LEFT": problem.mask.left is not None, "HAS_RIGHT": problem.mask.right is not None,
            "KEEP": _keeps(problem, options), "HINTS": options.l2_hints, "COUNTED": counted(problem, options),
            "SKIP": options.skip_half and not _keeps(problem, options),
            "SERPENTINE": options.serpentine and not problem.broadcast_q,
            "TURNS": turns, "PAIR": pairs, "HOLD": holds(problem, options, pairs),
            "ALL_SEEN": all_seen, "SUMMED": problem.broadcast_q and not _keeps(problem, options),
            "ALTERNATE": alternates(options, problem.head_dim, pairs or _keeps(problem, options)), "REGISTERS": 232}


def _options(problem: JaggedProblem, options: object | None) -> HopperBackwardOptions:
    if options is None:
        return select(problem)
    if not isinstance(options, HopperBackwardOptions):
        raise TypeError(f"options: expected HopperBackwardOptions, got {type(options).__name__}")
    if reason := why_not(options, problem.head_dim, _keeps(problem, options)):
        raise ValueError(f"options: {reason}")
    return options


def _order(schedule: str | None) -> str:
    if schedule is None:
        return "zigzag"
    if schedule not in ORDERS:
        raise ValueError(f"schedule: expected one of {', '.join(ORDERS)}, got {schedule!r}")
    return schedule
