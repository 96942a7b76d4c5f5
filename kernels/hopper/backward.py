"""The Hopper backward as `kernels.implementation` wants it: what it can run, which variant, and the launches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hopper import backward_schedule
from kernels.hopper.backward_ahead import jagged_backward_ahead
from kernels.hopper.backward_kernel import jagged_backward
from kernels.hopper.backward_options import ORDERS, HopperBackwardOptions, select
from kernels.hopper.backward_passes import cast_kernel, prepare_kernel, sum_kernel
from kernels.hopper.ragged import packed_descriptor
from kernels.problem import JaggedProblem

BLOCK_N = 128
BLOCK_M = {64: 128, 128: 64}  # by head_dim
SUM_ROWS = 8


def describe(problem: JaggedProblem, schedule: str | None = None, options: object | None = None) -> str:
    """The variant, such as ``hopper/q2o2k1s2d2-dk-own4/zigzag``."""
    chosen = _options(problem, options)
    return f"hopper/{chosen.token}/{_order(schedule)}"


@dataclass(frozen=True)
class _Plan:
    """A schedule and its tables on the device."""

    schedule: backward_schedule.BackwardSchedule
    tiles: torch.Tensor
    bounds: torch.Tensor
    blocks: torch.Tensor
    shared: torch.Tensor
    layout_q: object  # kept alive, as its id is part of the key


def backward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, dout: torch.Tensor, schedule: str | None = None,
             options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` in the problem's dtype, see `JaggedProblem`.

    Raises `ValueError` for an unknown schedule, `TypeError` for options of another kind.
    """
    chosen = _options(problem, options)
    order = _order(schedule)
    if not out.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    block_m, dim = BLOCK_M[problem.head_dim], problem.head_dim
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    plan = _plan(problem, chosen, order, programs, block_m, q.device)
    made = plan.schedule
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    num_blocks = len(made.blocks)
    rows = torch.empty(problem.num_heads_q * num_blocks * 2 * block_m, dtype=torch.float32, device=q.device)
    acc = torch.empty((max(made.acc_blocks, 1) * block_m, dim), dtype=torch.float32, device=q.device)
    if made.zero_first:
        acc.zero_()
    row_stride = problem.num_heads_q * dim
    prepare_kernel[(num_blocks, problem.num_heads_q)](
        out, dout, lse, rows, dq, acc, plan.blocks, num_blocks, lse.stride(0), row_stride, made.shared_at,
        made.shared_blocks, BLOCK_M=block_m, D=dim, num_warps=4)
    if len(made.tiles):
        _launch(problem, chosen, plan, q, k, v, dout, dq, dk, dv, rows, acc, block_m)
    if problem.broadcast_q:
        len_q = problem.layout_q.max_seqlen
        sum_kernel[(triton.cdiv(len_q, SUM_ROWS), problem.num_heads_q)](
            acc, dq, len_q, made.copies, row_stride, problem.softmax_scale, GROUP=problem.group_size, BLOCK_M=block_m,
            D=dim, ROWS=SUM_ROWS, num_warps=4)
    elif made.shared_blocks:
        cast_kernel[(made.shared_blocks, problem.num_heads_q)](
            acc, dq, plan.shared, row_stride, made.shared_at, made.shared_blocks, problem.softmax_scale,
            BLOCK_M=block_m, D=dim, num_warps=4)
    return dq, dk, dv


def _launch(problem: JaggedProblem, options: HopperBackwardOptions, plan: _Plan, q: torch.Tensor, k: torch.Tensor,
            v: torch.Tensor, dout: torch.Tensor, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor,
            rows: torch.Tensor, acc: torch.Tensor, block_m: int) -> None:
    dim, mask = problem.head_dim, problem.mask
    main_kernel(problem, options)[(len(plan.bounds) - 1,)](
        packed_descriptor(q, block_m, dim), packed_descriptor(dout, block_m, dim), packed_descriptor(k, 64, dim),
        packed_descriptor(v, 64, dim), packed_descriptor(dq, 64, 64), packed_descriptor(dk, 64, dim),
        packed_descriptor(dv, 64, dim), TensorDescriptor.from_tensor(acc, [64, 64]), rows, plan.tiles, plan.bounds,
        len(plan.blocks), problem.softmax_scale * math.log2(math.e), problem.softmax_scale, mask.left or 0,
        mask.right or 0,
        **kernel_constants(problem, options), num_warps=4, num_stages=1)


def main_kernel(problem: JaggedProblem, options: HopperBackwardOptions) -> Any:
    """The kernel that the options ask for."""
    return jagged_backward_ahead if options.ahead and problem.head_dim == 128 else jagged_backward


def kernel_constants(problem: JaggedProblem, options: HopperBackwardOptions) -> dict[str, int | bool]:
    """The main kernel's compile-time constants."""
    if main_kernel(problem, options) is jagged_backward_ahead:
        return {"GROUP": problem.group_size, "HAS_LEFT": problem.mask.left is not None,
                "HAS_RIGHT": problem.mask.right is not None, "REGISTERS": 232}
    return {"GROUP": problem.group_size, "BLOCK_M": BLOCK_M[problem.head_dim], "D": problem.head_dim,
            "NUM_Q": options.q_stages, "NUM_DO": options.do_stages, "NUM_KV": options.kv_stages,
            "STAGES": options.dq_stages, "DS_STAGES": options.ds_stages, "DK_FIRST": options.dk_first,
            "HAS_LEFT": problem.mask.left is not None, "HAS_RIGHT": problem.mask.right is not None, "REGISTERS": 232}


def _options(problem: JaggedProblem, options: object | None) -> HopperBackwardOptions:
    if options is None:
        return select(problem)
    if not isinstance(options, HopperBackwardOptions):
        raise TypeError(f"options: expected HopperBackwardOptions, got {type(options).__name__}")
    return options


def _order(schedule: str | None) -> str:
    if schedule is None:
        return "zigzag"
    if schedule not in ORDERS:
        raise ValueError(f"schedule: expected one of {', '.join(ORDERS)}, got {schedule!r}")
    return schedule


def _plan(problem: JaggedProblem, options: HopperBackwardOptions, order: str, programs: int, block_m: int,
          device: torch.device) -> _Plan:
    key = ("hopper backward", id(problem.layout_q), problem.num_heads_q, problem.num_heads_kv, problem.mask,
           problem.broadcast_q, options.direct_dq, options.owned_blocks, options.deterministic, order, programs,
           block_m, device)

    def build() -> _Plan:
        made = backward_schedule.build(problem, options, order, programs, block_m, BLOCK_N)
        tables = (made.tiles, made.bounds, made.blocks, made.blocks[made.blocks[:, 5] >= 0])
        tiles, bounds, blocks, shared = (torch.from_numpy(table).to(device) for table in tables)
        return _Plan(made, tiles, bounds, blocks, shared, problem.layout_q)

    return problem.layout_k.cached(key, build)
