"""TLX jagged flash attention, backward, for Hopper (sm_90a), D = 128: the kernel whose scores are a step ahead.

Tiles, steps and the fate of a step's dQ are those of `kernels.hopper.backward_kernel`. The order within a step is not:
P^T of this step is there when it begins. Per step: dP^T = V dO^T, dS^T = P^T (dP^T - delta), dV += P^T dO; then the
next step's S^T = K Q^T, dK += dS^T Q and dQ = dS K are issued together, so that the next exponentials run while the
tensor cores do dK and dQ. The next step may be the next tile's first: K is there twice, and V once, as its last use in
a tile is early.

    role       warps         does
    (default)  4             with DELTA: lse and delta of each step, see `kernels.hopper.backward_delta`; else nothing
    consumer   4 x 2         all matmuls; stages dQ, dK and dV for the writer
    loader     1             TMA loads of K, V, Q, dO, and of each block's lse and delta
    writer     1             all stores; fetches partial dQ

    buffer        blocks         holds
    k             2 x 2          [64, D]; carries dV out
    v             2              [64, D]
    q, do         2, 2           [64, D]
    ds            2 x 2          [64, 64], dS^T of consumer 0 and 1
    staging       2              [64, 64] fp32: a partial dQ coming in, then dQ or (once a tile) dK going out

    barrier          completed by                          waited for by
    k_full, v_full   the TMA's bytes                       consumers, before S and dP of a tile's first step
    k_empty          writer: dV has left the slot          loader
    v_empty          both consumers, last dP done          loader
    q_full, do_full  the TMA's bytes                       consumers
    q_empty/do_empty both consumers, dK / dV done          loader
    ready            writer: the slot's last store has     consumers, before they use the slot
                     been read, or the partial is there
    row_full         default: lse and delta are there      consumers (with DELTA)
    row_empty        both consumers, delta read            default
    full             the consumer, having filled the slot  writer
    dv_full          the consumer: dV is in K's slot       writer
    named 8 to 11    one consumer: dS is written           the other, before dQ (two for each of two steps)
    named 12, 13     one consumer                          itself: the partial is read, before dq takes its place
    named 14, 15     one consumer: its last dQ is done     the other, before dV overwrites K
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_delta import row_statistics
from kernels.hopper.backward_parts import FIELDS, HALF, dq_stores_done, first_tile, masked, opaque, stores_done, tile_at
from kernels.hopper.ragged import load_rows, store_rows


@triton.jit
def _probability(s, lse, scale_log2):
    """P^T; at most 1, also for rows without a key, where exp2(-lse) may be inf.

    These rows need no mask then: K is zero there, so dQ gets none of their dS, and their dK and dV are not stored.
    """
    return tl.math.exp2(tl.minimum(s * scale_log2 - lse[None, :], 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _hand_over(dq, staging, final, ready, ready_phase, full, partial, last, scale, CID: tl.constexpr,
               DTYPE: tl.constexpr):
    """A consumer's part of dQ to the writer, as dq itself if no other tile adds to it, with the partial if any."""
    tlx.barrier_wait(ready, ready_phase)
    if partial:
        dq += tlx.local_load(staging)
        tlx.named_barrier_wait(12 + CID, 128)
    if last:
        tlx.local_store(final, (dq * scale).to(DTYPE))
    else:
        tlx.local_store(staging, dq)
    tlx.fence("async_shared")
    tlx.barrier_arrive(full)


