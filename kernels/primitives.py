"""Triton building blocks: which tile a CTA owns, which keys it may see, masked row loads, online softmax.

All of them are `triton.jit` functions for use inside kernels. Scores are in units of log2 (the softmax runs on
``exp2``); the mask is the one that `kernels.mask` defines.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@triton.jit
def tile_of_program(program, cu_seqlens, batch, heads, max_seqlen, BLOCK: tl.constexpr, SEARCH: tl.constexpr):
    """``(sequence, head, block)`` of a CTA; the block may lie beyond its sequence's end, then the CTA has no work.

    Without ``SEARCH`` every sequence has ``cdiv(max_seqlen, BLOCK)`` blocks and a CTA finds its own by division.
    With it sequence ``b`` has the tiles from ``cu_seqlens[b] // BLOCK + b`` up to its successor's: never fewer than
    ``cdiv(length, BLOCK)`` and at most two more, found by a 64-ary search (two dependent loads at 4096 sequences).
    """
    if SEARCH:
        head = program % heads
        tile = program // heads
        sequence = 0
        span = batch
        while span > 1:
            step = tl.cdiv(span, 64)
            probe = sequence + tl.arange(0, 64) * step  # [64]
            inside = probe < batch
            first_tile = tl.load(cu_seqlens + probe, mask=inside, other=0) // BLOCK + probe
            sequence += (tl.sum((inside & (first_tile <= tile)).to(tl.int32), 0) - 1) * step
            span = step
        block = tile - (tl.load(cu_seqlens + sequence) // BLOCK + sequence)
    else:
        blocks = tl.cdiv(max_seqlen, BLOCK)
        block = program % blocks
        head = (program // blocks) % heads
        sequence = program // (blocks * heads)
    return sequence, head, block


@triton.jit
def visible_range(first, last, shift, length, before, after, HAS_BEFORE: tl.constexpr, HAS_AFTER: tl.constexpr):
    """Positions that rows ``first..last`` see on the other side, as ``(low, full_low, full_high, high)``.

    Row ``i`` sees ``i + shift - before <= j <= i + shift + after`` within ``[0, length)``. Some row sees something
    only in ``[low, high)``; every row sees all of ``[full_low, full_high)``. Ranges may be empty (low >= high).
    For queries over keys: shift = len_k - len_q, before = left, after = right; for keys over queries
    shift = len_q - len_k, before = right, after = left.
    """
    low = 0
    full_low = 0
    high = length
    full_high = length
    if HAS_BEFORE:
        low = tl.maximum(first + shift - before, 0)
        full_low = tl.maximum(last + shift - before, 0)
    if HAS_AFTER:
        high = tl.minimum(last + shift + after + 1, length)
        full_high = tl.minimum(first + shift + after + 1, length)
    return low, full_low, full_high, high


@triton.jit
def peel(low, full_low, full_high, BLOCK: tl.constexpr):
    """``(first, last)``: blocks laid from ``low`` need a mask before ``first`` and from ``last`` on, none between."""
    last = low + tl.maximum(full_high - low, 0) // BLOCK * BLOCK
    first = low + tl.cdiv(tl.maximum(full_low - low, 0), BLOCK) * BLOCK
    return tl.minimum(first, last), last


@triton.jit
def visible(queries, keys, shift, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Boolean mask of broadcastable ``queries`` and ``keys`` (positions in their sequences); True without bounds."""
    distance = keys - queries - shift
    mask = distance == distance
    if HAS_LEFT:
        mask = mask & (distance >= -left)
    if HAS_RIGHT:
        mask = mask & (distance <= right)
    return mask


@triton.jit
def row_pointers(pointer, stride, first, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """``[ROWS, BLOCK_D]`` pointers at rows ``first...`` of a tensor with unit stride along D, in int64 arithmetic.

    Formed afresh for each block: bases carried from block to block cost up to 70 more registers a thread.
    """
    rows = (first + tl.arange(0, ROWS)).to(tl.int64)
    return pointer + rows[:, None] * stride + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def row_mask(first, length, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """``[ROWS, BLOCK_D]`` (or a shape that broadcasts to it): rows below ``length`` and columns below HEAD_DIM."""
    mask = (first + tl.arange(0, ROWS) < length)[:, None]
    if HEAD_DIM != BLOCK_D:
        mask = mask & (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
    return mask


@triton.jit
def load_rows(pointer, stride, first, length, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
              MASK_ROWS: tl.constexpr):
    """``[ROWS, BLOCK_D]`` from row ``first`` on; 0 beyond HEAD_DIM columns and, if masked, beyond ``length`` rows."""
    pointers = row_pointers(pointer, stride, first, ROWS, BLOCK_D)
    if MASK_ROWS:
        return tl.load(pointers, mask=row_mask(first, length, ROWS, HEAD_DIM, BLOCK_D), other=0.0)
    elif HEAD_DIM == BLOCK_D:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def store_rows(pointer, stride, first, length, values, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
               BLOCK_D: tl.constexpr):
    """Stores ``values [ROWS, BLOCK_D]``, cast to the pointer's type, within ``length`` rows and HEAD_DIM columns."""
    tl.store(row_pointers(pointer, stride, first, ROWS, BLOCK_D), values.to(pointer.dtype.element_ty),
             mask=row_mask(first, length, ROWS, HEAD_DIM, BLOCK_D))


@triton.jit
def online_softmax(scores, scale, row_max, row_sum):
    """One step of the online softmax over ``scores * scale`` (log2 units, ``scale >= 0``; -inf where masked).

    Returns ``(p, rescale, row_max, row_sum)``: unnormalised probabilities ``[M, N]`` and the factor ``[M]`` for what
    was accumulated before. A row that has seen no key keeps ``row_max`` -inf and gets p 0, rescale 0 or 1, never NaN.
    """
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
    safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    p = tl.exp2(scores * scale - safe_max[:, None])
    rescale = tl.exp2(row_max - safe_max)
    return p, rescale, new_max, row_sum * rescale + tl.sum(p, 1)
