"""What is different when a cluster of two CTAs shares its matmuls: loads, MMA order, and the relay.

CTA ``r`` of a pair owns 128 of a tile's 256 KV rows, and computes and stores dK and dV of those. Every matmul runs on
both tensor cores, issued by CTA 0 (the leader), and each CTA brings half of the right operand:

    S^T, dP^T   K, V of its own rows x its 64 of the 128 Q rows (q_rows, do_rows)
    dV, dK      P^T, dS^T of its own rows x its half of the columns of dO, Q (do, q)
    dQ          dS^T of its 64 Q rows and all 256 KV rows x its half of the columns of K (k_columns)

For dQ a CTA needs the other's dS^T: of its own [128, 128] it keeps the columns of its 64 Q rows and copies the rest to
the peer. When a copy has landed, the receiver's relay tells the leader.

dQ shares tensor memory with S and P: S^T in columns 0-127, then P^T in 0-63 and dQ in 64-127. So the order is

    S(0) dP(0) dV(0), then for each further step: S(n) dK(n-1) dP(n) dQ(n-1) dV(n), at last dK dQ of the last step,

where dQ(n-1) waits until S(n) has been read, and S(n) until dQ(n-2) has. dQ of 64 rows lies in 128 lanes: columns of
its first half in lanes 0-63, those of the second in 64-127.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.backward_load import load_rows_of_step
from kernels.blackwell.backward_walk import BILLION, BLOCK_N, HALF
from kernels.hopper.backward_record import (
    BLOCK,
    FIELDS,
    HEAD,
    K_LEN,
    K_ROW,
    K_START,
    OUT_START,
    Q_LEN,
    Q_START,
    ROW_BLOCK,
    STEPS,
)
from kernels.hopper.backward_step import opaque


class Pair(NamedTuple):
    """Buffers and barriers beside those of a single CTA."""

    q_rows: tlx.buffered_tensor
    do_rows: tlx.buffered_tensor
    k_columns: tlx.buffered_tensor
    ds_part: tlx.buffered_tensor
    ds_out: tlx.buffered_tensor
    q_rows_full: tlx.mbarrier
    q_rows_empty: tlx.mbarrier
    do_rows_full: tlx.mbarrier
    do_rows_empty: tlx.mbarrier
    k_columns_full: tlx.mbarrier
    ds_landed: tlx.mbarrier
    ds_empty: tlx.mbarrier


@triton.jit
def allocate_pair(ds, c: tl.constexpr):
    """What a pair has more; ``ds`` is [256, 64], of which each CTA's rows are a part of their own."""
    q_rows = tlx.local_alloc((HALF, c.D), c.DTYPE, c.NUM_Q)
    do_rows = tlx.local_alloc((HALF, c.D), c.DTYPE, c.NUM_DO)
    k_columns = tlx.local_alloc((2 * BLOCK_N, c.D // 2), c.DTYPE, c.NUM_KV)
    ds_part = tlx.local_alloc((BLOCK_N, HALF), c.DTYPE, 2, reuse=ds)
    ds_out = tlx.local_alloc((BLOCK_N, HALF), c.DTYPE, 1)
    q_rows_full = tlx.alloc_barriers(c.NUM_Q)
    q_rows_empty = tlx.alloc_barriers(c.NUM_Q)
    do_rows_full = tlx.alloc_barriers(c.NUM_DO)
    do_rows_empty = tlx.alloc_barriers(c.NUM_DO)
    k_columns_full = tlx.alloc_barriers(c.NUM_KV)
    ds_landed = tlx.alloc_barriers(1)
    ds_empty = tlx.alloc_barriers(1)
    return Pair(q_rows, do_rows, k_columns, ds_part, ds_out, q_rows_full, q_rows_empty, do_rows_full, do_rows_empty,
                k_columns_full, ds_landed, ds_empty)


@triton.jit
def _load(desc, ring, full, slot, start, length, row, column, rank, BYTES: tl.constexpr):
    """One CTA's half of a load whose bytes, ``BYTES`` of both CTAs, count at the leader's barrier."""
    if rank == 0:
        tlx.barrier_expect_bytes(full[slot], BYTES)
    tlx.async_descriptor_load(desc, ring[slot], [BILLION, start + length, BILLION - length + row, column], full[slot],
                              two_ctas=True)


@triton.jit
def load_pair(tile, n, n_kv, desc_q, desc_do, desc_q_rows, desc_do_rows, desc_k, desc_v, desc_k_columns, work, buf, bar,
              pair, c: tl.constexpr):
    """One tile of both CTAs' load roles, see `kernels.blackwell.backward_load`."""
    KV_BYTES: tl.constexpr = 2 * BLOCK_N * c.D * 2
    Q_BYTES: tl.constexpr = c.BLOCK_M * c.D * 2
    rank = tlx.cluster_cta_rank()
    half = rank * (c.D // 2)
    record = work.tiles + tile * FIELDS
    q_start, q_len, out_start = tl.load(record + Q_START), tl.load(record + Q_LEN), tl.load(record + OUT_START)
    k_start, k_len, k_row = tl.load(record + K_START), tl.load(record + K_LEN), tl.load(record + K_ROW)
    steps, block, head = tl.load(record + STEPS), tl.load(record + BLOCK), tl.load(record + HEAD)
    row_block = tl.load(record + ROW_BLOCK) + block
    k_column = head * c.D
    own_row = k_row + rank * BLOCK_N
    kb = n_kv % c.NUM_KV
    if steps > 0:
        tlx.barrier_wait(bar.kv_empty[kb], ((n_kv // c.NUM_KV) & 1) ^ 1)
        _load(desc_k, buf.k, bar.k_full, kb, k_start, k_len, own_row, k_column, rank, KV_BYTES)
        n_kv += 1
    for g in tl.range(0, c.GROUP, num_stages=1):
        head_q = head * c.GROUP + g
        q_column = head_q * c.D
        rows = work.rows + (head_q * work.num_blocks + row_block).to(tl.int64) * (2 * c.BLOCK_M)
        for i in tl.range(0, steps, num_stages=1):
            row = (block + i) * c.BLOCK_M
            qb = n % c.NUM_Q
            db = n % c.NUM_DO
            q_phase = ((n // c.NUM_Q) & 1) ^ 1
            do_phase = ((n // c.NUM_DO) & 1) ^ 1
            tlx.barrier_wait(pair.q_rows_empty[qb], q_phase)
            _load(desc_q_rows, pair.q_rows, pair.q_rows_full, qb, q_start, q_len, row + rank * HALF, q_column, rank,
                  Q_BYTES)
            if g + i == 0:
                _load(desc_v, buf.v, bar.v_full, kb, k_start, k_len, own_row, k_column, rank, KV_BYTES)
            tlx.barrier_wait(pair.do_rows_empty[db], do_phase)
            _load(desc_do_rows, pair.do_rows, pair.do_rows_full, db, out_start, q_len, row + rank * HALF, q_column,
                  rank, Q_BYTES)
            tlx.barrier_wait(bar.do_empty[db], do_phase)
            _load(desc_do, buf.do, bar.do_full, db, out_start, q_len, row, q_column + half, rank, Q_BYTES)
            if g + i == 0:
                _load(desc_k_columns, pair.k_columns, pair.k_columns_full, kb, k_start, k_len, k_row,
                      k_column + half, rank, KV_BYTES)
            tlx.barrier_wait(bar.q_empty[qb], q_phase)
            _load(desc_q, buf.q, bar.q_full, qb, q_start, q_len, row, q_column + half, rank, Q_BYTES)
            load_rows_of_step(rows, n, buf, bar, c)
            rows += 2 * c.BLOCK_M
            n += 1
    return n, n_kv


@triton.jit
def _s(n, drained, kb, buf, bar, pair, c: tl.constexpr):
    """S^T = K Q^T, when ``drained`` steps' dQ have left the columns."""
    qb = n % c.NUM_Q
    kb = opaque(kb)
    qb = opaque(qb)
    tlx.barrier_wait(pair.q_rows_full[qb], (n // c.NUM_Q) & 1)
    tlx.barrier_wait(bar.dq_empty[0], (drained & 1) ^ 1)
    tlx.async_dot(buf.k[kb], tlx.local_trans(pair.q_rows[qb]), buf.s_tmem[0], use_acc=False,
                  mBarriers=[bar.s_full[0], pair.q_rows_empty[qb]], two_ctas=True)


@triton.jit
def _dp(n, kb, buf, bar, pair, c: tl.constexpr):
    """dP^T = V dO^T."""
    db = n % c.NUM_DO
    kb = opaque(kb)
    db = opaque(db)
    tlx.barrier_wait(pair.do_rows_full[db], (n // c.NUM_DO) & 1)
    tlx.async_dot(buf.v[kb], tlx.local_trans(pair.do_rows[db]), buf.dp_tmem[0], use_acc=False,
                  mBarriers=[bar.dp_full[0], pair.do_rows_empty[db]], two_ctas=True)


@triton.jit
def _dv(n, use_acc, buf, bar, c: tl.constexpr):
    """dV += P^T dO; `p_full` has been waited for."""
    db = n % c.NUM_DO
    db = opaque(db)
    tlx.barrier_wait(bar.do_full[db], (n // c.NUM_DO) & 1)
    tlx.async_dot(buf.p_tmem[0], buf.do[db], buf.dv_tmem[0], use_acc=use_acc, mBarriers=[bar.do_empty[db]],
                  two_ctas=True)


@triton.jit
def _dk(n, use_acc, buf, bar, c: tl.constexpr):
    """dK += dS^T Q."""
    qb = n % c.NUM_Q
    qb = opaque(qb)
    tlx.barrier_wait(bar.q_full[qb], (n // c.NUM_Q) & 1)
    tlx.barrier_wait(bar.ds_tmem_full[0], n & 1)
    tlx.async_dot(buf.ds_tmem[0], buf.q[qb], buf.dk_tmem[0], use_acc=use_acc, mBarriers=[bar.q_empty[qb]],
                  two_ctas=True)


@triton.jit
def _dq(n, kb, buf, bar, pair, c: tl.constexpr):
    """dQ = dS K."""
    kb = opaque(kb)
    zero = 0
    zero = opaque(zero)
    tlx.barrier_wait(bar.ds_full[0], n & 1)
    tlx.async_dot(tlx.local_trans(buf.ds[zero]), pair.k_columns[kb], buf.dq_tmem[0], use_acc=False,
                  mBarriers=[bar.dq_full[0], pair.ds_empty[0]], two_ctas=True)


@triton.jit
def multiply_pair(tile, n, n_kv, work, buf, bar, pair, c: tl.constexpr):
    """Issues every matmul of one tile, for both CTAs; see `kernels.blackwell.backward_mma`."""
    total = tl.load(work.tiles + tile * FIELDS + STEPS) * c.GROUP
    if total > 0:
        kb = n_kv % c.NUM_KV
        kv_phase = (n_kv // c.NUM_KV) & 1
        tlx.barrier_wait(bar.k_full[kb], kv_phase)
        _s(n, n, kb, buf, bar, pair, c)
        tlx.barrier_wait(bar.v_full[kb], kv_phase)
        _dp(n, kb, buf, bar, pair, c)
        tlx.barrier_wait(bar.p_full[0], n & 1)
        _dv(n, False, buf, bar, c)
        tlx.barrier_wait(pair.k_columns_full[kb], kv_phase)
        for i in tl.range(1, total, num_stages=1):
            _s(n + i, n + i - 1, kb, buf, bar, pair, c)
            _dk(n + i - 1, i > 1, buf, bar, c)
            _dp(n + i, kb, buf, bar, pair, c)
            tlx.barrier_wait(bar.p_full[0], (n + i) & 1)
            _dq(n + i - 1, kb, buf, bar, pair, c)
            _dv(n + i, True, buf, bar, c)
        tlx.tcgen05_commit(bar.dv_full[0], two_ctas=True)
        n += total
        _dk(n - 1, total > 1, buf, bar, c)
        tlx.barrier_wait(bar.dq_empty[0], n & 1)
        _dq(n - 1, kb, buf, bar, pair, c)
        tlx.tcgen05_commit(bar.dk_full[0], two_ctas=True)
        n_kv += 1
    return n, n_kv


@triton.jit
def relay(tile, n, work, bar, pair, c: tl.constexpr):
    """Tells the leader, for each step of a tile, that this CTA has both parts of its dS^T; ``n`` as in `reduce`."""
    for _ in tl.range(0, tl.load(work.tiles + tile * FIELDS + STEPS) * c.GROUP, num_stages=1):
        tlx.barrier_wait(pair.ds_landed[0], n & 1)
        tlx.barrier_arrive(bar.ds_full[0], 1, remote_cta_rank=0)
        n += 1
    return n
