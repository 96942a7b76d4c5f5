"""The Blackwell backward as `kernels.implementation` wants it: what it can run, which variant, and the launches."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from kernels.blackwell.backward_kernel import jagged_backward
from kernels.blackwell.backward_options import SCHEDULES, BlackwellBackwardOptions, select
from kernels.blackwell.backward_walk import BLOCK_N
from kernels.hopper import backward_schedule
from kernels.hopper.backward_options import HopperBackwardOptions
from kernels.hopper.backward_passes import cast_kernel, prepare_kernel, sum_kernel
from kernels.hopper.forward import sm_count
from kernels.hopper.ragged import packed_blocks
from kernels.launch import Blocks, Launcher
from kernels.problem import JaggedProblem

SUM_ROWS = 8
_EVERY_TILE = 2**31 - 1  # programs, so that each gets one tile


def describe(problem: JaggedProblem, schedule: str | None = None, options: object | None = None) -> str:
    """The variant, such as ``blackwell/m64q2o1k1s2r1/zigzag``."""
    order = _order(schedule)
    return f"blackwell/{_options(problem, order, options).token}/{order}"


@dataclass(frozen=True)
class _Plan:
    """A schedule and its tables on the device."""

    schedule: backward_schedule.BackwardSchedule
    tiles: torch.Tensor
    bounds: torch.Tensor
    blocks: torch.Tensor
    layout_q: object  # kept alive, as its id is part of the key


def backward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, dout: torch.Tensor, schedule: str | None = None,
             options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` in the problem's dtype, see `JaggedProblem`. The schedule is built on the host.

    Raises `ValueError` for an unknown schedule or options that can't run the problem, `TypeError` for options of
    another kind.
    """
    order = _order(schedule)
    chosen = _options(problem, order, options)
    if not out.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    block_m, dim, heads, device = chosen.block_m, problem.head_dim, problem.num_heads_q, q.device
    plan = tables(problem, chosen, order, sm_count(device), device)
    made, num_blocks, row_stride = plan.schedule, len(plan.blocks), heads * dim
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    rows = torch.empty((heads * num_blocks * 2 * block_m,), dtype=torch.float32, device=device)
    acc_rows = max(made.acc_blocks, 1) * block_m
    acc = torch.empty((acc_rows, dim), dtype=torch.float32, device=device)
    if made.zero_first:
        acc.zero_()
    launch = _launchers(problem, chosen, order == "clc", device)
    launch.prepare((num_blocks, heads), out, dout, lse, rows, dq, acc, plan.blocks, num_blocks, lse.stride(0),
                   row_stride, made.shared_at, made.shared_blocks, 1.0)
    left, right = problem.window_bounds
    ctas, block_n, columns = chosen.ctas, BLOCK_N.value, dq_columns(chosen)
    if len(made.tiles):
        launch.main((ctas * (len(plan.bounds) - 1), 1), packed_blocks(q, block_m, dim // ctas),
                    packed_blocks(dout, block_m, dim // ctas), packed_blocks(k, block_n, dim),
                    packed_blocks(v, block_n, dim), packed_blocks(q, block_m // ctas, dim),
                    packed_blocks(dout, block_m // ctas, dim), packed_blocks(k, block_n * ctas, dim // ctas),
                    packed_blocks(dq, block_m // ctas, columns), packed_blocks(dk, block_n, 64),
                    packed_blocks(dv, block_n, 64), Blocks(acc, [acc_rows, dim], [dim, 1], [block_m // ctas, columns]),
                    dk, dv, rows, plan.tiles, plan.bounds, num_blocks, dk.stride(0),
                    problem.softmax_scale * math.log2(math.e), problem.softmax_scale, left, right)
    if problem.broadcast_q:
        len_q = problem.layout_q.max_seqlen
        launch.sum((-(-len_q // SUM_ROWS), heads), acc, dq, len_q, made.copies, row_stride, problem.softmax_scale)
    elif made.shared_blocks:
        launch.cast((num_blocks, heads), acc, dq, plan.blocks, row_stride, made.shared_at, made.shared_blocks,
                    problem.softmax_scale)
    return dq, dk, dv


@dataclass(frozen=True)
class _Launchers:
    prepare: Launcher
    main: Launcher
    sum: Launcher
    cast: Launcher


_LAUNCHERS: dict[Hashable, _Launchers] = {}


def _launchers(problem: JaggedProblem, options: BlackwellBackwardOptions, clc: bool,
               device: torch.device) -> _Launchers:
    """The launchers of a variant for one kind of problem."""
    key = (options, clc, problem.head_dim, problem.group_size, problem.dtype, problem.mask.left is None,
           problem.mask.right is None, device)
    if key not in _LAUNCHERS:
        blocks = {"BLOCK_M": options.block_m, "D": problem.head_dim}
        small = {"num_warps": 4}
        _LAUNCHERS[key] = _Launchers(
            Launcher(prepare_kernel, {**blocks, "NEGATE": True}, small),
            Launcher(jagged_backward, kernel_constants(problem, options, clc), launch_options(options)),
            Launcher(sum_kernel, {"GROUP": problem.group_size, **blocks, "ROWS": SUM_ROWS}, small),
            Launcher(cast_kernel, blocks, small))
    return _LAUNCHERS[key]


def dq_columns(options: BlackwellBackwardOptions) -> int:
    """Columns of dQ that are staged at a time; a pair's CTA stages as many of each half."""
    return 16 if options.pair else 32


def kernel_constants(problem: JaggedProblem, options: BlackwellBackwardOptions, clc: bool) -> dict[str, int | bool]:
    """The main kernel's compile-time constants."""
    return {"GROUP": problem.group_size, "BLOCK_M": options.block_m, "D": problem.head_dim,
            "NUM_Q": options.q_stages, "NUM_DO": options.do_stages, "NUM_KV": options.kv_stages,
            "STAGES": options.dq_stages, "COLUMNS": dq_columns(options), "RELEASE": options.early_release,
            "PEEL": options.peel, "WARP_BAR": options.warp_barriers, "PACKED": options.packed, "CLC": clc,
            "PAIR": options.pair, "HAS_LEFT": problem.mask.left is not None,
            "HAS_RIGHT": problem.mask.right is not None}


def launch_options(options: BlackwellBackwardOptions) -> dict[str, int | tuple[int, int, int]]:
    """Compiler options; ``num_warps`` is of the compute role."""
    cluster: dict[str, int | tuple[int, int, int]] = {"ctas_per_cga": (2, 1, 1)} if options.pair else {}
    return {"num_warps": 8, "num_stages": 1, **cluster}


def _options(problem: JaggedProblem, order: str, options: object | None) -> BlackwellBackwardOptions:
    if options is None:
        return select(problem, order)
    if not isinstance(options, BlackwellBackwardOptions):
        raise TypeError(f"options: expected BlackwellBackwardOptions, got {type(options).__name__}")
    reason = options.why_not(problem, order)
    if reason:
        raise ValueError(f"Blackwell backward, {options.token}: {reason}")
    return options


def _order(schedule: str | None) -> str:
    if schedule is None:
        return "zigzag"
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: expected one of {', '.join(SCHEDULES)}, got {schedule!r}")
    return schedule


def tables(problem: JaggedProblem, options: BlackwellBackwardOptions, order: str, programs: int,
           device: torch.device) -> _Plan:
    """The schedule of a problem for ``programs`` SMs and its tables on the device, cached on the K layout."""
    key = ("blackwell backward", id(problem.layout_q), problem.num_heads_q, problem.num_heads_kv, problem.mask,
           problem.broadcast_q, options, order, programs, device)

    def build() -> _Plan:
        dealing = HopperBackwardOptions(direct_dq=options.direct_dq, owned_blocks=options.owned_blocks,
                                        deterministic=options.deterministic)
        made = backward_schedule.build(problem, dealing, "sorted" if order == "clc" else order,
                                       _EVERY_TILE if order == "clc" else programs // options.ctas, options.block_m,
                                       BLOCK_N.value * options.ctas)
        if problem.broadcast_q and not options.broadcast_sums:
            made = _added(made, problem)
        tables = (made.tiles, made.bounds, made.blocks)
        tiles, bounds, blocks = (torch.from_numpy(table).to(device) for table in tables)
        return _Plan(made, tiles, bounds, blocks, problem.layout_q)

    return problem.layout_k.cached(key, build)


def _added(made: backward_schedule.BackwardSchedule, problem: JaggedProblem) -> backward_schedule.BackwardSchedule:
    """The same tiles for broadcast-Q, all of a query head's adding to the same blocks of the accumulator."""
    tiles = made.tiles.copy()
    group_blocks = tiles[:, backward_schedule.ACC_GROUP] * problem.group_size
    tiles[:, backward_schedule.ACC_BLOCK] = tiles[:, backward_schedule.HEAD] * group_blocks
    tiles[:, backward_schedule.FIRST_FROM] = backward_schedule.NEVER
    tiles[:, backward_schedule.AFTER_ITSELF] = 0
    blocks = int(group_blocks.max(initial=0)) * problem.num_heads_kv
    return replace(made, tiles=tiles, acc_blocks=blocks, copies=min(made.copies, 1), zero_first=True)
