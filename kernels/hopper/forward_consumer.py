"""The forward's consumer groups: 64 query rows each, S = Q K^T, online softmax, O += P V, O and LSE stored.

The order within a tile: S(i) is issued, then O += P(i-1) V(i-1); S(i) is awaited and its softmax runs while the
latter is in flight. What a tile needs beside its matmuls (the next item, the ranges, LSE) stands behind the issue of
its first and its last one. A slot is released after a wait for the wgmma that read it, never merely after a load from
it.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.ragged import store_rows
from kernels.hopper.softmax import first_softmax, log2, mask_scores, next_softmax, reciprocal
from kernels.hopper.stale_softmax import first_step, hopeful_step, parts_of, scaled, settle, spread
from kernels.hopper.work import (
    ITEM_SLOTS,
    dealt_item,
    first_item,
    group_place,
    kv_range,
    own_range,
    place,
    read_run,
    receive_item,
    record_of,
)

ROWS = tl.constexpr(64)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _turn_begins(CID: tl.constexpr, PINGPONG: tl.constexpr):
    if PINGPONG:
        tlx.named_barrier_wait(9 + CID, 256)


@triton.jit
def _turn_ends(CID: tl.constexpr, PINGPONG: tl.constexpr):
    if PINGPONG:
        tlx.named_barrier_arrive(10 - CID, 256)


@triton.jit
def _first(s, q_empty, k_ring, count, scale, row, column, shift, k_len, work, RELEASE_Q: tl.constexpr,
           STREAM: tl.constexpr, c: tl.constexpr):
    """What follows a tile's first S. Returns ``(p, m, norm)``, p in 16 bits."""
    if RELEASE_Q:
        tlx.barrier_arrive(q_empty)
    tlx.barrier_arrive(k_ring.empty[STREAM * c.NUM_K + count % c.NUM_K])
    s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
    if c.STALE:
        p, m, norm = first_step(s, scale, c.DTYPE)
    else:
        p, m, norm = first_softmax(s, scale)
        p = p.to(c.DTYPE)
    return p, m, norm


@triton.jit
def _softmax(s, m, norm, scale, row, column, shift, k_len, work, cut, c: tl.constexpr):
    """`next_softmax` of a block, behind the mask where ``cut``: ``(p, m, norm, alpha)`` with p in 16 bits.

    The whole softmax stands in the branches, not the mask alone: ptxas moves exponentials below a wait that follows
    them, but not out of a branch.
    """
    if not c.PEEL:
        s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
        p, m, norm, alpha = next_softmax(s, m, norm, scale, True)
    elif c.HAS_LEFT or c.HAS_RIGHT:
        if cut:
            s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
            p, m, norm, alpha = next_softmax(s, m, norm, scale, True)
            p = p.to(c.DTYPE)
        else:
            p, m, norm, alpha = next_softmax(s, m, norm, scale, False)
            p = p.to(c.DTYPE)
    else:
        p, m, norm, alpha = next_softmax(s, m, norm, scale, False)
    return p.to(c.DTYPE), m, norm, alpha


@triton.jit
def _hopeful(s, m, scale, row, column, shift, k_len, work, cut, c: tl.constexpr):
    """`hopeful_step` of a block, behind the mask where ``cut``: ``(s, p, sums)``."""
    if not c.PEEL:
        s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
    elif c.HAS_LEFT or c.HAS_RIGHT:  # noqa: SIM102 (resolved at compile time)
        if cut:
            s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
    p, sums = hopeful_step(s, m, scale)
    return s, p, sums


