"""The forward's correction and epilogue roles: rescale O between blocks, then normalise, stage and store it."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_work import ROWS, blocks_of, count_tile, place_tile
from kernels.blackwell.primitives import multiply
from kernels.blackwell.tmem import get_rows
from kernels.hopper.ragged import store_rows

LN2 = tl.constexpr(0.6931471805599453)
SLICE = tl.constexpr(32)  # columns of O that the correction holds at once
HALF = tl.constexpr(64)  # columns of a block of staged O: 128 bytes, one swizzle pattern, so few addresses


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _rescale(tmem, bars, count, GROUP: tl.constexpr, c: tl.constexpr):
    """O *= alpha (the ``count``-th of this group) once S's softmax has it, then O may take P V."""
    tlx.barrier_wait(bars.alpha_full[GROUP], count & 1)
    alpha = get_rows(tmem.alpha[GROUP], c)  # [128, 1]
    rescale = True
    if c.SKIP_RESCALE:
        warps = tlx.vote_ballot_sync(0xFFFFFFFF, alpha < 1.0)
        rescale = tl.reshape(tl.reduce(warps != 0, 0, _either), ())
    if rescale:
        for i in tl.static_range(c.D // SLICE):
            o = tlx.subslice(tmem.o[GROUP], i * SLICE, SLICE)
            tlx.local_store(o, multiply(tlx.local_load(o), alpha, c.PACKED))
    tlx.barrier_arrive(bars.o_ready[GROUP])


@triton.jit
def _statistics(tmem, bars, busy, scale, lse, lse_stride, head, tile, row, GROUP: tl.constexpr, c: tl.constexpr):
    """Stores a group's LSE and returns 1 / norm ``[128, 1]``, 0 for rows that saw no key."""
    tlx.barrier_wait(bars.norm_full[GROUP], busy & 1)
    norm = get_rows(tmem.norm[GROUP], c)
    top = get_rows(tmem.top[GROUP], c)
    tlx.barrier_arrive(bars.s_empty[GROUP])
    value = (top * scale + tl.math.log2(norm)) * LN2
    _store_lse(lse, lse_stride, head, tile, row + GROUP * ROWS, tl.reshape(value, [ROWS]))
    return tl.where(norm == 0.0, 0.0, 1.0 / norm)


@triton.jit
def _store_lse(lse, lse_stride, head, tile, row, value):
    rows = row + tl.arange(0, ROWS)
    tl.store(lse + head.to(tl.int64) * lse_stride + tile.out_start + rows, value, mask=rows < tile.q_len)


@triton.jit
def _stage(tmem, o_smem, bars, busy, turn, inverse, GROUP: tl.constexpr, c: tl.constexpr):
    """Normalises a group's O into its staging buffer; TMEM is free for the next tile as soon as O was read."""
    tlx.barrier_wait(bars.o_done[GROUP], busy & 1)
    tlx.barrier_wait(bars.o_empty[GROUP], (turn & 1) ^ 1)
    for i in tl.static_range(c.D // SLICE):
        o = tlx.local_load(tlx.subslice(tmem.o[GROUP], i * SLICE, SLICE))
        if c.EARLY_RELEASE and i == c.D // SLICE - 1:
            tlx.barrier_arrive(bars.o_ready[GROUP])
        o = multiply(o, inverse, c.PACKED).to(c.DTYPE)
        block = o_smem[GROUP * (c.D // HALF) + i * SLICE // HALF]
        tlx.local_store(tlx.local_slice(block, [0, i * SLICE % HALF], [ROWS, SLICE]), o)
    if not c.EARLY_RELEASE:
        tlx.barrier_arrive(bars.o_ready[GROUP])
    tlx.fence("async_shared")
    tlx.barrier_arrive(bars.o_full[GROUP])


@triton.jit
def _stage_nothing(o_smem, bars, turn, lse, lse_stride, head, tile, row, GROUP: tl.constexpr, c: tl.constexpr):
    """O = 0 and LSE = -inf for a group of a sequence without keys."""
    _store_lse(lse, lse_stride, head, tile, row + GROUP * ROWS, tl.full([ROWS], -float("inf"), tl.float32))
    tlx.barrier_wait(bars.o_empty[GROUP], (turn & 1) ^ 1)
    for i in tl.static_range(c.D // HALF):
        tlx.local_store(o_smem[GROUP * (c.D // HALF) + i], tl.zeros([ROWS, HALF], c.DTYPE))
    tlx.fence("async_shared")
    tlx.barrier_arrive(bars.o_full[GROUP])


@triton.jit
def correct(tmem, o_smem, bars, scale, lse, lse_stride, work, item, tile, counts, c: tl.constexpr):
    """The correction of one tile. Returns the counts after it."""
    row, head, both = place_tile(work, item, tile, c)
    _, n, _, _ = blocks_of(work, tile, row, c)
    if n > 0:
        alphas0 = counts.steps0 - counts.busy0  # of earlier tiles: none for a tile's first block
        alphas1 = counts.steps1 - counts.busy1
        for i in tl.range(1, n, num_stages=1):
            _rescale(tmem, bars, alphas0 + i - 1, 0, c)
            if both:
                _rescale(tmem, bars, alphas1 + i - 1, 1, c)
        inverse0 = _statistics(tmem, bars, counts.busy0, scale, lse, lse_stride, head, tile, row, 0, c)
        if both:
            inverse1 = _statistics(tmem, bars, counts.busy1, scale, lse, lse_stride, head, tile, row, 1, c)
            _stage(tmem, o_smem, bars, counts.busy0, counts.tiles0, inverse0, 0, c)
            _stage(tmem, o_smem, bars, counts.busy1, counts.tiles1, inverse1, 1, c)
        else:
            _stage(tmem, o_smem, bars, counts.busy0, counts.tiles0, inverse0, 0, c)
    else:
        _stage_nothing(o_smem, bars, counts.tiles0, lse, lse_stride, head, tile, row, 0, c)
        if both:
            _stage_nothing(o_smem, bars, counts.tiles1, lse, lse_stride, head, tile, row, 1, c)
    return count_tile(counts, n, both)


@triton.jit
def _store(desc_o, o_smem, bars, turn, tile, row, head, GROUP: tl.constexpr, c: tl.constexpr):
    """Starts the stores of a group's staged O."""
    tlx.barrier_wait(bars.o_full[GROUP], turn & 1)
    for i in tl.static_range(c.D // HALF):
        store_rows(desc_o, o_smem[GROUP * (c.D // HALF) + i], tile.out_start, tile.q_len, row + GROUP * ROWS,
                   head * c.D + i * HALF)


@triton.jit
def store(desc_o, o_smem, bars, work, item, tile, counts, c: tl.constexpr):
    """The epilogue of one tile: staged O goes out by TMA, rows past the sequence's end are dropped.

    Returns the counts after it.
    """
    row, head, both = place_tile(work, item, tile, c)
    _store(desc_o, o_smem, bars, counts.tiles0, tile, row, head, 0, c)
    if both:
        _store(desc_o, o_smem, bars, counts.tiles1, tile, row, head, 1, c)
        tlx.async_descriptor_store_wait(c.D // HALF)
        tlx.barrier_arrive(bars.o_empty[0])
        tlx.async_descriptor_store_wait(0)
        tlx.barrier_arrive(bars.o_empty[1])
    else:
        tlx.async_descriptor_store_wait(0)
        tlx.barrier_arrive(bars.o_empty[0])
    return count_tile(counts, 0, both)
