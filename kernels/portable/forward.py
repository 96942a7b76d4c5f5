"""Jagged attention forward in plain Triton, after FlashAttention-2: one CTA for each (sequence, head, query block).

A CTA walks over the keys that its queries see, in up to three stretches: blocks cut by the window's left bound,
blocks that every query sees in full (no mask), blocks cut by the right bound or by the sequence's end. Rows beyond
the sequence are never read: they enter as zeros.

The grid covers ``B`` times the longest sequence and needs nothing from the device; CTAs beyond their sequence's end
leave at once. That is cheap for uniform lengths and dear for long-tailed ones (lognormal(4, 1.2), B=4096: 14 idle CTAs
for every one that works, 42 if max_seqlen is given as 8192), so such batches take the grid of `tile_of_program`'s
search (there one idle CTA for every four), which costs each CTA two dependent loads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.portable.arguments import (
    grid_1d,
    num_tiles,
    problem_arguments,
    strides,
    unit_stride,
    wants_search,
)
from kernels.portable.options import TileOptions
from kernels.portable.tuning import TunedKernel
from kernels.primitives import load_rows, online_softmax, peel, store_rows, tile_of_program, visible, visible_range
from kernels.problem import JaggedProblem


@triton.jit
def _attend(acc, row_max, row_sum, q, queries, k_pointer, v_pointer, stride_km, stride_vm, start, end, len_q, len_k,
            scale_log2, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HEAD_DIM: tl.constexpr,
            BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """Folds key blocks of ``[start, end)`` into ``acc [M, D]``, ``row_max [M]``, ``row_sum [M]``."""
    for first_key in range(start, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        k = load_rows(k_pointer, stride_km, first_key, len_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED)  # [N, D]
        scores = tl.dot(q, tl.trans(k))  # [M, N]
        if MASKED:
            seen = (keys < len_k)[None, :]
            if HAS_LEFT or HAS_RIGHT:
                seen &= visible(queries[:, None], keys[None, :], len_k - len_q, left, right, HAS_LEFT, HAS_RIGHT)
            scores = tl.where(seen, scores * scale_log2, float("-inf"))
            p, rescale, row_max, row_sum = online_softmax(scores, 1.0, row_max, row_sum)
        else:
            p, rescale, row_max, row_sum = online_softmax(scores, scale_log2, row_max, row_sum)
        v = load_rows(v_pointer, stride_vm, first_key, len_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED)  # [N, D]
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=["batch", "heads_q", "total_q", "max_seqlen", "left", "right"])
def forward_kernel(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, batch, heads_q, total_q, max_seqlen, scale_log2,
                   left, right, stride_qm, stride_qh, stride_km, stride_kh, stride_vm, stride_vh, stride_om, stride_oh,
                   HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
                   BLOCK_D: tl.constexpr, BROADCAST_Q: tl.constexpr, SEARCH: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr):
    """Writes ``out [total_q, Hq, D]`` and ``lse [Hq, total_q]`` for one query block of one head of one sequence."""
    sequence, head, block = tile_of_program(tl.program_id(0), cu_seqlens_q, batch, heads_q, max_seqlen, BLOCK_M, SEARCH)
    row_q = tl.load(cu_seqlens_q + sequence)
    len_q = tl.load(cu_seqlens_q + sequence + 1) - row_q
    first = block * BLOCK_M
    if first >= len_q:
        return
    row_k = tl.load(cu_seqlens_k + sequence)
    len_k = tl.load(cu_seqlens_k + sequence + 1) - row_k
    queries = first + tl.arange(0, BLOCK_M)

    q += head.to(tl.int64) * stride_qh
    if not BROADCAST_Q:
        q += row_q.to(tl.int64) * stride_qm
    k += row_k.to(tl.int64) * stride_km + (head // GROUP).to(tl.int64) * stride_kh
    v += row_k.to(tl.int64) * stride_vm + (head // GROUP).to(tl.int64) * stride_vh

    low, full_low, full_high, high = visible_range(first, tl.minimum(first + BLOCK_M, len_q) - 1, len_k - len_q, len_k,
                                                   left, right, HAS_LEFT, HAS_RIGHT)
    full_start, full_end = peel(low, full_low, full_high, BLOCK_N)

    q_tile = load_rows(q, stride_qm, first, len_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)  # [M, D]
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if HAS_LEFT:
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q_tile, queries, k, v, stride_km, stride_vm, low, full_start, len_q, len_k,
            scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D, BLOCK_N, True)
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q_tile, queries, k, v, stride_km, stride_vm, full_start, full_end, len_q, len_k,
        scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D, BLOCK_N, False)
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q_tile, queries, k, v, stride_km, stride_vm, full_end, high, len_q, len_k,
        scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D, BLOCK_N, True)

    sees_key = row_sum != 0.0  # a NaN counts as seen and stays
    acc = tl.where(sees_key[:, None], acc / tl.where(sees_key, row_sum, 1.0)[:, None], 0.0)
    log_sum = (row_max + tl.log2(tl.where(sees_key, row_sum, 1.0))) * 0.6931471805599453
    out += row_q.to(tl.int64) * stride_om + head.to(tl.int64) * stride_oh
    store_rows(out, stride_om, first, len_q, acc, BLOCK_M, HEAD_DIM, BLOCK_D)
    lse += head.to(tl.int64) * total_q + row_q
    tl.store(lse + queries, tl.where(sees_key, log_sum, float("-inf")), mask=queries < len_q)


FORWARD = TunedKernel("forward", forward_kernel)


def forward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
            tile: TileOptions | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out [total_q, Hq, D], lse [Hq, total_q])``, see `JaggedProblem`; ``tile=None``: the autotuner's choice."""
    q, k, v = (unit_stride(tensor) for tensor in (q, k, v))
    out = torch.empty(problem.out_shape, dtype=problem.dtype, device=q.device)
    lse = torch.empty((problem.num_heads_q, problem.layout_q.total), dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out, lse
    arguments = problem_arguments(problem)
    if problem.softmax_scale < 0:  # the online softmax takes the maximum before it scales
        q = -q
        arguments["scale_log2"] *= -1
    layout = problem.layout_q
    search = wants_search(layout)
    arguments |= {"q": q, "k": k, "v": v, "out": out, "lse": lse, "max_seqlen": layout.max_seqlen, "SEARCH": search,
                  **strides("q", q), **strides("k", k), **strides("v", v), **strides("o", out)}
    FORWARD.launch(problem, lambda meta: grid_1d(num_tiles(layout, meta["BLOCK_M"], search) * problem.num_heads_q),
                   arguments, tile)
    return out, lse
