"""The backward's compute role, 8 warps: P from S, dS from P and dP, and at a tile's end dV and dK to memory."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.backward_walk import (
    BLOCK,
    BLOCK_N,
    CUT_END,
    CUT_FROM,
    FIELDS,
    HEAD,
    K_LEN,
    K_ROW,
    K_START,
    Q_LEN,
    STEPS,
    first_tile,
    next_tile,
)
from kernels.blackwell.primitives import fma
from kernels.hopper.ragged import store_rows

THREADS = tl.constexpr(256)
ZEROS = tl.constexpr(16)  # rows
S_READ = tl.constexpr(10)  # named barriers: every warp has read S, or dP
DP_READ = tl.constexpr(11)


@triton.jit
def _masked(p, row, k_row, record, work, c: tl.constexpr):
    """P^T with zeros where the key is not visible to the query: after the exp2, which may be inf without a key."""
    k_len = tl.load(record + K_LEN)
    key = k_row + tl.arange(0, BLOCK_N)
    visible = key[:, None] < k_len
    if c.HAS_LEFT or c.HAS_RIGHT:  # where the queries stand among the keys
        at = row + k_len - tl.load(record + Q_LEN) + tl.arange(0, c.BLOCK_M)
        if c.HAS_RIGHT:
            visible &= key[:, None] <= (at + work.right)[None, :]
        if c.HAS_LEFT:
            visible &= key[:, None] >= (at - work.left)[None, :]
    return tl.where(visible, p, 0.0)


@triton.jit
def _step(n, row, cut, k_row, record, work, buf, bar, c: tl.constexpr):
    """One block of Q; ``cut``: it needs the mask (a constexpr where the loop is peeled)."""
    rb = n % 2
    tlx.barrier_wait(bar.rows_full[rb], (n // 2) & 1)
    tlx.barrier_wait(bar.s_full[0], n & 1)
    s = tlx.local_load(buf.s_tmem[0])  # [BLOCK_N, BLOCK_M], as all of them
    p = tl.math.exp2(fma(s, work.scale_log2, tlx.local_load(buf.lse[rb])[None, :], c.PACKED))
    if cut:
        p = _masked(p, row, k_row, record, work, c)
    tlx.named_barrier_wait(S_READ, THREADS)
    tlx.local_store(buf.p_tmem[0], p.to(c.DTYPE))
    tlx.barrier_arrive(bar.p_full[0])
    tlx.barrier_wait(bar.dp_full[0], n & 1)
    dp = tlx.local_load(buf.dp_tmem[0])
    ds = (p * (dp + tlx.local_load(buf.delta[rb])[None, :])).to(c.DTYPE)
    tlx.named_barrier_wait(DP_READ, THREADS)
    tlx.barrier_arrive(bar.rows_empty[rb])
    tlx.local_store(buf.ds_tmem[0], ds)
    tlx.barrier_arrive(bar.ds_tmem_full[0])
    tlx.local_store(buf.ds[0], ds)
    tlx.fence("async_shared")
    tlx.barrier_arrive(bar.ds_full[0])


@triton.jit
def _store_tile(desc, out, tmem, factor, start, length, row, column, slot, c: tl.constexpr):
    """dV or dK times ``factor``, 64 columns at a time, through shared memory."""
    for part in tl.static_range(c.D // 64):
        x = tlx.local_load(tlx.local_slice(tmem, [0, part * 64], [BLOCK_N, 64])) * factor
        tlx.local_store(out[slot * (c.D // 64) + part], x.to(c.DTYPE))
        tlx.fence("async_shared")
        store_rows(desc, out[slot * (c.D // 64) + part], start, length, row, column + part * 64)


@triton.jit
def _store_zeros(out, start, length, row, column, stride, c: tl.constexpr):
    """Zeros to dV or dK, ``out`` with ``stride`` elements a row: nothing sees these keys."""
    for part in tl.range(0, BLOCK_N, ZEROS, num_stages=1):  # few rows at a time, as registers are
        rows = row + part + tl.arange(0, ZEROS)
        at = (start + rows).to(tl.int64)[:, None] * stride + column + tl.arange(0, c.D)[None, :]
        tl.store(out + at, tl.zeros([ZEROS, c.D], c.DTYPE), mask=(rows < length)[:, None])


@triton.jit
def compute(desc_dk, desc_dv, dk, dv, kv_stride, work, clc, buf, bar, c: tl.constexpr):
    """Walks the steps of every tile; the slots of V and K, read for the last time, carry dV and dK out."""
    n = 0
    n_kv = 0
    turn = 0
    tile, end = first_tile(work, c)
    while tile >= 0:
        record = work.tiles + tile * FIELDS
        steps, cut_end, cut_from = tl.load(record + STEPS), tl.load(record + CUT_END), tl.load(record + CUT_FROM)
        k_row = tl.load(record + K_ROW)
        first_row = tl.load(record + BLOCK) * c.BLOCK_M
        for _ in tl.range(0, c.GROUP, num_stages=1):
            if c.PEEL:
                for i in tl.range(0, cut_end, num_stages=1):
                    _step(n + i, first_row + i * c.BLOCK_M, True, k_row, record, work, buf, bar, c)
                for i in tl.range(cut_end, cut_from, num_stages=1):
                    _step(n + i, first_row + i * c.BLOCK_M, False, k_row, record, work, buf, bar, c)
                if c.HAS_LEFT:
                    for i in tl.range(cut_from, steps, num_stages=1):
                        _step(n + i, first_row + i * c.BLOCK_M, True, k_row, record, work, buf, bar, c)
            else:
                for i in tl.range(0, steps, num_stages=1):
                    cut = (i < cut_end) | (i >= cut_from)
                    _step(n + i, first_row + i * c.BLOCK_M, cut, k_row, record, work, buf, bar, c)
            n += steps
        k_start, k_len = tl.load(record + K_START), tl.load(record + K_LEN)
        column = tl.load(record + HEAD) * c.D
        if steps > 0:
            kb = n_kv % c.NUM_KV
            tlx.barrier_wait(bar.dv_full[0], n_kv & 1)
            _store_tile(desc_dv, buf.dv_out, buf.dv_tmem[0], 1.0, k_start, k_len, k_row, column, kb, c)
            tlx.barrier_wait(bar.dk_full[0], n_kv & 1)
            _store_tile(desc_dk, buf.dk_out, buf.dk_tmem[0], work.scale, k_start, k_len, k_row, column, kb, c)
            tlx.async_descriptor_store_wait(0)
            tlx.barrier_arrive(bar.kv_empty[kb])
            n_kv += 1
        else:
            _store_zeros(dv, k_start, k_len, k_row, column, kv_stride, c)
            _store_zeros(dk, k_start, k_len, k_row, column, kv_stride, c)
        tile = next_tile(work, clc, tile, end, turn, c)
        turn += 1
