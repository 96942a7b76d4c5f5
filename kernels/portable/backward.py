"""Jagged attention backward in plain Triton: three kernels, no atomics, the same bits on every run.

| kernel | a CTA owns | walks over | writes |
|---|---|---|---|
| delta | rows of one head | | ``delta = sum(out * dout)`` fp32 ``[Hq, total_q]`` |
| dkdv | a key block of a KV head | the group's heads, their queries | dk, dv, once |
| dq | a query block of a head | the keys | dq; with broadcast-Q partial sums |

Scores are computed twice, seven products instead of five, in exchange for needing no fp32 dq in memory. With
broadcast-Q a dq CTA walks over every ``chunks``-th sequence of the batch (dealt, so that sorted batches balance too)
and writes fp32 partials ``[chunks, Sq, Hq, D]``, which are summed in a fixed order.

Both grids are sized as the forward's (see there for long-tailed batches). A query that sees no key has lse -inf;
kernels read it as +inf, which makes its probabilities 0. Query rows beyond the sequence enter as zeros with lse +inf.
"""

from __future__ import annotations

from typing import Any

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
from kernels.portable.options import BackwardOptions
from kernels.portable.tuning import TunedKernel, compile_together, launch
from kernels.primitives import load_rows, peel, store_rows, tile_of_program, visible, visible_range
from kernels.problem import JaggedProblem

DELTA_ROWS = 64


