"""The writer of the Hopper backward, one warp: dQ leaves from the staging, partial dQ comes to it, dK and dV leave.

It gives each use of the staging to the consumers before they fill it, empty or with the partial dQ to be added to: with
two stages a use ahead. What becomes of a step's dQ, and for whom it waits, is in the table of
`kernels.hopper.backward_kernel`.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_counted import await_adds, count_add, count_tile
from kernels.hopper.backward_pair import give, make_ready_to_take, meet
from kernels.hopper.backward_parts import FIELDS, HALF, dq_stores_done, stores_done, tile_at
from kernels.hopper.backward_walk import block_of_step, gives, takes, walks_back
from kernels.hopper.ragged import store_rows


@triton.jit
def _make_ready(use, row, fetch, desc_acc, buf, bar, NEWER: tl.constexpr, c: tl.constexpr):
    """The writer gives the slots of a use to the consumers: free, or with a partial dQ in them if ``fetch``.

    ``NEWER``: stores issued since the slots' last ones.
    """
    for cid in tl.static_range(2):
        slot = use % c.STAGES * 2 + cid
        tlx.async_descriptor_store_wait(1 - cid + NEWER)
        if fetch:
            tlx.barrier_expect_bytes(bar.ready[slot], HALF * HALF * 4)
            tlx.async_descriptor_load(desc_acc, buf.staging[slot], [row + cid * c.ROW, cid * c.COLUMN],
                                      bar.ready[slot], eviction_policy=c.AGAIN)
        else:
            tlx.barrier_arrive(bar.ready[slot])


@triton.jit
def _store_kv(desc, use, start, length, row, column, buf, bar, c: tl.constexpr):
    """Both consumers' parts of dV or dK, when they have filled the slots of a use."""
    for cid in tl.static_range(2):
        slot = use % c.STAGES * 2 + cid
        tlx.barrier_wait(bar.full[slot], (use // c.STAGES) & 1)
        store_rows(desc, buf.dkv[slot * (128 // c.D)], start, length, row + cid * 64, column, c.ONCE)


@triton.jit
def write_kept(desc_acc, work, buf, bar, c: tl.constexpr):
    """KEEP: the consumers have summed the one block's dQ of all tiles in the staging; the CTA's sum leaves."""
    for cid in tl.static_range(2):
        tlx.barrier_wait(bar.full[cid], 0)
        if work.begin < work.end:
            row = tl.load(work.tiles + work.begin * FIELDS + 15) * c.BLOCK_M
            tlx.async_descriptor_store(desc_acc, buf.staging[cid], [row, cid * 64])
    stores_done(work.begin)


@triton.jit
def write(desc_dq, desc_dk, desc_dv, desc_acc, work, buf, bar, peer, c: tl.constexpr):
    """The writer's walk over its CTA's tiles; ``peer``: the rank of a pair's other CTA."""
    AHEAD: tl.constexpr = c.STAGES == 2
    n_use = 0
    n_give = 0
    n_take = 0
    n_taken = 0
    n_met = 0
    for place in tl.range(work.begin, work.end, num_stages=1):
        t = tile_at(place, work.begin, work.end, work.start, c.ROTATE)
        record = work.tiles + t * FIELDS
        q_start, q_len = tl.load(record), tl.load(record + 1)
        steps, m_first = tl.load(record + 6), tl.load(record + 9)
        partials, firsts, lasts = tl.load(record + 10), tl.load(record + 11), tl.load(record + 12)
        head, acc_block, acc_group = tl.load(record + 13), tl.load(record + 15), tl.load(record + 16)
        if tl.load(record + 17) != 0:  # the tile before it wrote to the same partial dQ
            dq_stores_done(n_use)
        if c.TURNS:
            turn = work.counters + tl.load(record + 23)
            wanted = tl.load(record + 22)
            if wanted > 0:
                await_adds(turn, wanted)
        if c.COUNTED:
            counted = tl.load(record + 21) > 0
            storing, wanted = tl.load(record + 18), tl.load(record + 22)
            counter0 = head * c.GROUP * work.num_blocks + tl.load(record + 14) + m_first
            stored = -1  # the last step's counter
        back = walks_back(record, c.SERPENTINE, c.PAIR)
        role = tl.load(record + 18) if c.PAIR else 0
        if c.PAIR:  # noqa: SIM102 (one is known to the compiler)
            if (role != 0) & (partials > 0):
                meet(bar.met, n_met, peer)
                n_met += 1
        if AHEAD:
            j = tl.maximum(block_of_step(0, steps, back, role, c.SERPENTINE, c.PAIR), 0)
            row = (acc_block + m_first + j) * c.BLOCK_M
            if c.PAIR and takes(0, steps, role):
                make_ready_to_take(bar.ready, bar.may_give, n_use, n_take, peer, c.STAGES)
                n_take += 1
            else:
                _make_ready(n_use, row, j < partials, desc_acc, buf, bar, 0 if c.PAIR else 2, c)
        for g in tl.range(0, c.GROUP, num_stages=1):
            column = (head * c.GROUP + g) * c.D
            for i in tl.range(0, steps, num_stages=1):
                j = block_of_step(i, steps, back, role, c.SERPENTINE, c.PAIR)
                m = m_first + j
                first = j >= firsts
                last = j < lasts
                row = (acc_block + g * acc_group + m) * c.BLOCK_M
                if AHEAD:  # the next step's, of the next query head after this one's last, or dK's
                    over = i + 1 >= steps
                    g2 = tl.where(over, g + 1, g)
                    i2 = tl.where(over, 0, i + 1)
                    j2 = block_of_step(i2, steps, back, role, c.SERPENTINE, c.PAIR)
                    row2 = (acc_block + g2 * acc_group + m_first + j2) * c.BLOCK_M
                    fetch = (j2 < partials) & (g2 < c.GROUP)
                    if c.PAIR:  # noqa: SIM102
                        if gives(i - 1, steps, role):
                            tlx.barrier_wait(bar.taken[0], n_taken & 1)
                            n_taken += 1
                    if c.PAIR and takes(i2, steps, role) & (g2 < c.GROUP):
                        make_ready_to_take(bar.ready, bar.may_give, n_use + 1, n_take, peer, c.STAGES)
                        n_take += 1
                    else:
                        _make_ready(n_use + 1, row2, fetch, desc_acc, buf, bar, 0, c)
                else:
                    _make_ready(n_use, row, j < partials, desc_acc, buf, bar, 0, c)
                if c.COUNTED:
                    if stored >= 0:
                        count_add(work.counters + stored)
                    stored = tl.where(counted, counter0 + g * work.num_blocks + i, -1)
                    first |= i < storing
                    if counted & (first == 0):
                        await_adds(work.counters + stored, wanted)
                for cid in tl.static_range(2):
                    slot = n_use % c.STAGES * 2 + cid
                    tlx.barrier_wait(bar.full[slot], (n_use // c.STAGES) & 1)
                    if c.PAIR and gives(i, steps, role):
                        if cid == 1:
                            give(buf.staging, bar.ready, bar.may_give, slot - 1, n_give, i, steps, role, peer)
                            n_give += 1
                    elif last:
                        store_rows(desc_dq, buf.final[2 * slot], q_start, q_len, m * c.BLOCK_M + cid * c.ROW,
                                   column + cid * c.COLUMN, c.ONCE)
                    elif first:
                        tlx.async_descriptor_store(desc_acc, buf.staging[slot], [row + cid * c.ROW, cid * c.COLUMN],
                                                   eviction_policy=c.AGAIN)
                    else:
                        tlx.async_descriptor_store(desc_acc, buf.staging[slot], [row + cid * c.ROW, cid * c.COLUMN],
                                                   eviction_policy=c.AGAIN, store_reduce="add")
                n_use += 1
        if not AHEAD:
            _make_ready(n_use, 0, False, desc_acc, buf, bar, 0, c)
        if c.COUNTED:  # noqa: SIM102 (one is known to the compiler)
            if stored >= 0:
                count_add(work.counters + stored)
        k_start, k_len, n0 = tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
        if c.LATE:
            if c.PAIR:  # noqa: SIM102
                if gives(steps - 1, steps, role):
                    tlx.barrier_wait(bar.taken[0], n_taken & 1)
                    n_taken += 1
            if AHEAD:
                _make_ready(n_use + 1, 0, False, desc_acc, buf, bar, 0, c)
            _store_kv(desc_dv, n_use, k_start, k_len, n0, head * c.D, buf, bar, c)
            n_use += 1
            if not AHEAD:
                _make_ready(n_use, 0, False, desc_acc, buf, bar, 0, c)
        _store_kv(desc_dk, n_use, k_start, k_len, n0, head * c.D, buf, bar, c)
        n_use += 1
        if c.PAIR:  # noqa: SIM102
            if (role == 0) & (steps % 2 == 1):
                _make_ready(n_use, 0, False, desc_acc, buf, bar, 0, c)
                for cid in tl.static_range(2):
                    tlx.barrier_wait(bar.full[n_use % c.STAGES * 2 + cid], (n_use // c.STAGES) & 1)
                n_use += 1
        if c.TURNS:  # noqa: SIM102
            if tl.load(record + 23) >= 0:
                dq_stores_done(n_use)
                if n0 == 128:  # the last in turn, for the next launch
                    tl.store(turn, 0)
                else:
                    count_tile(turn)
    stores_done(n_use)
