"""The forward's loader: TMA loads of Q, K and V, tile after tile, as far ahead as the rings allow."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.ragged import load_rows
from kernels.hopper.work import (
    ITEM_SLOTS,
    dealt_item,
    draw_item,
    first_item,
    group_place,
    kv_range,
    place,
    read_run,
    record_of,
    reset_counter,
)

ROWS = tl.constexpr(64)


@triton.jit
def _load_block(desc, ring, count, start, length, row, column, BYTES: tl.constexpr, FIRST: tl.constexpr,
                NUM: tl.constexpr):
    """The ring's ``count``-th block, into one of the slots ``FIRST ... FIRST + NUM - 1``."""
    slot = FIRST + count % NUM
    tlx.barrier_wait(ring.empty[slot], ((count // NUM) & 1) ^ 1)
    tlx.barrier_expect_bytes(ring.full[slot], BYTES)
    load_rows(desc, ring.smem[slot], start, length, row, column, ring.full[slot])


@triton.jit
def load(desc_q, desc_k, desc_v, q_ring, k_ring, v_ring, items, work, STREAM: tl.constexpr, c: tl.constexpr):
    """The loader's walk over its worker's items. K(i + 1) goes before V(i): it is needed first."""
    BLOCK_M: tl.constexpr = ROWS * c.GROUPS
    KV_BYTES: tl.constexpr = c.BLOCK_N * c.D * 2
    K0: tl.constexpr = STREAM * c.NUM_K
    V0: tl.constexpr = STREAM * c.NUM_V
    worker = tl.program_id(0) * c.STREAMS + STREAM
    workers = tl.num_programs(0) * c.STREAMS
    turn = 0
    n_kv = 0  # KV blocks of earlier tiles
    item = first_item(work, worker, workers, c)
    record = record_of(work, item)
    q_start, q_len, run = tl.load(record), tl.load(record + 1), read_run(record, c.SECTIONS)
    k_start, k_len = tl.load(record + 4), tl.load(record + 5)
    while item < work.num_items:
        m_row, head_q = place(work, item, run, c.SECTIONS)
        k_column = (head_q // work.group_size) * c.D
        low, n, _head, _tail = kv_range(q_len, m_row, k_len, work, BLOCK_M, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT)
        slot = STREAM * c.NUM_Q + turn % c.NUM_Q
        tlx.barrier_wait(q_ring.empty[slot], ((turn // c.NUM_Q) & 1) ^ 1)
        tlx.barrier_expect_bytes(q_ring.full[slot], BLOCK_M * c.D * 2)
        for g in tl.static_range(c.GROUPS):
            row = m_row + group_place(g, turn, c.GROUPS) * ROWS if c.APART else m_row + g * ROWS
            load_rows(desc_q, q_ring.smem[slot * c.GROUPS + g], q_start, q_len, row, head_q * c.D, q_ring.full[slot])
        row = (low + n - 1) * c.BLOCK_N
        _load_block(desc_k, k_ring, n_kv, k_start, k_len, row, k_column, KV_BYTES, K0, c.NUM_K)
        if c.DYNAMIC:
            item2 = draw_item(work, items, turn, workers, STREAM * ITEM_SLOTS, c)
        else:
            item2 = dealt_item(work, turn + 1, worker, workers, c)
        record = record_of(work, item2)
        q_start2, q_len2, run2 = tl.load(record), tl.load(record + 1), read_run(record, c.SECTIONS)
        k_start2, k_len2 = tl.load(record + 4), tl.load(record + 5)
        for i in tl.range(1, n, num_stages=1):
            _load_block(desc_k, k_ring, n_kv + i, k_start, k_len, row - c.BLOCK_N, k_column, KV_BYTES, K0, c.NUM_K)
            _load_block(desc_v, v_ring, n_kv + i - 1, k_start, k_len, row, k_column, KV_BYTES, V0, c.NUM_V)
            row -= c.BLOCK_N
        _load_block(desc_v, v_ring, n_kv + n - 1, k_start, k_len, row, k_column, KV_BYTES, V0, c.NUM_V)
        n_kv += n
        item = item2
        q_start, q_len, run, k_start, k_len = q_start2, q_len2, run2, k_start2, k_len2
        turn += 1
    if c.DYNAMIC:
        reset_counter(work, workers)
