"""The backward's load role: TMA loads of K, V, Q and dO, bulk loads of lse and delta, tile after tile."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.backward_walk import BLOCK_N, HALF
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
from kernels.hopper.ragged import load_rows


@triton.jit
def load_rows_of_step(rows, n, buf, bar, c: tl.constexpr):
    """delta and lse of a block of Q; lse last, as its only slot is free when the step before has its P."""
    HALVES: tl.constexpr = c.BLOCK_M // HALF
    db = n % 2
    tlx.barrier_wait(bar.delta_empty[db], ((n // 2) & 1) ^ 1)
    tlx.barrier_expect_bytes(bar.delta_full[db], c.BLOCK_M * 4)
    for half in tl.static_range(HALVES):
        tlx.async_load(rows + c.BLOCK_M + half * HALF, buf.delta[db * HALVES + half], bulk=True,
                       barrier=bar.delta_full[db])
    tlx.barrier_wait(bar.lse_empty[0], (n & 1) ^ 1)
    tlx.barrier_expect_bytes(bar.lse_full[0], c.BLOCK_M * 4)
    for half in tl.static_range(HALVES):
        tlx.async_load(rows + half * HALF, buf.lse[half], bulk=True, barrier=bar.lse_full[0])


@triton.jit
def load(tile, n, n_kv, desc_q, desc_do, desc_k, desc_v, work, buf, bar, c: tl.constexpr):
    """One tile, see `compute`. Keeps the rings of Q and dO as full as they go; Q goes before dO, and K before V."""
    KV_BYTES: tl.constexpr = BLOCK_N * c.D * 2
    Q_BYTES: tl.constexpr = c.BLOCK_M * c.D * 2
    record = work.tiles + tile * FIELDS
    q_start, q_len, out_start = tl.load(record + Q_START), tl.load(record + Q_LEN), tl.load(record + OUT_START)
    k_start, k_len, k_row = tl.load(record + K_START), tl.load(record + K_LEN), tl.load(record + K_ROW)
    steps, block, head = tl.load(record + STEPS), tl.load(record + BLOCK), tl.load(record + HEAD)
    row_block = tl.load(record + ROW_BLOCK) + block
    kb = n_kv % c.NUM_KV
    if steps > 0:
        tlx.barrier_wait(bar.kv_empty[kb], ((n_kv // c.NUM_KV) & 1) ^ 1)
        tlx.barrier_expect_bytes(bar.k_full[kb], KV_BYTES)
        load_rows(desc_k, buf.k[kb], k_start, k_len, k_row, head * c.D, bar.k_full[kb])
        n_kv += 1
    for g in tl.range(0, c.GROUP, num_stages=1):
        head_q = head * c.GROUP + g
        rows = work.rows + (head_q * work.num_blocks + row_block).to(tl.int64) * (2 * c.BLOCK_M)
        for i in tl.range(0, steps, num_stages=1):
            row = (block + i) * c.BLOCK_M
            qb = n % c.NUM_Q
            tlx.barrier_wait(bar.q_empty[qb], ((n // c.NUM_Q) & 1) ^ 1)
            tlx.barrier_expect_bytes(bar.q_full[qb], Q_BYTES)
            load_rows(desc_q, buf.q[qb], q_start, q_len, row, head_q * c.D, bar.q_full[qb])
            if g + i == 0:
                tlx.barrier_expect_bytes(bar.v_full[kb], KV_BYTES)
                load_rows(desc_v, buf.v[kb], k_start, k_len, k_row, head * c.D, bar.v_full[kb])
            db = n % c.NUM_DO
            tlx.barrier_wait(bar.do_empty[db], ((n // c.NUM_DO) & 1) ^ 1)
            tlx.barrier_expect_bytes(bar.do_full[db], Q_BYTES)
            load_rows(desc_do, buf.do[db], out_start, q_len, row, head_q * c.D, bar.do_full[db])
            load_rows_of_step(rows, n, buf, bar, c)
            rows += 2 * c.BLOCK_M
            n += 1
    return n, n_kv
