"""What the portable kernels' launchers share: kernel arguments taken from a problem, strides, grid sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton

from kernels.jagged_layout import JaggedLayout
from kernels.primitives import LOG2_E
from kernels.problem import JaggedProblem

MAX_GRID = 2**31 - 1


def effective_window(problem: JaggedProblem) -> tuple[int | None, int | None]:
    """The mask's ``(left, right)`` with bounds that hide nothing at these maximum lengths dropped.

    Key ``j`` lies between ``len_k - 1`` before and ``len_q - 1`` after any query's position, so that causal with one
    query, for one, is no mask at all. What stays is below the lengths: sums with it fit int32.
    """
    left, right = problem.mask.left, problem.mask.right
    if left is not None and left >= problem.layout_k.max_seqlen - 1:
        left = None
    if right is not None and right >= problem.layout_q.max_seqlen - 1:
        right = None
    return left, right


def problem_arguments(problem: JaggedProblem) -> dict[str, Any]:
    """Arguments that every attention kernel takes, by name."""
    left, right = effective_window(problem)
    return {
        "cu_seqlens_q": problem.layout_q.cu_seqlens,
        "cu_seqlens_k": problem.layout_k.cu_seqlens,
        "batch": problem.batch,
        "heads_q": problem.num_heads_q,
        "total_q": problem.layout_q.total,
        "scale_log2": problem.softmax_scale * LOG2_E,
        "left": 0 if left is None else left,
        "right": 0 if right is None else right,
        "HAS_LEFT": left is not None,
        "HAS_RIGHT": right is not None,
        "GROUP": problem.group_size,
        "HEAD_DIM": problem.head_dim,
        "BLOCK_D": triton.next_power_of_2(problem.head_dim),
        "BROADCAST_Q": problem.broadcast_q,
    }


def strides(name: str, tensor: torch.Tensor) -> dict[str, int]:
    """``stride_<name>m`` and ``stride_<name>h``: strides in elements of a tensor's rows and heads."""
    return {f"stride_{name}m": tensor.stride(0), f"stride_{name}h": tensor.stride(1)}


def unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied only if its last dimension is not contiguous; other strides may be anything, also 0."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def wants_search(layout: JaggedLayout) -> bool:
    """Are most tiles of a ``B x max_seqlen`` grid empty (long-tailed lengths), so that searching a tile pays?

    An empty CTA costs about as much as starting and ending one; searching costs every CTA two dependent loads.
    """
    return layout.batch * math.ceil(layout.max_seqlen / 128) > 3 * (layout.total // 128 + layout.batch)


def num_tiles(layout: JaggedLayout, block: int, search: bool) -> int:
    """Tiles per head that `kernels.primitives.tile_of_program` deals out."""
    return layout.total // block + layout.batch if search else layout.batch * math.ceil(layout.max_seqlen / block)


def grid_1d(programs: int) -> tuple[int]:
    """A grid in x alone: y and z end at 65535. Raises `ValueError` beyond what x takes."""
    if programs > MAX_GRID:
        raise ValueError(f"portable kernels: {programs} tiles exceed the largest grid, {MAX_GRID}")
    return (programs,)
