"""The loader of the Hopper backward, one warp: TMA loads of K, V, Q and dO, bulk loads of lse and delta.

It runs as far ahead as the rings allow. K comes with a tile's first Q, on the same barrier, and V with K, or if LATE
with the first dO.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_hold import slot_of_step, takes_over
from kernels.hopper.backward_parts import ROWS, first_slot, slot_of_v
from kernels.hopper.backward_record import (
    BLOCK,
    FIELDS,
    HEAD,
    HOLDS,
    K_LEN,
    K_ROW,
    K_START,
    LASTS,
    OUT_START,
    Q_LEN,
    Q_START,
    ROLE,
    ROW_BLOCK,
    STEPS,
)
from kernels.hopper.backward_walk import block_of_step, walks_back
from kernels.hopper.ragged import load_rows


@triton.jit
def _load_block(desc, buffer, start, length, row, column, barrier, last, c: tl.constexpr):
    """A block of Q or dO; ``last``: no later tile of the CTA will read it, and it may leave L2."""
    if c.ONCE != "" and not c.HAS_LEFT and last:  # a window's blocks pass quickly anyway: it lost 4 % there
        load_rows(desc, buffer, start, length, row, column, barrier, c.ONCE)
    else:
        load_rows(desc, buffer, start, length, row, column, barrier)


@triton.jit
def _load_keys(desc, buffer, slot, start, length, row, head, barrier, c: tl.constexpr):
    """A tile's K or V, for both consumers."""
    for block in tl.static_range(2 * c.BLOCKS):
        load_rows(desc, buffer[slot + block], start, length, row + block * ROWS, head * c.D, barrier, c.ONCE)


@triton.jit
def load(desc_q, desc_do, desc_k, desc_v, work, buf, bar, c: tl.constexpr):
    """The loader's walk over its CTA's tiles. A ring's full barrier expects its bytes before K and V are waited for."""
    Q_BYTES: tl.constexpr = ROWS * c.D * 2
    ROW_BYTES: tl.constexpr = 2 * ROWS * 4
    KV_BYTES: tl.constexpr = 2 * c.BLOCKS * Q_BYTES
    n_step = 0
    n_kv = 0
    n_held = 0
    for place in tl.range(work.begin, work.end, num_stages=1):
        record = work.tiles + place * FIELDS
        q_start, q_len, o_start = tl.load(record + Q_START), tl.load(record + Q_LEN), tl.load(record + OUT_START)
        k_start, k_len, n0 = tl.load(record + K_START), tl.load(record + K_LEN), tl.load(record + K_ROW)
        steps, m_first, lasts = tl.load(record + STEPS), tl.load(record + BLOCK), tl.load(record + LASTS)
        head, block = tl.load(record + HEAD), tl.load(record + ROW_BLOCK)
        back = walks_back(record, c)
        role = tl.load(record + ROLE) if c.PAIR else 0
        held = tl.load(record + HOLDS) if c.HOLD else 0
        if c.HOLD:
            n_held += held & 1
        kb = n_kv % c.NUM_KV
        kv_phase = ((n_kv // c.NUM_KV) & 1) ^ 1
        k_slot = first_slot(n_kv, c.NUM_KV, c.LATE, c.BLOCKS)
        v_slot = slot_of_v(k_slot, c)
        if c.ALL_SEEN:
            tl.assume(steps > 0)
        elif steps == 0:  # no phase may pass unseen
            tlx.barrier_wait(bar.k_empty[kb], kv_phase)
            tlx.barrier_wait(bar.v_empty[kb], kv_phase)
            if c.NUM_KV == 2 and n_kv > 0:  # nor a phase of `no_steps`: consumers have ended the tile before
                tlx.barrier_wait(bar.k_empty[1 - kb], ((n_kv - 1) // 2) & 1)
            tlx.barrier_arrive(bar.no_steps[0])
        for g in tl.range(0, c.GROUP, num_stages=1):
            head_q = head * c.GROUP + g
            for i in tl.range(0, steps, num_stages=1):
                j = block_of_step(i, steps, back, role, c.SERPENTINE, c.PAIR)
                m = m_first + j
                opens = g + i == 0
                held_here = takes_over(held, i)
                qb, q_at, q_phase = slot_of_step(n_step, n_held, held_here, c.NUM_Q, c.HOLD)
                db, do_at, do_phase = slot_of_step(n_step, n_held, held_here, c.NUM_DO, c.HOLD)
                if held_here == 0:
                    at = work.rows + (head_q * work.num_blocks + block + m).to(tl.int64) * (2 * ROWS)
                    tlx.barrier_wait(bar.q_empty[qb], q_phase ^ 1)
                    if c.KEEP:  # the same Q in every step, and one step a tile
                        if n_step > 0:
                            tlx.barrier_expect_bytes(bar.q_full[qb], ROW_BYTES + 2 * KV_BYTES)
                        else:
                            tlx.barrier_expect_bytes(bar.q_full[qb], Q_BYTES + ROW_BYTES + 2 * KV_BYTES)
                            load_rows(desc_q, buf.q[0], q_start, q_len, m * ROWS, head_q * c.D, bar.q_full[qb])
                    else:
                        if opens:
                            tlx.barrier_expect_bytes(bar.q_full[qb], Q_BYTES + ROW_BYTES +
                                                     (KV_BYTES if c.LATE else 2 * KV_BYTES))
                        else:
                            tlx.barrier_expect_bytes(bar.q_full[qb], Q_BYTES + ROW_BYTES)
                        _load_block(desc_q, buf.q[qb], q_start, q_len, m * ROWS, head_q * c.D, bar.q_full[qb],
                                    j < lasts, c)
                    tlx.async_load(at, buf.lse[qb], bulk=True, barrier=bar.q_full[qb])
                    tlx.async_load(at + ROWS, buf.delta[qb], bulk=True, barrier=bar.q_full[qb])
                if opens:
                    tlx.barrier_wait(bar.v_empty[kb] if c.LATE else bar.k_empty[kb], kv_phase)
                    if held_here:
                        tlx.barrier_expect_bytes(bar.q_full[q_at], KV_BYTES)
                    _load_keys(desc_k, buf.kv, k_slot, k_start, k_len, n0, head, bar.q_full[q_at], c)
                    if not c.LATE:
                        tlx.barrier_wait(bar.v_empty[kb], kv_phase)
                        _load_keys(desc_v, buf.kv, v_slot, k_start, k_len, n0, head, bar.q_full[q_at], c)
                if held_here == 0:
                    tlx.barrier_wait(bar.do_empty[db], do_phase ^ 1)
                    if c.LATE and opens:
                        tlx.barrier_expect_bytes(bar.do_full[db], Q_BYTES + KV_BYTES)
                    else:
                        tlx.barrier_expect_bytes(bar.do_full[db], Q_BYTES)
                    _load_block(desc_do, buf.do[db], o_start, q_len, m * ROWS, head_q * c.D, bar.do_full[db],
                                j < lasts, c)
                if c.LATE and opens:
                    tlx.barrier_wait(bar.k_empty[kb], kv_phase)
                    if held_here:
                        tlx.barrier_expect_bytes(bar.do_full[do_at], KV_BYTES)
                    _load_keys(desc_v, buf.kv, v_slot, k_start, k_len, n0, head, bar.do_full[do_at], c)
                n_step += 1
        n_kv += 1  # noqa: SIM113
