"""The forward's consumer groups: 64 query rows each, S = Q K^T, online softmax, O += P V, O and LSE stored.

The order within a tile: S(i) is issued, then O += P(i-1) V(i-1); S(i) is awaited and its softmax runs while the
latter is in flight. A slot is released after a wait for the wgmma that read it, never merely after a load from it.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.ragged import store_rows
from kernels.hopper.softmax import first_softmax, mask_scores, next_softmax
from kernels.hopper.work import ITEM_SLOTS, dealt_item, kv_range, receive_item, record_of

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
def _release(barrier, last, RESIDENT: tl.constexpr):
    """Give a slot back; with RESIDENT only in the last pass over the ring."""
    if RESIDENT:
        tlx.barrier_arrive(barrier, pred=last)
    else:
        tlx.barrier_arrive(barrier)


@triton.jit
def _first(q, q_empty, k_ring, count, scale, last, row, column, shift, k_len, work, RELEASE_Q: tl.constexpr,
           STREAM: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """A tile's first block, whose K is the ring's ``count``-th. Returns ``(p, m, l)``, p in fp32."""
    slot = STREAM * c.NUM_K + count % c.NUM_K
    tlx.barrier_wait(k_ring.full[slot], (count // c.NUM_K) & 1)
    _turn_begins(CID, c.PINGPONG)
    s = tlx.async_dot(q, tlx.local_trans(k_ring.smem[slot]))  # [64, BLOCK_N]
    _turn_ends(CID, c.PINGPONG)
    s = tlx.async_dot_wait(0, s)
    if RELEASE_Q:
        tlx.barrier_arrive(q_empty)
    _release(k_ring.empty[slot], last, c.RESIDENT)
    s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
    return first_softmax(s, scale)


@triton.jit
def _step(q, k_ring, v_ring, count, p, m, l, acc, scale, last, row, column, shift, k_len, work, cut,
          STREAM: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """One more block: the ring's ``count``-th K, and the V of the block before it. ``cut``: the block needs the mask."""
    k_slot = STREAM * c.NUM_K + count % c.NUM_K
    v_slot = STREAM * c.NUM_V + (count - 1) % c.NUM_V
    tlx.barrier_wait(k_ring.full[k_slot], (count // c.NUM_K) & 1)
    _turn_begins(CID, c.PINGPONG)
    s = tlx.async_dot(q, tlx.local_trans(k_ring.smem[k_slot]))  # [64, BLOCK_N]
    tlx.barrier_wait(v_ring.full[v_slot], ((count - 1) // c.NUM_V) & 1)
    acc = tlx.async_dot(p.to(c.DTYPE), v_ring.smem[v_slot], acc)  # [64, D]
    _turn_ends(CID, c.PINGPONG)
    s = tlx.async_dot_wait(1, s)
    _release(k_ring.empty[k_slot], last, c.RESIDENT)
    if c.HAS_LEFT or c.HAS_RIGHT or not c.PEEL:
        if cut:
            s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
    p, m, l, alpha = next_softmax(s, m, l, scale, c.HAS_LEFT or c.HAS_RIGHT or not c.PEEL)
    p = p.to(c.P_DTYPE)
    acc = tlx.async_dot_wait(0, acc)
    _release(v_ring.empty[v_slot], last, c.RESIDENT)
    acc = acc * alpha[:, None]
    return p, m, l, acc


@triton.jit
def _steps(q, k_ring, v_ring, count, low, n, head, tail, p, m, l, acc, scale, last, row, columns, shift, k_len, work,
           STREAM: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """Blocks 1 ... n - 1 of a tile whose first K is the ring's ``count``-th. One loop: ptxas serialises wgmma over two."""
    for i in tl.range(1, n, num_stages=1):
        column = (low + n - 1 - i) * c.BLOCK_N + columns
        p, m, l, acc = _step(q, k_ring, v_ring, count + i, p, m, l, acc, scale, last, row, column, shift, k_len, work,
                             (i < head) | (i >= n - tail), STREAM, CID, c)
    return p, m, l, acc


@triton.jit
def _store(acc, m, l, staging, desc_o, lse, lse_stride, head_q, o_start, q_len, row, c: tl.constexpr):
    """Normalise and store 64 rows of O and LSE. The TMA store is left in flight."""
    acc = acc * tl.where(l == 0.0, 0.0, 1.0 / l)[:, None]
    tlx.local_store(staging, acc.to(c.DTYPE))
    tlx.fence("async_shared")
    store_rows(desc_o, staging, o_start, q_len, row, head_q * c.D)
    rows = tl.arange(0, ROWS)
    at = lse + head_q.to(tl.int64) * lse_stride + o_start + row
    tl.store(at + rows, (m + tl.math.log2(l)) * LN2, mask=row + rows < q_len)


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
    n_q = 0
    n_kv = 0
    if c.PINGPONG:
        if CID == 1:
            tlx.named_barrier_arrive(9, 256)
    item = worker
    record = record_of(work, item)
    q_len, m_row = tl.load(record + 1), tl.load(record + 2)
    k_len, reps = tl.load(record + 5), tl.load(record + 6)
    while item < work.num_items:
        if c.DYNAMIC:
            item2 = receive_item(items, turn, STREAM * ITEM_SLOTS)
        else:
            item2 = dealt_item(turn + 1, worker, workers, c.ZIGZAG)
        # only what the next tile needs at once is read ahead; its other fields will be in L1
        record2 = record_of(work, item2)
        q_len2, m_row2 = tl.load(record2 + 1), tl.load(record2 + 2)
        k_len2, reps2 = tl.load(record2 + 5), tl.load(record2 + 6)
        shift = k_len - q_len
        low, n, head, tail = kv_range(q_len, m_row, k_len, work, BLOCK_M, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT, c.PEEL)
        if not c.RESIDENT:
            reps = 1
        for r in tl.range(0, reps, num_stages=1):
            last = r == reps - 1
            q_slot = STREAM * c.NUM_Q + n_q % c.NUM_Q
            row = m_row + (r * c.GROUPS + CID) * ROWS
            tlx.barrier_wait(q_ring.full[q_slot], (n_q // c.NUM_Q) & 1)
            active = True
            if c.SKIP:
                active = row < q_len
            if active:
                if c.Q_REG:
                    q = tlx.local_load(q_ring.smem[q_slot * c.GROUPS + CID])
                else:
                    q = q_ring.smem[q_slot * c.GROUPS + CID]
                p, m, l = _first(q, q_ring.empty[q_slot], k_ring, n_kv, scale, last, row + rows,
                                 (low + n - 1) * c.BLOCK_N + columns, shift, k_len, work, c.Q_REG and c.PREFETCH,
                                 STREAM, CID, c)
                if c.O_IN_V:
                    if turn > 0:  # the O of the tile before has left the V slot that it was staged in
                        tlx.async_descriptor_store_wait(0)
                        tlx.barrier_arrive(v_ring.empty[V0 + (n_kv - 1) % c.NUM_V])
                acc = tl.zeros([ROWS, c.D], tl.float32)
                p, m, l, acc = _steps(q, k_ring, v_ring, n_kv, low, n, head, tail, p.to(c.P_DTYPE), m, l, acc, scale,
                                      last, row + rows, columns, shift, k_len, work, STREAM, CID, c)
                if not c.Q_REG:
                    if c.PREFETCH:
                        tlx.barrier_arrive(q_ring.empty[q_slot])
                o_start = tl.load(record + 3)
                count = n_kv + n - 1
                v_slot = V0 + count % c.NUM_V
                tlx.barrier_wait(v_ring.full[v_slot], (count // c.NUM_V) & 1)
                acc = tlx.async_dot(p.to(c.DTYPE), v_ring.smem[v_slot], acc)  # [64, D]
                acc = tlx.async_dot_wait(0, acc)
                if c.O_IN_V:
                    staging = v_ring.smem[v_slot]  # [BLOCK_N, D] with BLOCK_N = 64
                else:
                    _release(v_ring.empty[v_slot], last, c.RESIDENT)
                    staging = o_smem[STREAM * c.GROUPS + CID]
                    tlx.async_descriptor_store_wait(0)
                _store(acc, m, l, staging, desc_o, lse, lse_stride, item % work.num_heads, o_start, q_len, row, c)
                if not c.PREFETCH:
                    tlx.barrier_arrive(q_ring.empty[q_slot])
            else:
                # no row of this group's is inside the sequence: only keep the rings turning
                tlx.barrier_arrive(q_ring.empty[q_slot])
                for i in tl.range(n_kv, n_kv + n, num_stages=1):
                    _turn_begins(CID, c.PINGPONG)
                    _turn_ends(CID, c.PINGPONG)
                    if last:
                        k_slot = STREAM * c.NUM_K + i % c.NUM_K
                        v_slot = V0 + i % c.NUM_V
                        tlx.barrier_wait(k_ring.full[k_slot], (i // c.NUM_K) & 1)
                        tlx.barrier_arrive(k_ring.empty[k_slot])
                        tlx.barrier_wait(v_ring.full[v_slot], (i // c.NUM_V) & 1)
                        tlx.barrier_arrive(v_ring.empty[v_slot])
            n_q += 1
        n_kv += n
        if c.DYNAMIC:
            tlx.barrier_arrive(items.empty[STREAM * ITEM_SLOTS + turn % ITEM_SLOTS])
        item = item2
        record = record2
        q_len, m_row, k_len, reps = q_len2, m_row2, k_len2, reps2
        turn += 1
    tlx.async_descriptor_store_wait(0)


@triton.jit
def consume_overlapped(desc_o, lse, lse_stride, scale, q_ring, k_ring, v_ring, items, o_smem, work,
                       STREAM: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """`consume`, with the next tile's first S issued before this tile's last O += P V and its softmax beside that."""
    BLOCK_M: tl.constexpr = ROWS * c.GROUPS
    Q0: tl.constexpr = STREAM * c.NUM_Q
    worker = tl.program_id(0) * c.STREAMS + STREAM
    workers = tl.num_programs(0) * c.STREAMS
    rows = tl.arange(0, ROWS) + CID * ROWS
    columns = tl.arange(0, c.BLOCK_N)
    turn = 0
    n_kv = 0
    if c.PINGPONG:
        if CID == 1:
            tlx.named_barrier_arrive(9, 256)
    item = worker
    if item < work.num_items:
        record = record_of(work, item)
        q_len, m_row, k_len = tl.load(record + 1), tl.load(record + 2), tl.load(record + 5)
        low, n, head, tail = kv_range(q_len, m_row, k_len, work, BLOCK_M, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT, c.PEEL)
        tlx.barrier_wait(q_ring.full[Q0], 0)
        p, m, l = _first(q_ring.smem[Q0 * c.GROUPS + CID], q_ring.empty[Q0], k_ring, 0, scale, True, m_row + rows,
                         (low + n - 1) * c.BLOCK_N + columns, k_len - q_len, k_len, work, False, STREAM, CID, c)
        while item < work.num_items:
            if c.DYNAMIC:
                item2 = receive_item(items, turn, STREAM * ITEM_SLOTS)
            else:
                item2 = dealt_item(turn + 1, worker, workers, c.ZIGZAG)
            record2 = record_of(work, item2)
            q_len2, m_row2, k_len2 = tl.load(record2 + 1), tl.load(record2 + 2), tl.load(record2 + 5)
            q_slot = Q0 + turn % c.NUM_Q
            if c.Q_REG:
                q = tlx.local_load(q_ring.smem[q_slot * c.GROUPS + CID])
            else:
                q = q_ring.smem[q_slot * c.GROUPS + CID]
            acc = tl.zeros([ROWS, c.D], tl.float32)
            # p crosses tiles in fp32: carried in 16 bits, the compiler gives it two layouts
            pb, mb, lb, acc = _steps(q, k_ring, v_ring, n_kv, low, n, head, tail, p.to(c.P_DTYPE), m, l, acc, scale,
                                     True, m_row + rows, columns, k_len - q_len, k_len, work, STREAM, CID, c)
            tlx.barrier_arrive(q_ring.empty[q_slot])
            n_kv += n
            low, n, head, tail = kv_range(q_len2, m_row2, k_len2, work, BLOCK_M, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT,
                                          c.PEEL)
            o_start = tl.load(record + 3)
            v_slot = STREAM * c.NUM_V + (n_kv - 1) % c.NUM_V
            v_phase = ((n_kv - 1) // c.NUM_V) & 1
            if item2 < work.num_items:
                q_slot2 = Q0 + (turn + 1) % c.NUM_Q
                k_slot = STREAM * c.NUM_K + n_kv % c.NUM_K
                tlx.barrier_wait(q_ring.full[q_slot2], ((turn + 1) // c.NUM_Q) & 1)
                tlx.barrier_wait(k_ring.full[k_slot], (n_kv // c.NUM_K) & 1)
                _turn_begins(CID, c.PINGPONG)
                s = tlx.async_dot(q_ring.smem[q_slot2 * c.GROUPS + CID], tlx.local_trans(k_ring.smem[k_slot]))
                tlx.barrier_wait(v_ring.full[v_slot], v_phase)
                acc = tlx.async_dot(pb.to(c.DTYPE), v_ring.smem[v_slot], acc)  # [64, D]
                _turn_ends(CID, c.PINGPONG)
                s = tlx.async_dot_wait(1, s)  # [64, BLOCK_N]
                tlx.barrier_arrive(k_ring.empty[k_slot])
                s = mask_scores(s, m_row2 + rows, (low + n - 1) * c.BLOCK_N + columns, k_len2 - q_len2, k_len2,
                                work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
                p, m, l = first_softmax(s, scale)
                acc = tlx.async_dot_wait(0, acc)
            else:
                tlx.barrier_wait(v_ring.full[v_slot], v_phase)
                acc = tlx.async_dot(pb.to(c.DTYPE), v_ring.smem[v_slot], acc)  # [64, D]
                acc = tlx.async_dot_wait(0, acc)
            tlx.barrier_arrive(v_ring.empty[v_slot])
            tlx.async_descriptor_store_wait(0)
            _store(acc, mb, lb, o_smem[STREAM * c.GROUPS + CID], desc_o, lse, lse_stride, item % work.num_heads,
                   o_start, q_len, m_row + CID * ROWS, c)
            if c.DYNAMIC:
                tlx.barrier_arrive(items.empty[STREAM * ITEM_SLOTS + turn % ITEM_SLOTS])
            item = item2
            record = record2
            q_len, m_row, k_len = q_len2, m_row2, k_len2
            turn += 1
    tlx.async_descriptor_store_wait(0)
