"""The writer of the Hopper backward, one warp: dQ leaves from the staging, partial dQ comes to it, dK and dV leave.

It gives each use of the staging to the consumers before they fill it, empty or with the partial dQ to be added to: with
two stages a use ahead. What becomes of a step's dQ, and for whom it waits, is in the table of
`kernels.hopper.backward_kernel`.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_counted import await_adds, count_add, count_tile
from kernels.hopper.backward_hold import fetches_to_leave, leaves, takes_over
from kernels.hopper.backward_pair import give, make_ready_to_take, meet
from kernels.hopper.backward_parts import ROWS, dq_stores_done, stores_done
from kernels.hopper.backward_record import (
    ACC_BLOCK,
    ACC_GROUP,
    AFTER_ITSELF,
    BLOCK,
    COUNTER,
    FIELDS,
    FIRST_FROM,
    HEAD,
    HOLDS,
    K_LEN,
    K_ROW,
    K_START,
    LASTS,
    PARTIALS,
    Q_LEN,
    Q_START,
    ROLE,
    ROW_BLOCK,
    STEPS,
    STORES,
    TOUCHED,
    WANTED,
)
from kernels.hopper.backward_walk import block_of_step, gives, takes, walks_back
from kernels.hopper.ragged import store_rows


@triton.jit
def _make_ready(use, row, fetch, opening, desc_acc, buf, bar, c: tl.constexpr):
    """The writer gives the slots of a use to the consumers: free, or with a partial dQ in them if ``fetch``.

    ``opening``: the stores issued last are of the other stage, dK's.
    """
    stage = use % c.STAGES
    for cid in tl.static_range(2):
        if opening:
            tlx.async_descriptor_store_wait(2 * c.BLOCKS + 1 - cid)
        else:
            tlx.async_descriptor_store_wait(1 - cid)
        if fetch:
            tlx.barrier_expect_bytes(bar.ready[2 * stage + cid], ROWS * c.HALF * 4)
            tlx.async_descriptor_load(desc_acc, buf.staging[cid][c.BLOCKS * stage], [row, cid * c.HALF],
                                      bar.ready[2 * stage + cid], eviction_policy=c.AGAIN)
        else:
            tlx.barrier_arrive(bar.ready[2 * stage + cid])


@triton.jit
def _send_partial(desc_acc, staging, row, first, CID: tl.constexpr, c: tl.constexpr):
    """A consumer's part of a block's dQ to memory in fp32: stored by the ``first`` tile to touch it, else added."""
    if first:
        tlx.async_descriptor_store(desc_acc, staging, [row, CID * c.HALF], eviction_policy=c.AGAIN)
    else:
        tlx.async_descriptor_store(desc_acc, staging, [row, CID * c.HALF], eviction_policy=c.AGAIN, store_reduce="add")


@triton.jit
def _store_kv(desc, use, start, length, row, column, buf, bar, c: tl.constexpr):
    """Both consumers' parts of dV or dK, when they have filled the slots of a use."""
    stage = use % c.STAGES
    for cid in tl.static_range(2):
        tlx.barrier_wait(bar.full[2 * stage + cid], (use // c.STAGES) & 1)
        for block in tl.static_range(c.BLOCKS):
            first = row + (2 * block + cid) * ROWS
            store_rows(desc, buf.dkv[cid][c.BLOCKS * stage + block], start, length, first, column, c.ONCE)


@triton.jit
def write_kept(desc_acc, work, buf, bar, c: tl.constexpr):
    """KEEP: the consumers have summed the one block's dQ of all tiles in the staging; the CTA's sum leaves."""
    for cid in tl.static_range(2):
        tlx.barrier_wait(bar.full[cid], 0)
        if work.begin < work.end:
            row = tl.load(work.tiles + work.begin * FIELDS + ACC_BLOCK) * ROWS
            tlx.async_descriptor_store(desc_acc, buf.staging[cid][0], [row, cid * c.HALF])
    stores_done(work.begin)


@triton.jit
def write_summed(desc_dk, desc_dv, desc_acc, work, buf, bar, c: tl.constexpr):
    """SUMMED: all tiles of a CTA touch the same blocks of Q; the first stores their dQ, the others add to it."""
    AHEAD: tl.constexpr = 1 if c.STAGES == 2 else 0
    n_use = 0
    for place in tl.range(work.begin, work.end, num_stages=1):
        record = work.tiles + place * FIELDS
        steps, m_first, firsts = tl.load(record + STEPS), tl.load(record + BLOCK), tl.load(record + FIRST_FROM)
        if c.ALL_SEEN:
            tl.assume(steps > 0)
        head, acc_block, acc_group = tl.load(record + HEAD), tl.load(record + ACC_BLOCK), tl.load(record + ACC_GROUP)
        adds = tl.load(record + AFTER_ITSELF) != 0
        if AHEAD:
            _make_ready(n_use, 0, False, True, desc_acc, buf, bar, c)
        for g in tl.range(0, c.GROUP, num_stages=1):
            for i in tl.range(0, steps, num_stages=1):
                _make_ready(n_use + AHEAD, 0, False, False, desc_acc, buf, bar, c)
                row = (acc_block + g * acc_group + m_first + i) * ROWS
                stage = n_use % c.STAGES
                for cid in tl.static_range(2):
                    tlx.barrier_wait(bar.full[2 * stage + cid], (n_use // c.STAGES) & 1)
                    if cid == 0 and adds & (g + i == 0):  # so that the order of the sum is fixed
                        dq_stores_done(n_use, c.BLOCKS)
                    _send_partial(desc_acc, buf.staging[cid][c.BLOCKS * stage], row, i >= firsts, cid, c)
                n_use += 1
        k_start, k_len, n0 = tl.load(record + K_START), tl.load(record + K_LEN), tl.load(record + K_ROW)
        if c.LATE:
            _make_ready(n_use + AHEAD, 0, False, False, desc_acc, buf, bar, c)
            _store_kv(desc_dv, n_use, k_start, k_len, n0, head * c.D, buf, bar, c)
            n_use += 1
        if not AHEAD:
            _make_ready(n_use, 0, False, False, desc_acc, buf, bar, c)
        _store_kv(desc_dk, n_use, k_start, k_len, n0, head * c.D, buf, bar, c)
        n_use += 1
    stores_done(n_use)


@triton.jit
def _count(uncounted, work):
    """TURNS: counts a tile, all of whose dQ is complete: twice its counter, and 1 if it is the last in turn; or < 0."""
    if uncounted >= 0:
        if uncounted % 2 == 1:  # for the next launch
            tl.store(work.counters + uncounted // 2, 0)
        else:
            count_tile(work.counters + uncounted // 2)


@triton.jit
def _settle(record, uncounted, n_use, n_met, partials, role, work, bar, peer, c: tl.constexpr):
    """Before a tile's first dQ goes or a partial one comes, and no earlier, as it waits for memory.

    What earlier tiles wrote to the same partial dQ is complete: this CTA's, its pair's, or those that come first in
    turn. Returns ``n_met``, meetings so far.
    """
    if c.PAIR:
        if (role != 0) & (partials > 0):
            meet(bar.met, n_met, peer)
            n_met += 1
    elif (tl.load(record + AFTER_ITSELF) != 0) | (uncounted >= 0):
        dq_stores_done(n_use, c.BLOCKS)
    if c.TURNS:
        _count(uncounted, work)
        wanted = tl.load(record + WANTED)
        if wanted > 0:
            await_adds(work.counters + tl.load(record + COUNTER), wanted)
    return n_met


@triton.jit
def write(desc_dq, desc_dk, desc_dv, desc_acc, work, buf, bar, peer, c: tl.constexpr):
    """The writer's walk over its CTA's tiles; ``peer``: the rank of a pair's other CTA."""
    AHEAD: tl.constexpr = 1 if c.STAGES == 2 else 0
    n_use = 0
    n_give = 0
    n_take = 0
    n_taken = 0
    n_met = 0
    uncounted = -2  # the last tile that takes turns, see `_count`
    for place in tl.range(work.begin, work.end, num_stages=1):
        record = work.tiles + place * FIELDS
        q_start, q_len = tl.load(record + Q_START), tl.load(record + Q_LEN)
        steps, m_first = tl.load(record + STEPS), tl.load(record + BLOCK)
        if c.ALL_SEEN:
            tl.assume(steps > 0)
        partials, firsts, lasts = tl.load(record + PARTIALS), tl.load(record + FIRST_FROM), tl.load(record + LASTS)
        head, acc_block, acc_group = tl.load(record + HEAD), tl.load(record + ACC_BLOCK), tl.load(record + ACC_GROUP)
        if c.COUNTED:
            counted = tl.load(record + TOUCHED) > 0
            storing, wanted = tl.load(record + STORES), tl.load(record + WANTED)
            counter0 = head * c.GROUP * work.num_blocks + tl.load(record + ROW_BLOCK) + m_first
            stored = -1  # the last step's counter
        back = walks_back(record, c)
        role = tl.load(record + ROLE) if c.PAIR else 0
        held = tl.load(record + HOLDS) if c.HOLD else 0
        settled = False
        k_start, k_len, n0 = tl.load(record + K_START), tl.load(record + K_LEN), tl.load(record + K_ROW)
        leaving = leaves(held, steps - 1, steps)
        g = 0
        i = -AHEAD  # the step of use `n_use`
        n_use -= AHEAD
        for _ in tl.range(0, c.GROUP * steps + AHEAD + c.LATE, num_stages=1):  # LATE: dV comes after the steps
            g_after = g
            i_after = i + 1
            if c.GROUP > 1:
                over = (i_after == steps) & (g + 1 < c.GROUP)
                g_after += over.to(tl.int32)
                i_after = tl.where(over, 0, i_after)
            g_next = g_after if AHEAD else g  # of the use to be given to the consumers: the next, or this one
            i_next = i_after if AHEAD else i
            j = block_of_step(tl.minimum(i_next, steps - 1), steps, back, role, c.SERPENTINE, c.PAIR)
            fetch = j < partials
            given = False
            if c.HOLD:  # the slots of a step that takes over are the consumers' already, dK's are those of dV
                fetch |= fetches_to_leave(held, i_next, steps)
                given = takes_over(held, i_next) | (leaving & (i == steps))
            fetch &= i_next < steps
            row = (acc_block + g_next * acc_group + m_first + j) * ROWS
            if (settled == 0) & (fetch | (i >= 0)):
                n_met = _settle(record, uncounted, n_use, n_met, partials, role, work, bar, peer, c)
                settled = True
            if c.PAIR and (i > 0) & gives(i - 1, steps, role):
                tlx.barrier_wait(bar.taken[0], n_taken & 1)
                n_taken += 1
            if c.PAIR and takes(i_next, steps, role):
                make_ready_to_take(bar.ready, bar.may_give, n_use + AHEAD, n_take, peer, c.STAGES)
                n_take += 1
            elif given == 0:
                _make_ready(n_use + AHEAD, row, fetch, AHEAD and i < 0 and not c.PAIR, desc_acc, buf, bar, c)
            if c.COUNTED:
                if stored >= 0:
                    count_add(work.counters + stored)
                stored = -1
            if i >= 0:
                if c.LATE and i == steps:
                    _store_kv(desc_dv, n_use, k_start, k_len, n0, head * c.D, buf, bar, c)
                    if c.HOLD:
                        n_use += leaving.to(tl.int32)
                elif leaves(held, i, steps) == 0:
                    j = block_of_step(i, steps, back, role, c.SERPENTINE, c.PAIR)
                    m = m_first + j
                    row = (acc_block + g * acc_group + m) * ROWS
                    column = (head * c.GROUP + g) * c.D
                    first = j >= firsts
                    if c.HOLD:
                        first |= takes_over(held, i)
                    if c.COUNTED:
                        stored = tl.where(counted, counter0 + g * work.num_blocks + i, -1)
                        first |= i < storing
                        if counted & (first == 0):
                            await_adds(work.counters + stored, wanted)
                    stage = n_use % c.STAGES
                    for cid in tl.static_range(2):
                        tlx.barrier_wait(bar.full[2 * stage + cid], (n_use // c.STAGES) & 1)
                        if c.PAIR and gives(i, steps, role):
                            if cid == 1:
                                give(buf.staging, bar.ready, bar.may_give, stage, n_give, i, steps, role, peer)
                                n_give += 1
                        elif j < lasts:
                            store_rows(desc_dq, buf.final[cid][2 * c.BLOCKS * stage], q_start, q_len, m * ROWS,
                                       column + cid * c.HALF, c.ONCE)
                        else:
                            _send_partial(desc_acc, buf.staging[cid][c.BLOCKS * stage], row, first, cid, c)
            n_use += 1
            g = g_after
            i = i_after
        if not c.LATE and settled == 0:  # a tile without steps
            n_met = _settle(record, uncounted, n_use, n_met, partials, role, work, bar, peer, c)
        if not AHEAD or (c.HOLD and leaving):
            _make_ready(n_use, 0, False, False, desc_acc, buf, bar, c)
        if c.COUNTED and not c.LATE and stored >= 0:
            count_add(work.counters + stored)
        _store_kv(desc_dk, n_use, k_start, k_len, n0, head * c.D, buf, bar, c)
        n_use += 1
        if c.PAIR and (role == 0) & (steps % 2 == 1):
            _make_ready(n_use, 0, False, False, desc_acc, buf, bar, c)
            for cid in tl.static_range(2):
                tlx.barrier_wait(bar.full[n_use % c.STAGES * 2 + cid], (n_use // c.STAGES) & 1)
            n_use += 1
        if c.TURNS:
            uncounted = tl.load(record + COUNTER) * 2 + (n0 == 128 * c.BLOCKS).to(tl.int32)
    stores_done(n_use)
    if c.TURNS:
        _count(uncounted, work)
