"""The backward's compute role, 8 warps: P from S, dS from P and dP, and at a tile's end dV and dK to memory."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.backward_mask import masked
from kernels.blackwell.backward_walk import BILLION, BLOCK_N, DP_READ, DS_WRITTEN, HALF, S_READ, THREADS
from kernels.blackwell.primitives import fma
from kernels.hopper.backward_record import BLOCK, CUT_END, CUT_FROM, FIELDS, HEAD, K_LEN, K_ROW, K_START, STEPS

ZEROS = tl.constexpr(16)  # rows


@triton.jit
def _p(half: tl.constexpr, row, cut, k_row, record, work, buf, c: tl.constexpr):
    """P^T of 64 queries, ``[BLOCK_N, HALF]``."""
    s = tlx.local_load(tlx.local_slice(buf.s_tmem[0], [0, half * HALF], [BLOCK_N, HALF]))
    p = tl.math.exp2(fma(s, work.scale_log2, tlx.local_load(buf.lse[half])[None, :], c.PACKED))
    if cut:
        p = masked(p, row + half * HALF, k_row, record, work, c)
    return p


@triton.jit
def _ds(half: tl.constexpr, p, slot, buf, c: tl.constexpr):
    """dS^T of 64 queries, ``[BLOCK_N, HALF]``, from their P^T."""
    dp = tlx.local_load(tlx.local_slice(buf.dp_tmem[0], [0, half * HALF], [BLOCK_N, HALF]))
    return (p * (dp + tlx.local_load(buf.delta[slot + half])[None, :])).to(c.DTYPE)


@triton.jit
def _arrive(bar, c: tl.constexpr):
    """At the MMA role's barrier, which is the leader's in a pair."""
    if c.PAIR:
        tlx.barrier_arrive(bar, 1, remote_cta_rank=0)
    else:
        tlx.barrier_arrive(bar)


@triton.jit
def _step(n, row, cut, k_row, rank, record, work, buf, bar, pair, c: tl.constexpr):
    """One block of Q, 64 queries at a time; ``cut``: it needs the mask (a constexpr where the loop is peeled)."""
    TWO: tl.constexpr = c.BLOCK_M == 128
    db = n % 2
    slot = db * (c.BLOCK_M // HALF)
    tlx.barrier_wait(bar.lse_full[0], n & 1)
    tlx.barrier_wait(bar.s_full[0], n & 1)
    p0 = _p(0, row, cut, k_row, record, work, buf, c)
    p1 = _p(1, row, cut, k_row, record, work, buf, c) if TWO else p0
    tlx.named_barrier_wait(S_READ, THREADS)
    tlx.barrier_arrive(bar.lse_empty[0])
    tlx.local_store(tlx.local_slice(buf.p_tmem[0], [0, 0], [BLOCK_N, HALF]), p0.to(c.DTYPE))
    if TWO:
        tlx.local_store(tlx.local_slice(buf.p_tmem[0], [0, HALF], [BLOCK_N, HALF]), p1.to(c.DTYPE))
    _arrive(bar.p_full[0], c)
    tlx.barrier_wait(bar.delta_full[db], (n // 2) & 1)
    tlx.barrier_wait(bar.dp_full[0], n & 1)
    ds0 = _ds(0, p0, slot, buf, c)
    ds1 = _ds(1, p1, slot, buf, c) if TWO else ds0
    tlx.named_barrier_wait(DP_READ, THREADS)
    tlx.barrier_arrive(bar.delta_empty[db])
    tlx.local_store(tlx.local_slice(buf.ds_tmem[0], [0, 0], [BLOCK_N, HALF]), ds0)
    if TWO:
        tlx.local_store(tlx.local_slice(buf.ds_tmem[0], [0, HALF], [BLOCK_N, HALF]), ds1)
    _arrive(bar.ds_tmem_full[0], c)
    if c.PAIR:  # the columns of this CTA's queries stay, the others go to the peer
        tlx.barrier_wait(pair.ds_empty[0], (n & 1) ^ 1)
        if rank == 0:
            tlx.local_store(pair.ds_part[0], ds0)
            tlx.local_store(pair.ds_out[0], ds1)
        else:
            tlx.local_store(pair.ds_part[1], ds1)
            tlx.local_store(pair.ds_out[0], ds0)
        tlx.fence("async_shared")
        tlx.named_barrier_wait(DS_WRITTEN, THREADS)  # as one thread tells the relay, and without meeting the others
        tlx.barrier_expect_bytes(pair.ds_landed[0], BLOCK_N * HALF * 2)
        tlx.async_remote_shmem_copy(dst=pair.ds_part[rank], src=pair.ds_out[0], remote_cta_rank=1 - rank,
                                    barrier=pair.ds_landed[0])
    else:
        tlx.local_store(tlx.local_slice(buf.ds[0], [0, 0], [BLOCK_N, HALF]), ds0)
        if TWO:
            tlx.local_store(tlx.local_slice(buf.ds[0], [0, HALF], [BLOCK_N, HALF]), ds1)
        tlx.fence("async_shared")
        tlx.barrier_arrive(bar.ds_full[0])


@triton.jit
def _store_tile(desc, slot, tmem, factor, start, length, row, column, c: tl.constexpr):
    """dV or dK times ``factor``, 64 columns at a time, through shared memory; coordinates as in `store_rows`."""
    for part in tl.static_range(c.D // 64):
        x = tlx.local_load(tlx.local_slice(tmem, [0, part * 64], [BLOCK_N, 64])) * factor
        out = tlx.local_slice(slot, [0, part * 64], [BLOCK_N, 64])
        tlx.local_store(out, x.to(c.DTYPE))
        tlx.fence("async_shared")
        tlx.async_descriptor_store(desc, out, [BILLION, start + length, BILLION - length + row, column + part * 64])


@triton.jit
def _store_zeros(out, start, length, row, column, stride, c: tl.constexpr):
    """Zeros to dV or dK, ``out`` with ``stride`` elements a row: nothing sees these keys."""
    for part in tl.range(0, BLOCK_N, ZEROS, num_stages=1):  # few rows at a time, as registers are
        rows = row + part + tl.arange(0, ZEROS)
        at = (start + rows).to(tl.int64)[:, None] * stride + column + tl.arange(0, c.D)[None, :]
        tl.store(out + at, tl.zeros([ZEROS, c.D], c.DTYPE), mask=(rows < length)[:, None])


@triton.jit
def compute(tile, n, n_kv, desc_dk, desc_dv, dk, dv, kv_stride, work, buf, bar, pair, c: tl.constexpr):
    """One tile; ``n`` steps and ``n_kv`` tiles with steps came before it. Returns both, this one counted.

    The slots of V and K, read for the last time, carry dV and dK out.
    """
    rank = tlx.cluster_cta_rank() if c.PAIR else 0
    record = work.tiles + tile * FIELDS
    steps, cut_end, cut_from = tl.load(record + STEPS), tl.load(record + CUT_END), tl.load(record + CUT_FROM)
    k_row = tl.load(record + K_ROW) + rank * BLOCK_N
    first_row = tl.load(record + BLOCK) * c.BLOCK_M
    for _ in tl.range(0, c.GROUP, num_stages=1):
        if c.PEEL:
            for i in tl.range(0, cut_end, num_stages=1):
                _step(n + i, first_row + i * c.BLOCK_M, True, k_row, rank, record, work, buf, bar, pair, c)
            for i in tl.range(cut_end, cut_from, num_stages=1):
                _step(n + i, first_row + i * c.BLOCK_M, False, k_row, rank, record, work, buf, bar, pair, c)
            if c.HAS_LEFT:
                for i in tl.range(cut_from, steps, num_stages=1):
                    _step(n + i, first_row + i * c.BLOCK_M, True, k_row, rank, record, work, buf, bar, pair, c)
        else:
            for i in tl.range(0, steps, num_stages=1):
                cut = (i < cut_end) | (i >= cut_from)
                _step(n + i, first_row + i * c.BLOCK_M, cut, k_row, rank, record, work, buf, bar, pair, c)
        n += steps
    k_start, k_len = tl.load(record + K_START), tl.load(record + K_LEN)
    column = tl.load(record + HEAD) * c.D
    if steps > 0:
        kb = n_kv % c.NUM_KV
        tlx.barrier_wait(bar.dv_full[0], n_kv & 1)
        _store_tile(desc_dv, buf.v[kb], buf.dv_tmem[0], 1.0, k_start, k_len, k_row, column, c)
        tlx.barrier_wait(bar.dk_full[0], n_kv & 1)
        _store_tile(desc_dk, buf.k[kb], buf.dk_tmem[0], work.scale, k_start, k_len, k_row, column, c)
        tlx.async_descriptor_store_wait(0)
        tlx.barrier_arrive(bar.kv_empty[kb])
        n_kv += 1
    else:
        _store_zeros(dv, k_start, k_len, k_row, column, kv_stride, c)
        _store_zeros(dk, k_start, k_len, k_row, column, kv_stride, c)
    return n, n_kv