@triton.jit(do_not_specialize=["num_blocks", "left", "right", "lse_stride"])
def jagged_backward_ahead(desc_q, desc_do, desc_k, desc_v, desc_dq, desc_dk, desc_dv, desc_acc, rows, tiles, bounds,
                          num_blocks, scale_log2, scale, left, right, out, dout, lse, lse_stride, row_stride,
                          GROUP: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HINTS: tl.constexpr,
                          DELTA: tl.constexpr, ROTATE: tl.constexpr, REGISTERS: tl.constexpr):
    """See the table at the top of the file; the arguments are those of `kernels.hopper.backward_kernel`,
    and for DELTA what ``rows`` is made of, by row strides ``lse_stride`` (of a head) and ``row_stride``.
    """
    DTYPE: tl.constexpr = tlx.dtype_of(desc_q)
    D: tl.constexpr = 128
    ONCE: tl.constexpr = "evict_first" if HINTS else ""  # L2's policy for what passes once, and for partial dQ
    AGAIN: tl.constexpr = "evict_last" if HINTS else ""
    k_smem = tlx.local_alloc((HALF, D), DTYPE, 4)
    v_smem = tlx.local_alloc((HALF, D), DTYPE, 2)
    q_smem = tlx.local_alloc((HALF, D), DTYPE, 2)
    do_smem = tlx.local_alloc((HALF, D), DTYPE, 2)
    ds_smem = tlx.local_alloc((HALF, HALF), DTYPE, 4)
    staging = tlx.local_alloc((HALF, HALF), tl.float32, 2)
    final = tlx.local_alloc((HALF, HALF), DTYPE, 4, reuse=staging)
    dk_out = tlx.local_alloc((HALF, D), DTYPE, 2, reuse=staging)
    SLOTS: tl.constexpr = 4 if DELTA else 2  # of the rows' statistics
    lse_smem = tlx.local_alloc((HALF,), tl.float32, SLOTS)
    delta_smem = tlx.local_alloc((HALF,), tl.float32, SLOTS)
    k_full = tlx.alloc_barriers(2)
    v_full = tlx.alloc_barriers(1)
    k_empty = tlx.alloc_barriers(2)
    v_empty = tlx.alloc_warp_barrier(1, num_warps=8)
    q_full = tlx.alloc_barriers(2)
    q_empty = tlx.alloc_warp_barrier(2, num_warps=8)
    do_full = tlx.alloc_barriers(2)
    do_empty = tlx.alloc_warp_barrier(2, num_warps=8)
    full = tlx.alloc_warp_barrier(2, num_warps=4)
    dv_full = tlx.alloc_warp_barrier(2, num_warps=4)
    ready = tlx.alloc_barriers(2)
    if DELTA:
        row_full = tlx.alloc_warp_barrier(SLOTS, num_warps=4)
        row_empty = tlx.alloc_warp_barrier(SLOTS, num_warps=8)
    pid = tl.program_id(0)
    begin = tl.load(bounds + pid)
    end = tl.load(bounds + pid + 1)
    start = first_tile(tiles, begin, end, pid, ROTATE)

    with tlx.async_tasks():
        with tlx.async_task("default"):
            if DELTA:
                row_statistics(out, dout, lse, lse_stride, row_stride, tiles, begin, end, start, lse_smem, delta_smem,
                               row_full, row_empty, GROUP, D, SLOTS, ROTATE)

        with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=2):
            cid: tl.constexpr = tlx.async_task_replica_id()
            n_step = 0
            n_kv = 0
            n_v = 0
            have = 0  # the tile's first P is there
            steps = tl.load(tiles + start * FIELDS + 6)
            p = tl.zeros([HALF, HALF], tl.float32)
            for place in tl.range(begin, end, num_stages=1):
                t = tile_at(place, begin, end, start, ROTATE)
                # early, as it costs a trip to L2; the record's other fields are in L1 after it
                after = tile_at(tl.minimum(place + 1, end - 1), begin, end, start, ROTATE)
                steps2 = tl.load(tiles + after * FIELDS + 6)
                cross = (place + 1 < end) & (steps2 > 0) & (steps > 0)
                record = tiles + t * FIELDS
                kb = n_kv % 2
                dk = tl.zeros([HALF, D], tl.float32)
                dv = tl.zeros([HALF, D], tl.float32)
                if have == 0:
                    tlx.barrier_wait(k_full[kb], (n_kv // 2) & 1)
                    if steps > 0:
                        qb = n_step % 2
                        tlx.barrier_wait(q_full[qb], (n_step // 2) & 1)
                        s = tlx.async_dot(k_smem[kb * 2 + cid], tlx.local_trans(q_smem[qb]))
                        at = n_step % SLOTS
                        if DELTA:
                            tlx.barrier_wait(row_full[at], (n_step // SLOTS) & 1)
                        s = tlx.async_dot_wait(0, s)
                        p = _probability(s, tlx.local_load(lse_smem[at]), scale_log2)
                        if HAS_LEFT or HAS_RIGHT:
                            cut = tl.load(record + 7) > 0
                            if HAS_LEFT:
                                cut |= tl.load(record + 8) <= 0
                            if cut:
                                p = masked(p, 0, record, left, right, cid, HALF, HAS_LEFT, HAS_RIGHT)
                if steps > 0:
                    tlx.barrier_wait(v_full[0], n_v & 1)
                partials, lasts = tl.load(record + 10), tl.load(record + 12)
                for g in tl.range(0, GROUP, num_stages=1):
                    for i in tl.range(0, steps, num_stages=1):
                        qb = n_step % 2
                        use = n_step + n_kv
                        over = i + 1 >= steps
                        ending = over & (g + 1 >= GROUP)
                        crossing = ending & cross
                        more = crossing | (ending == 0)
                        i2 = tl.where(over, 0, i + 1)
                        # where S of the next step comes from: if there is none, from this one's operands, for nothing
                        qb2 = tl.where(more, 1 - qb, qb)
                        k_slot = kb * 2
                        k_slot = opaque(k_slot)
                        k_slot2 = tl.where(crossing, 2 - kb * 2, kb * 2)
                        even = n_step % 2

                        tlx.barrier_wait(do_full[qb], (n_step // 2) & 1)
                        dp = tlx.async_dot(v_smem[cid], tlx.local_trans(do_smem[qb]))
                        dp = tlx.async_dot_wait(0, dp)
                        at = n_step % SLOTS
                        delta = tlx.local_load(delta_smem[at])
                        if ending:
                            tlx.barrier_arrive(v_empty[0])
                        ds = (p * (dp - delta[None, :])).to(DTYPE)
                        dv = tlx.async_dot(p.to(DTYPE), do_smem[qb], dv)
                        side = even * 2
                        side = opaque(side)
                        tlx.local_store(ds_smem[side + cid], ds)
                        tlx.fence("async_shared")
                        tlx.named_barrier_arrive(8 + side + cid, 256)
                        if more:
                            tlx.barrier_wait(q_full[qb2], ((n_step + 1) // 2) & 1)
                        if crossing:
                            tlx.barrier_wait(k_full[1 - kb], ((n_kv + 1) // 2) & 1)
                        s = tlx.async_dot(k_smem[k_slot2 + cid], tlx.local_trans(q_smem[qb2]))
                        tlx.named_barrier_wait(9 + side - cid, 256)
                        dv = tlx.async_dot_wait(1, dv)
                        tlx.barrier_arrive(do_empty[qb])
                        dk = tlx.async_dot(ds_smem[side + cid], q_smem[qb], dk)
                        dq = tlx.async_dot(tlx.local_trans(ds_smem[side]),
                                           tlx.local_slice(k_smem[k_slot], [0, cid * 64], [64, 64]))
                        dq = tlx.async_dot(tlx.local_trans(ds_smem[side + 1]),
                                           tlx.local_slice(k_smem[k_slot + 1], [0, cid * 64], [64, 64]), dq)
                        s = tlx.async_dot_wait(3, s)
                        at2 = tl.where(more, (n_step + 1) % SLOTS, at)
                        if DELTA:  # noqa: SIM102 (one is known to the compiler)
                            if more:
                                tlx.barrier_wait(row_full[at2], ((n_step + 1) // SLOTS) & 1)
                        p = _probability(s, tlx.local_load(lse_smem[at2]), scale_log2)
                        if HAS_LEFT or HAS_RIGHT:
                            record2 = tiles + tl.where(crossing, after, t) * FIELDS
                            cut = i2 < tl.load(record2 + 7)
                            if HAS_LEFT:
                                cut |= i2 >= tl.load(record2 + 8)
                            if cut:
                                p = masked(p, i2 * 64, record2, left, right, cid, HALF, HAS_LEFT, HAS_RIGHT)
                        if DELTA:
                            tlx.barrier_arrive(row_empty[at])
                        dk = tlx.async_dot_wait(2, dk)
                        tlx.barrier_arrive(q_empty[qb])
                        dq = tlx.async_dot_wait(0, dq)
                        _hand_over(dq, staging[cid], final[2 * cid], ready[cid], use & 1, full[cid], i < partials,
                                   i < lasts, scale, cid, DTYPE)
                        n_step += 1
                tlx.named_barrier_arrive(14 + cid, 256)
                tlx.named_barrier_wait(15 - cid, 256)
                use = n_step + n_kv
                if steps == 0:  # else a step waited for the writer
                    tlx.barrier_wait(ready[cid], use & 1)
                tlx.local_store(k_smem[kb * 2 + cid], dv.to(DTYPE))
                tlx.fence("async_shared")
                tlx.barrier_arrive(dv_full[cid])
                tlx.barrier_wait(ready[cid], use & 1)
                tlx.local_store(dk_out[cid], (dk * scale).to(DTYPE))
                tlx.fence("async_shared")
                tlx.barrier_arrive(full[cid])
                n_v += tl.where(steps > 0, 1, 0)
                n_kv += 1  # noqa: SIM113
                have = tl.where(cross, 1, 0)
                steps = steps2

        with tlx.async_task(num_warps=1, registers=24):  # loader
            n_step = 0
            n_kv = 0
            n_v = 0
            for place in tl.range(begin, end, num_stages=1):
                t = tile_at(place, begin, end, start, ROTATE)
                record = tiles + t * FIELDS
                q_start, q_len, o_start = tl.load(record), tl.load(record + 1), tl.load(record + 2)
                k_start, k_len, n0 = tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
                steps, m_first = tl.load(record + 6), tl.load(record + 9)
                head, block = tl.load(record + 13), tl.load(record + 14)
                kb = n_kv % 2
                tlx.barrier_wait(k_empty[kb], ((n_kv // 2) & 1) ^ 1)
                tlx.barrier_expect_bytes(k_full[kb], 2 * HALF * D * 2)
                for c in tl.static_range(2):
                    load_rows(desc_k, k_smem[kb * 2 + c], k_start, k_len, n0 + c * 64, head * D, k_full[kb],
                              ONCE)
                for g in tl.range(0, GROUP, num_stages=1):
                    head_q = head * GROUP + g
                    for i in tl.range(0, steps, num_stages=1):
                        m = m_first + i
                        qb = n_step % 2
                        tlx.barrier_wait(q_empty[qb], ((n_step // 2) & 1) ^ 1)
                        tlx.barrier_expect_bytes(q_full[qb], HALF * D * 2 + (0 if DELTA else 2 * HALF * 4))
                        load_rows(desc_q, q_smem[qb], q_start, q_len, m * HALF, head_q * D, q_full[qb])
                        if not DELTA:
                            at = rows + (head_q * num_blocks + block + m).to(tl.int64) * (2 * HALF)
                            tlx.async_load(at, lse_smem[qb], bulk=True, barrier=q_full[qb])
                            tlx.async_load(at + HALF, delta_smem[qb], bulk=True, barrier=q_full[qb])
                        if g + i == 0:
                            tlx.barrier_wait(v_empty[0], (n_v & 1) ^ 1)
                            tlx.barrier_expect_bytes(v_full[0], 2 * HALF * D * 2)
                            for c in tl.static_range(2):
                                load_rows(desc_v, v_smem[c], k_start, k_len, n0 + c * 64, head * D, v_full[0],
                                          ONCE)
                            n_v += 1
                        tlx.barrier_wait(do_empty[qb], ((n_step // 2) & 1) ^ 1)
                        tlx.barrier_expect_bytes(do_full[qb], HALF * D * 2)
                        load_rows(desc_do, do_smem[qb], o_start, q_len, m * HALF, head_q * D, do_full[qb])
                        n_step += 1
                n_kv += 1  # noqa: SIM113

        with tlx.async_task(num_warps=1, registers=24):  # writer
            n_use = 0
            n_kv = 0
            for place in tl.range(begin, end, num_stages=1):
                t = tile_at(place, begin, end, start, ROTATE)
                record = tiles + t * FIELDS
                q_start, q_len = tl.load(record), tl.load(record + 1)
                steps, m_first = tl.load(record + 6), tl.load(record + 9)
                partials, firsts, lasts = tl.load(record + 10), tl.load(record + 11), tl.load(record + 12)
                head, acc_block, acc_group = tl.load(record + 13), tl.load(record + 15), tl.load(record + 16)
                if tl.load(record + 17) != 0:  # the tile before it wrote to the same partial dQ
                    dq_stores_done(n_use)
                for g in tl.range(0, GROUP, num_stages=1):
                    column = (head * GROUP + g) * D
                    for i in tl.range(0, steps, num_stages=1):
                        m = m_first + i
                        row = (acc_block + g * acc_group + m) * HALF
                        for c in tl.static_range(2):
                            tlx.async_descriptor_store_wait(1 - c)
                            if i < partials:
                                tlx.barrier_expect_bytes(ready[c], HALF * HALF * 4)
                                tlx.async_descriptor_load(desc_acc, staging[c], [row, c * 64], ready[c],
                                                          eviction_policy=AGAIN)
                            else:
                                tlx.barrier_arrive(ready[c])
                        for c in tl.static_range(2):
                            tlx.barrier_wait(full[c], n_use & 1)
                            if i < lasts:
                                store_rows(desc_dq, final[2 * c], q_start, q_len, m * HALF, column + c * 64,
                                           ONCE)
                            elif i >= firsts:
                                tlx.async_descriptor_store(desc_acc, staging[c], [row, c * 64],
                                                           eviction_policy=AGAIN)
                            else:
                                tlx.async_descriptor_store(desc_acc, staging[c], [row, c * 64], eviction_policy=AGAIN,
                                                           store_reduce="add")
                        n_use += 1
                k_start, k_len, n0 = tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
                kb = n_kv % 2
                for c in tl.static_range(2):
                    tlx.async_descriptor_store_wait(1 - c)
                    tlx.barrier_arrive(ready[c])
                for c in tl.static_range(2):
                    tlx.barrier_wait(dv_full[c], n_kv & 1)
                    store_rows(desc_dv, k_smem[kb * 2 + c], k_start, k_len, n0 + c * 64, head * D, ONCE)
                for c in tl.static_range(2):
                    tlx.barrier_wait(full[c], n_use & 1)
                    store_rows(desc_dk, dk_out[c], k_start, k_len, n0 + c * 64, head * D, ONCE)
                tlx.async_descriptor_store_wait(2)
                tlx.barrier_arrive(k_empty[kb])
                n_use += 1
                n_kv += 1  # noqa: SIM113
            stores_done(n_use)