@triton.jit(do_not_specialize=["heads_q", "total_q"])
def delta_kernel(out, dout, delta, heads_q, total_q, stride_om, stride_oh, stride_dom, stride_doh,
                 HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """Writes ``delta [Hq, total_q]`` for a block of packed rows of one head."""
    program = tl.program_id(0)
    head = (program % heads_q).to(tl.int64)
    first = (program // heads_q).to(tl.int64) * BLOCK_M
    out_tile = load_rows(out + head * stride_oh, stride_om, first, total_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    dout_tile = load_rows(dout + head * stride_doh, stride_dom, first, total_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    sums = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    rows = first + tl.arange(0, BLOCK_M)
    tl.store(delta + head * total_q + rows, sums, mask=rows < total_q)


@triton.jit
def _load_lse_log2(lse, queries, len_q):
    """lse ``[M]`` in log2 units; +inf for queries beyond the sequence and for those that see no key."""
    values = tl.load(lse + queries, mask=queries < len_q, other=float("inf"))
    return tl.where(values == float("-inf"), float("inf"), values * 1.4426950408889634)


@triton.jit
def _gather_dkdv(dk, dv, k, v, keys, q_pointer, dout_pointer, lse, delta, stride_qm, stride_dom, start, end, len_q,
                 len_k, scale_log2, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
                 HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr):
    """Adds query blocks of ``[start, end)`` to ``dk, dv [N, D]``; dk still lacks the softmax scale."""
    for first_query in range(start, end, BLOCK_M):
        queries = first_query + tl.arange(0, BLOCK_M)
        q = load_rows(q_pointer, stride_qm, first_query, len_q, BLOCK_M, HEAD_DIM, BLOCK_D, MASKED)  # [M, D]
        lse_log2 = _load_lse_log2(lse, queries, len_q)
        scores = tl.dot(k, tl.trans(q)) * scale_log2  # [N, M]
        if MASKED and (HAS_LEFT or HAS_RIGHT):
            seen = visible(queries[None, :], keys[:, None], len_k - len_q, left, right, HAS_LEFT, HAS_RIGHT)
            scores = tl.where(seen, scores, float("-inf"))
        p = tl.exp2(scores - lse_log2[None, :])
        dout = load_rows(dout_pointer, stride_dom, first_query, len_q, BLOCK_M, HEAD_DIM, BLOCK_D, MASKED)  # [M, D]
        dv = tl.dot(p.to(dout.dtype), dout, dv)
        dp = tl.dot(v, tl.trans(dout))  # [N, M]
        ds = p * (dp - tl.load(delta + queries, mask=queries < len_q, other=0.0)[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=["batch", "heads_q", "total_q", "max_seqlen", "left", "right"])
def dkdv_kernel(q, k, v, dout, lse, delta, dk, dv, cu_seqlens_q, cu_seqlens_k, batch, heads_q, total_q, max_seqlen,
                softmax_scale, scale_log2, left, right, stride_qm, stride_qh, stride_km, stride_kh, stride_vm,
                stride_vh, stride_dom, stride_doh, stride_dkm, stride_dkh, HAS_LEFT: tl.constexpr,
                HAS_RIGHT: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
                BROADCAST_Q: tl.constexpr, SEARCH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes ``dk, dv [total_k, Hkv, D]`` (of equal strides) for one key block of one KV head of one sequence.

    Keys beyond the sequence get garbage that stays in their own rows and is not stored, so only window bounds and the
    last query block need masks.
    """
    sequence, head_kv, block = tile_of_program(tl.program_id(0), cu_seqlens_k, batch, heads_q // GROUP, max_seqlen,
                                               BLOCK_N, SEARCH)
    row_k = tl.load(cu_seqlens_k + sequence)
    len_k = tl.load(cu_seqlens_k + sequence + 1) - row_k
    first = block * BLOCK_N
    if first >= len_k:
        return
    row_q = tl.load(cu_seqlens_q + sequence)
    len_q = tl.load(cu_seqlens_q + sequence + 1) - row_q
    keys = first + tl.arange(0, BLOCK_N)

    k += row_k.to(tl.int64) * stride_km + head_kv.to(tl.int64) * stride_kh
    v += row_k.to(tl.int64) * stride_vm + head_kv.to(tl.int64) * stride_vh
    if not BROADCAST_Q:
        q += row_q.to(tl.int64) * stride_qm
    dout += row_q.to(tl.int64) * stride_dom
    lse += row_q
    delta += row_q

    low, full_low, full_high, high = visible_range(first, tl.minimum(first + BLOCK_N, len_k) - 1, len_q - len_k, len_q,
                                                   right, left, HAS_RIGHT, HAS_LEFT)
    full_start, full_end = peel(low, full_low, full_high, BLOCK_M)

    k_tile = load_rows(k, stride_km, first, len_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)  # [N, D]
    v_tile = load_rows(v, stride_vm, first, len_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)  # [N, D]
    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in range(GROUP):
        head = (head_kv * GROUP + member).to(tl.int64)
        q_head = q + head * stride_qh
        dout_head = dout + head * stride_doh
        lse_head = lse + head * total_q
        delta_head = delta + head * total_q
        if HAS_RIGHT:
            dk_tile, dv_tile = _gather_dkdv(
                dk_tile, dv_tile, k_tile, v_tile, keys, q_head, dout_head, lse_head, delta_head, stride_qm, stride_dom,
                low, full_start, len_q, len_k, scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D,
                BLOCK_M, True)
        dk_tile, dv_tile = _gather_dkdv(
            dk_tile, dv_tile, k_tile, v_tile, keys, q_head, dout_head, lse_head, delta_head, stride_qm, stride_dom,
            full_start, full_end, len_q, len_k, scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D,
            BLOCK_M, False)
        dk_tile, dv_tile = _gather_dkdv(
            dk_tile, dv_tile, k_tile, v_tile, keys, q_head, dout_head, lse_head, delta_head, stride_qm, stride_dom,
            full_end, high, len_q, len_k, scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D,
            BLOCK_M, True)

    offset = row_k.to(tl.int64) * stride_dkm + head_kv.to(tl.int64) * stride_dkh
    store_rows(dk + offset, stride_dkm, first, len_k, dk_tile * softmax_scale, BLOCK_N, HEAD_DIM, BLOCK_D)
    store_rows(dv + offset, stride_dkm, first, len_k, dv_tile, BLOCK_N, HEAD_DIM, BLOCK_D)


@triton.jit
def _gather_dq(dq, q, dout, lse_log2, delta, queries, k_pointer, v_pointer, stride_km, stride_vm, start, end, len_q,
               len_k, scale_log2, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
               HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """Adds key blocks of ``[start, end)`` to ``dq [M, D]``, which still lacks the softmax scale."""
    for first_key in range(start, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        k = load_rows(k_pointer, stride_km, first_key, len_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED)  # [N, D]
        scores = tl.dot(q, tl.trans(k)) * scale_log2  # [M, N]
        if MASKED:
            seen = (keys < len_k)[None, :]
            if HAS_LEFT or HAS_RIGHT:
                seen &= visible(queries[:, None], keys[None, :], len_k - len_q, left, right, HAS_LEFT, HAS_RIGHT)
            scores = tl.where(seen, scores, float("-inf"))  # before exp2: exp2(0 - lse) overflows for lse < -88
        p = tl.exp2(scores - lse_log2[:, None])
        v = load_rows(v_pointer, stride_vm, first_key, len_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED)  # [N, D]
        ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def _sequence_dq(dq, q, queries, first, sequence, head, k, v, dout, lse, delta, cu_seqlens_q, cu_seqlens_k, total_q,
                 scale_log2, left, right, stride_km, stride_kh, stride_vm, stride_vh, stride_dom, stride_doh,
                 HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
                 BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Adds one sequence's share to ``dq [M, D]`` of the query block that starts at ``first``."""
    row_q = tl.load(cu_seqlens_q + sequence)
    len_q = tl.load(cu_seqlens_q + sequence + 1) - row_q
    row_k = tl.load(cu_seqlens_k + sequence)
    len_k = tl.load(cu_seqlens_k + sequence + 1) - row_k
    k += row_k.to(tl.int64) * stride_km + (head // GROUP).to(tl.int64) * stride_kh
    v += row_k.to(tl.int64) * stride_vm + (head // GROUP).to(tl.int64) * stride_vh
    dout += row_q.to(tl.int64) * stride_dom + head.to(tl.int64) * stride_doh
    row_statistics = head.to(tl.int64) * total_q + row_q

    low, full_low, full_high, high = visible_range(first, tl.minimum(first + BLOCK_M, len_q) - 1, len_k - len_q, len_k,
                                                   left, right, HAS_LEFT, HAS_RIGHT)
    full_start, full_end = peel(low, full_low, full_high, BLOCK_N)

    dout_tile = load_rows(dout, stride_dom, first, len_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)  # [M, D]
    lse_log2 = _load_lse_log2(lse + row_statistics, queries, len_q)  # [M]
    delta_rows = tl.load(delta + row_statistics + queries, mask=queries < len_q, other=0.0)  # [M]
    if HAS_LEFT:
        dq = _gather_dq(dq, q, dout_tile, lse_log2, delta_rows, queries, k, v, stride_km, stride_vm, low, full_start,
                        len_q, len_k, scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D, BLOCK_N, True)
    dq = _gather_dq(dq, q, dout_tile, lse_log2, delta_rows, queries, k, v, stride_km, stride_vm, full_start, full_end,
                    len_q, len_k, scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D, BLOCK_N, False)
    return _gather_dq(dq, q, dout_tile, lse_log2, delta_rows, queries, k, v, stride_km, stride_vm, full_end, high,
                      len_q, len_k, scale_log2, left, right, HAS_LEFT, HAS_RIGHT, HEAD_DIM, BLOCK_D, BLOCK_N, True)


@triton.jit(do_not_specialize=["batch", "heads_q", "total_q", "max_seqlen", "left", "right", "chunks"])
def dq_kernel(q, k, v, dout, lse, delta, dq, cu_seqlens_q, cu_seqlens_k, batch, heads_q, total_q, max_seqlen, chunks,
              softmax_scale, scale_log2, left, right, stride_qm, stride_qh, stride_km, stride_kh, stride_vm, stride_vh,
              stride_dom, stride_doh, stride_dqm, stride_dqh, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
              GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BROADCAST_Q: tl.constexpr,
              SEARCH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes ``dq [total_q, Hq, D]`` for one query block; with ``BROADCAST_Q`` partial ``[chunks * Sq, Hq, D]``.

    With broadcast-Q ``tile_of_program`` deals chunks as if they were sequences of ``max_seqlen`` queries.
    """
    sequence, head, block = tile_of_program(tl.program_id(0), cu_seqlens_q, batch, heads_q, max_seqlen, BLOCK_M, SEARCH)
    first = block * BLOCK_M
    if BROADCAST_Q:
        row_q = sequence * max_seqlen  # of the partial sums: the chunk's
        len_q = max_seqlen
        q += head.to(tl.int64) * stride_qh
    else:
        row_q = tl.load(cu_seqlens_q + sequence)
        len_q = tl.load(cu_seqlens_q + sequence + 1) - row_q
        q += row_q.to(tl.int64) * stride_qm + head.to(tl.int64) * stride_qh
    if first >= len_q:
        return
    queries = first + tl.arange(0, BLOCK_M)
    q_tile = load_rows(q, stride_qm, first, len_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)  # [M, D]
    dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if BROADCAST_Q:
        for member in range(sequence, batch, chunks):
            dq_tile = _sequence_dq(
                dq_tile, q_tile, queries, first, member, head, k, v, dout, lse, delta, cu_seqlens_q, cu_seqlens_k,
                total_q, scale_log2, left, right, stride_km, stride_kh, stride_vm, stride_vh, stride_dom, stride_doh,
                HAS_LEFT, HAS_RIGHT, GROUP, HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_N)
    else:
        dq_tile = _sequence_dq(
            dq_tile, q_tile, queries, first, sequence, head, k, v, dout, lse, delta, cu_seqlens_q, cu_seqlens_k,
            total_q, scale_log2, left, right, stride_km, stride_kh, stride_vm, stride_vh, stride_dom, stride_doh,
            HAS_LEFT, HAS_RIGHT, GROUP, HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_N)
    dq += row_q.to(tl.int64) * stride_dqm + head.to(tl.int64) * stride_dqh
    store_rows(dq, stride_dqm, first, len_q, dq_tile * softmax_scale, BLOCK_M, HEAD_DIM, BLOCK_D)


DKDV = TunedKernel("dkdv", dkdv_kernel)
DQ = TunedKernel("dq", dq_kernel)


def _dq_chunks(problem: JaggedProblem, device: torch.device) -> int:
    """Parts into which broadcast-Q's batch is cut, so that about eight CTAs come to each SM."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    tiles = problem.num_heads_q * triton.cdiv(problem.layout_q.max_seqlen, 64)
    return max(1, min(problem.batch, 8 * sms // max(tiles, 1)))


def _delta_arguments(problem: JaggedProblem, out: torch.Tensor, dout: torch.Tensor,
                     delta: torch.Tensor) -> dict[str, Any]:
    return {"out": out, "dout": dout, "delta": delta, "heads_q": problem.num_heads_q, "total_q": problem.layout_q.total,
            "HEAD_DIM": problem.head_dim, "BLOCK_D": triton.next_power_of_2(problem.head_dim), "BLOCK_M": DELTA_ROWS,
            **strides("o", out), **strides("do", dout)}


def _dkdv_arguments(problem: JaggedProblem, dk: torch.Tensor, dv: torch.Tensor) -> dict[str, Any]:
    return {"dk": dk, "dv": dv, "max_seqlen": problem.layout_k.max_seqlen, "SEARCH": wants_search(problem.layout_k),
            **strides("dk", dk)}


def _dq_arguments(problem: JaggedProblem, dq: torch.Tensor) -> dict[str, Any]:
    """``dq`` as the kernel writes it: with broadcast-Q the partial sums ``[chunks, Sq, Hq, D]``."""
    search = not problem.broadcast_q and wants_search(problem.layout_q)
    return {"dq": dq, "max_seqlen": problem.layout_q.max_seqlen, "SEARCH": search,
            "chunks": len(dq) if problem.broadcast_q else 1,
            **strides("dq", dq[0] if problem.broadcast_q else dq)}


def _dq_tiles(problem: JaggedProblem, arguments: dict[str, Any], block: int) -> int:
    """Tiles per head of the dq kernel's grid."""
    if problem.broadcast_q:
        return arguments["chunks"] * triton.cdiv(problem.layout_q.max_seqlen, block)
    return num_tiles(problem.layout_q, block, arguments["SEARCH"])


def backward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, dout: torch.Tensor,
             options: BackwardOptions | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` in the problem's dtype, see `JaggedProblem`; a tile of None is the autotuner's choice."""
    options = options or BackwardOptions()
    q, k, v, out, dout = (unit_stride(tensor) for tensor in (q, k, v, out, dout))
    lse = lse.contiguous()
    device = q.device
    dq = torch.empty(problem.q_shape, dtype=problem.dtype, device=device)
    dk = torch.empty(problem.kv_shape, dtype=problem.dtype, device=device)
    dv = torch.empty(problem.kv_shape, dtype=problem.dtype, device=device)
    delta = torch.empty(lse.shape, dtype=torch.float32, device=device)
    shared = problem_arguments(problem) | {
        "q": q, "k": k, "v": v, "dout": dout, "lse": lse, "delta": delta, "softmax_scale": float(problem.softmax_scale),
        **strides("q", q), **strides("k", k), **strides("v", v), **strides("do", dout)}

    partial = dq  # what the dq kernel writes
    if problem.broadcast_q:
        partial = torch.empty((_dq_chunks(problem, device), *dq.shape), dtype=torch.float32, device=device)
    for_delta = _delta_arguments(problem, out, dout, delta)
    for_dkdv = shared | _dkdv_arguments(problem, dk, dv)
    for_dq = shared | _dq_arguments(problem, partial)
    dkdv_tile, dq_tile = options.dkdv or DKDV.best(problem), options.dq or DQ.best(problem)
    if dk.numel() and dq.numel() and not (dkdv_tile and dq_tile):  # else each kernel compiles only its own
        compile_together(problem, [(delta_kernel, for_delta), *DKDV.untuned(problem, for_dkdv, dkdv_tile),
                                   *DQ.untuned(problem, for_dq, dq_tile)])

    if dout.numel():
        delta_programs = triton.cdiv(problem.layout_q.total, DELTA_ROWS) * problem.num_heads_q
        launch(delta_kernel, lambda meta: grid_1d(delta_programs), problem, for_delta)
    if dk.numel():
        DKDV.launch(problem, lambda meta: grid_1d(problem.num_heads_kv * num_tiles(
            problem.layout_k, meta["BLOCK_N"], for_dkdv["SEARCH"])), for_dkdv, dkdv_tile)
    if dq.numel():
        DQ.launch(problem, lambda meta: grid_1d(problem.num_heads_q * _dq_tiles(problem, for_dq, meta["BLOCK_M"])),
                  for_dq, dq_tile)
    if problem.broadcast_q:
        dq.copy_(partial.sum(0))
    return dq, dk, dv