@triton.jit
def _step(q, k_ring, v_ring, count, p, m, norm, acc, scale, row, column, shift, k_len, work, cut, STREAM: tl.constexpr,
          CID: tl.constexpr, c: tl.constexpr):
    """One more block: the ring's ``count``-th K and the V of the block before it. ``cut``: it needs the mask."""
    k_slot = STREAM * c.NUM_K + count % c.NUM_K
    v_slot = STREAM * c.NUM_V + (count - 1) % c.NUM_V
    tlx.barrier_wait(k_ring.full[k_slot], (count // c.NUM_K) & 1)
    _turn_begins(CID, c.PINGPONG)
    s = tlx.async_dot(q, tlx.local_trans(k_ring.smem[k_slot]))  # [64, BLOCK_N]
    tlx.barrier_wait(v_ring.full[v_slot], ((count - 1) // c.NUM_V) & 1)
    acc = tlx.async_dot(p, v_ring.smem[v_slot], acc)  # [64, D]
    _turn_ends(CID, c.PINGPONG)
    s = tlx.async_dot_wait(1, s)
    tlx.barrier_arrive(k_ring.empty[k_slot])
    if c.STALE:
        s, hoped, sums = _hopeful(s, m, scale, row, column, shift, k_len, work, cut, c)
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(v_ring.empty[v_slot])
        p, m, norm, acc = settle(s, hoped, m, norm, sums, acc, scale, c.DTYPE)
    else:
        p, m, norm, alpha = _softmax(s, m, norm, scale, row, column, shift, k_len, work, cut, c)
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(v_ring.empty[v_slot])
        acc = acc * alpha[:, None]
    return p, m, norm, acc


@triton.jit
def _steps(q, k_ring, v_ring, count, high, n, head, tail, p, m, norm, acc, scale, row, columns, shift, k_len,
           work, STREAM: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """Blocks ``1 ... n - 1`` of a tile; its first K is the ring's ``count``-th. In two loops, ptxas serialises."""
    for i in tl.range(1, n, num_stages=1):
        column = (high - 1 - i) * c.BLOCK_N + columns
        p, m, norm, acc = _step(q, k_ring, v_ring, count + i, p, m, norm, acc, scale, row, column, shift, k_len, work,
                             (i < head) | (i >= n - tail), STREAM, CID, c)
    return p, m, norm, acc


@triton.jit
def _pass(k_ring, v_ring, count, n, STREAM: tl.constexpr, c: tl.constexpr):
    """Release ``n`` blocks from the rings' ``count``-th on unread: other groups of the worker need them."""
    for i in tl.range(count, count + n, num_stages=1):
        k_slot = STREAM * c.NUM_K + i % c.NUM_K
        v_slot = STREAM * c.NUM_V + i % c.NUM_V
        tlx.barrier_wait(k_ring.full[k_slot], (i // c.NUM_K) & 1)  # not before: the phase must be this block's
        tlx.barrier_arrive(k_ring.empty[k_slot])
        tlx.barrier_wait(v_ring.full[v_slot], (i // c.NUM_V) & 1)
        tlx.barrier_arrive(v_ring.empty[v_slot])


@triton.jit
def _store_lse(m, norm, lse, lse_stride, head_q, o_start, q_len, row, c: tl.constexpr):
    """Stores LSE of 64 rows; returns what O is to be multiplied by, ``[64, 1]`` or as parts of O."""
    if c.STALE:
        norm = tl.sum(norm, 1)
        m = tl.max(m, 1)
    factor = tl.where(norm == 0.0, 0.0, reciprocal(norm))
    rows = tl.arange(0, ROWS)
    at = lse + head_q.to(tl.int64) * lse_stride + o_start + row
    tl.store(at + rows, (m + log2(norm)) * LN2, mask=row + rows < q_len)
    return spread(factor) if c.STALE else factor[:, None]


@triton.jit
def _store(acc, factor, staging, desc_o, head_q, o_start, q_len, row, c: tl.constexpr):
    """Normalise and store 64 rows of O. The TMA store is left in flight."""
    acc = scaled(parts_of(acc), factor) if c.STALE else acc * factor
    tlx.local_store(staging, acc.to(c.DTYPE))
    tlx.fence("async_shared")
    store_rows(desc_o, staging, o_start, q_len, row, head_q * c.D)


@triton.jit
def _next_item(items, turn, worker, workers, work, STREAM: tl.constexpr, c: tl.constexpr):
    """The item after this turn's: ``(item, q_len, o_start, k_len, row, first, count)``, see `read_run`."""
    if c.DYNAMIC:
        item = receive_item(items, turn, STREAM * ITEM_SLOTS)
    else:
        item = dealt_item(work, turn + 1, worker, workers, c)
    record = record_of(work, item)
    row, first, count = read_run(record, c.SECTIONS)
    return item, tl.load(record + 1), tl.load(record + 3), tl.load(record + 5), row, first, count


@triton.jit
def consume(desc_o, lse, lse_stride, scale, q_ring, k_ring, v_ring, items, o_smem, work, STREAM: tl.constexpr,
            CID: tl.constexpr, c: tl.constexpr):
    """One group's walk over its worker's items, one tile after the other."""
    BLOCK_M: tl.constexpr = ROWS * c.GROUPS
    V0: tl.constexpr = STREAM * c.NUM_V
    worker = tl.program_id(0) * c.STREAMS + STREAM
    workers = tl.num_programs(0) * c.STREAMS
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, c.BLOCK_N)
    turn = 0
    n_kv = 0
    stored = -1  # the Q slot in which an O waits for its store (O_IN_Q only)
    if c.PINGPONG and CID == 1:
        tlx.named_barrier_arrive(9, 256)
    item = first_item(work, worker, workers, c)
    record = record_of(work, item)
    q_len, o_start, k_len = tl.load(record + 1), tl.load(record + 3), tl.load(record + 5)
    run_row, run_first, run_count = read_run(record, c.SECTIONS)
    while item < work.num_items:
        q_slot = STREAM * c.NUM_Q + turn % c.NUM_Q
        if not c.APART:
            tlx.barrier_wait(q_ring.full[q_slot], (turn // c.NUM_Q) & 1)
            q_smem = q_ring.smem[q_slot * c.GROUPS + CID]
            q = tlx.local_load(q_smem) if c.Q_REG else q_smem
            first = n_kv
            k_slot = STREAM * c.NUM_K + first % c.NUM_K
            tlx.barrier_wait(k_ring.full[k_slot], (first // c.NUM_K) & 1)
            _turn_begins(CID, c.PINGPONG)
            s = tlx.async_dot(q, tlx.local_trans(k_ring.smem[k_slot]))  # [64, BLOCK_N]
            _turn_ends(CID, c.PINGPONG)
            item2, q_len2, o_start2, k_len2, row2, first2, count2 = _next_item(items, turn, worker, workers, work,
                                                                               STREAM, c)
        m_row, head_q = place(work, item, (run_row, run_first, run_count), c.SECTIONS)
        shift = k_len - q_len
        low, n, head, tail = kv_range(q_len, m_row, k_len, work, BLOCK_M, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT)
        before = 0
        after = 0
        row = m_row + CID * ROWS
        if c.APART:
            row = m_row + group_place(CID, turn, c.GROUPS) * ROWS
            if c.HAS_LEFT or c.HAS_RIGHT:
                before, after, head, tail = own_range(q_len, row, k_len, work, low, n, c)
        if not c.APART or row < q_len:
            high = low + n - before
            own = n - before - after
            if c.APART:
                if c.HAS_LEFT or c.HAS_RIGHT:
                    _pass(k_ring, v_ring, n_kv, before, STREAM, c)
                tlx.barrier_wait(q_ring.full[q_slot], (turn // c.NUM_Q) & 1)
                q_smem = q_ring.smem[q_slot * c.GROUPS + CID]
                q = tlx.local_load(q_smem) if c.Q_REG else q_smem
                first = n_kv + before
                k_slot = STREAM * c.NUM_K + first % c.NUM_K
                tlx.barrier_wait(k_ring.full[k_slot], (first // c.NUM_K) & 1)
                _turn_begins(CID, c.PINGPONG)
                s = tlx.async_dot(q, tlx.local_trans(k_ring.smem[k_slot]))  # [64, BLOCK_N]
                _turn_ends(CID, c.PINGPONG)
            s = tlx.async_dot_wait(0, s)
            p, m, norm = _first(s, q_ring.empty[q_slot], k_ring, first, scale, row + rows,
                                (high - 1) * c.BLOCK_N + columns, shift, k_len, work,
                                c.Q_REG and c.PREFETCH and not c.O_IN_Q, STREAM, c)
            if c.O_IN_V:  # noqa: SIM102 (the outer condition is resolved at compile time)
                if turn > 0:  # the O of the tile before has left the V slot that it was staged in
                    tlx.async_descriptor_store_wait(0)
                    tlx.barrier_arrive(v_ring.empty[V0 + (n_kv - 1) % c.NUM_V])
            if c.O_IN_Q:  # noqa: SIM102
                if stored >= 0:  # the O of an earlier tile has left the Q slot that it was staged in
                    tlx.async_descriptor_store_wait(0)
                    tlx.barrier_arrive(q_ring.empty[stored])
            acc = tl.zeros([ROWS, c.D], tl.float32)
            p, m, norm, acc = _steps(q, k_ring, v_ring, first, high, own, head, tail, p, m, norm, acc,
                                     scale, row + rows, columns, shift, k_len, work, STREAM, CID, c)
            if not c.Q_REG and c.PREFETCH and not c.O_IN_Q:
                tlx.barrier_arrive(q_ring.empty[q_slot])
            if c.APART:
                item2, q_len2, o_start2, k_len2, row2, first2, count2 = _next_item(items, turn, worker, workers,
                                                                                   work, STREAM, c)
            last = first + own - 1
            v_slot = V0 + last % c.NUM_V
            tlx.barrier_wait(v_ring.full[v_slot], (last // c.NUM_V) & 1)
            acc = tlx.async_dot(p, v_ring.smem[v_slot], acc)  # [64, D]
            if c.O_IN_V:
                staging = v_ring.smem[v_slot]  # [BLOCK_N, D] with BLOCK_N = 64
            elif c.O_IN_Q:
                staging = q_smem
            else:
                staging = o_smem[STREAM * c.GROUPS + CID]
                tlx.async_descriptor_store_wait(0)
            factor = _store_lse(m, norm, lse, lse_stride, head_q, o_start, q_len, row, c)
            acc = tlx.async_dot_wait(0, acc)
            if not c.O_IN_V:
                tlx.barrier_arrive(v_ring.empty[v_slot])
            _store(acc, factor, staging, desc_o, head_q, o_start, q_len, row, c)
            stored = q_slot
            if c.APART and c.HAS_LEFT:
                _pass(k_ring, v_ring, first + own, after, STREAM, c)
        else:
            item2, q_len2, o_start2, k_len2, row2, first2, count2 = _next_item(items, turn, worker, workers,
                                                                                   work, STREAM, c)
            if c.O_IN_Q:
                if stored >= 0:
                    tlx.async_descriptor_store_wait(0)
                    tlx.barrier_arrive(q_ring.empty[stored])
                stored = -1
            tlx.barrier_wait(q_ring.full[q_slot], (turn // c.NUM_Q) & 1)
            if c.O_IN_Q or c.PREFETCH:
                tlx.barrier_arrive(q_ring.empty[q_slot])
            _pass(k_ring, v_ring, n_kv, n, STREAM, c)
        n_kv += n
        if not c.PREFETCH and not c.O_IN_Q:
            tlx.barrier_arrive(q_ring.empty[q_slot])
        if c.DYNAMIC:
            tlx.barrier_arrive(items.empty[STREAM * ITEM_SLOTS + turn % ITEM_SLOTS])
        item = item2
        q_len, o_start, k_len = q_len2, o_start2, k_len2
        run_row, run_first, run_count = row2, first2, count2
        turn += 1
    tlx.async_descriptor_store_wait(0)
