"""TLX jagged flash attention, backward, for Hopper (sm_90a): the warp-specialised kernel.

A CTA is persistent and walks its own slice of a list of tiles; a tile is one block of 128 KV rows of one (sequence, KV
head). Its steps are the blocks of Q that see it, for each query head of the group. Per step, in the units of the
operands: S^T = K Q^T, P^T = exp2(scale S^T - lse), dP^T = V dO^T, dS^T = P^T (dP^T - delta), then dV += P^T dO,
dK += dS^T Q and dQ = dS K. Each consumer owns 64 KV rows, with dV and dK in registers; dS^T passes through SMEM, so
that each of them computes one 64 x 64 half of dQ over all 128 KV rows.

    role       warps         does
    (default)  4             with COUNTED: casts, see `kernels.hopper.backward_counted`; else nothing
    consumer   4 x 2         all matmuls; stages dQ, dV and dK for the writer; unless LATE stores dV, if KEEP dK
    loader     1             TMA loads of K, V, Q, dO, and of each block's lse and delta
    writer     1             dQ: stores, reduce-adds or final stores; fetches partial dQ; stores dK, if LATE dV

    buffer        blocks         holds
    kv            NUM_KV x 4     [64, D] of K and V; LATE: they change places with every tile; else V's slot carries
                                 dV out
    q, do         NUM_Q, NUM_DO  [BLOCK_M, D]
    ds            DS_STAGES x BLOCK_M / 32   [64, 64], dS^T: of consumer 0 and 1, for each 64 Q rows
    staging       STAGES x 2     [64, 64] fp32: a partial dQ coming in, then dQ or (once a tile) dV, dK going out

    barrier          completed by                          waited for by
    q_full, do_full  the TMA's bytes: at a tile's first    consumers
                     step K's too, V's with dO if LATE
    k_empty          both consumers, last dQ done          loader, before the next V if LATE, else the next K
    v_empty          both consumers, last dP done or dV    loader, before the next K if LATE, else the next V
                     has left
    no_steps         loader, a tile without steps seen     consumers, so that no phase of k_empty passes it unseen
    q_empty/do_empty both consumers, dK / dV done          loader
    ready            writer: the slot's last store has     consumers, before they use the slot
                     been read, or the partial is there
    full             the consumer, having filled the slot; writer
                     LATE: after the next step's dS
    named 12         both consumers: dQ has read dS        both, before they write dS (one stage of dS; KEEP: at the
                                                           tile's end)
    named 9          both consumers: dS is written         both, before dQ
    named 8 to 11    one consumer: dS is written           the other, before dQ (DK_FIRST; two for each stage of dS)
    may_give, taken, met   see `kernels.hopper.backward_pair` (PAIR)

With one slot of K and V (LATE) the next K goes to the slot of this V, which is free after the last dP, while dK and dQ
of the last step are still computed; V, which is needed later, to that of this K.

LATE: nothing but TMA writes to operands of S and dP, or the compiler would put a fence before
them that waits for all stores. So dV leaves through the staging. And dQ's stores are waited for by the fence that the
next step's dS needs anyway.

What becomes of a step's dQ depends on its block of Q and two numbers of the tile, see
`kernels.hopper.backward_schedule`: the step is the *first* to touch the block, the *last*, both or neither. Last: the
sum is complete and leaves as dq itself, with the accumulator's part added unless it is first too. Otherwise it goes to
the accumulator in fp32, stored (first) or reduce-added. TURNS: a tile's writer waits for the tiles that must come
before it and counts it when its dQ is in memory.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_counted import await_adds, cast_counted, count_add, count_tile
from kernels.hopper.backward_pair import Hand, give, make_ready_to_take, meet
from kernels.hopper.backward_parts import (
    FIELDS,
    HALF,
    dq_stores_done,
    first_slot,
    first_tile,
    make_ready,
    opaque,
    steps_with_keys,
    stores_done,
    tile_at,
)
from kernels.hopper.backward_step import step_64, step_128, step_without_keys
from kernels.hopper.backward_walk import block_of_step, gives, takes, walks_back
from kernels.hopper.ragged import load_rows, store_rows


@triton.jit(do_not_specialize=["num_blocks", "left", "right"])
def jagged_backward(desc_q, desc_do, desc_k, desc_v, desc_dq, desc_dk, desc_dv, desc_acc, rows, tiles, bounds,
                    num_blocks, scale_log2, scale, left, right, acc, dq, counters, row_stride, GROUP: tl.constexpr,
                    BLOCK_M: tl.constexpr, D: tl.constexpr, NUM_Q: tl.constexpr, NUM_DO: tl.constexpr,
                    NUM_KV: tl.constexpr, STAGES: tl.constexpr, DS_STAGES: tl.constexpr, DK_FIRST: tl.constexpr,
                    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, KEEP: tl.constexpr, HINTS: tl.constexpr,
                    ROTATE: tl.constexpr, COUNTED: tl.constexpr, SKIP: tl.constexpr, SERPENTINE: tl.constexpr,
                    TURNS: tl.constexpr, PAIR: tl.constexpr, REGISTERS: tl.constexpr):
    """See the table at the top of the file; `kernels.hopper.backward_options` says what each switch does.

    ``tiles`` int32 [T, 24] as `kernels.hopper.backward_schedule` makes it; CTA ``p`` does tiles ``bounds[p]`` to
    ``bounds[p + 1]``. ``rows`` fp32 [num_heads_q, num_blocks, 2, BLOCK_M]: lse * log2(e) and delta, +inf and 0 where
    a block of Q has no row. ``desc_acc`` is fp32 [rows, D] of partial dQ, in blocks of BLOCK_M rows. COUNTED alone uses
    ``acc`` and ``dq``, the same as their descriptors. ``counters`` int32, zero: COUNTED [num_heads_q, num_blocks],
    TURNS [batch, KV heads], which are zero again afterwards.
    """
    DTYPE: tl.constexpr = tlx.dtype_of(desc_q)
    ONCE: tl.constexpr = "evict_first" if HINTS else ""  # L2's policy for what passes once, and for partial dQ
    AGAIN: tl.constexpr = "evict_last" if HINTS else ""
    kv_smem = tlx.local_alloc((HALF, D), DTYPE, NUM_KV * 4)
    q_smem = tlx.local_alloc((BLOCK_M, D), DTYPE, 1 if KEEP else NUM_Q)
    do_smem = tlx.local_alloc((BLOCK_M, D), DTYPE, NUM_DO)
    ds_smem = tlx.local_alloc((HALF, 64), DTYPE, BLOCK_M // 32 * DS_STAGES)
    staging = tlx.local_alloc((HALF, HALF), tl.float32, STAGES * 2)
    final = tlx.local_alloc((HALF, HALF), DTYPE, STAGES * 4, reuse=staging)
    dk_out = tlx.local_alloc((HALF, D), DTYPE, STAGES * 256 // D, reuse=staging)
    lse_smem = tlx.local_alloc((64,), tl.float32, NUM_Q * BLOCK_M // 64)
    delta_smem = tlx.local_alloc((64,), tl.float32, NUM_Q * BLOCK_M // 64)
    LATE: tl.constexpr = NUM_KV == 1 and not KEEP
    USES: tl.constexpr = 2 if LATE else 1  # of the staging a tile, for dV and dK
    Q_BYTES: tl.constexpr = BLOCK_M * D * 2
    ROW_BYTES: tl.constexpr = 2 * BLOCK_M * 4
    KV_BYTES: tl.constexpr = 2 * HALF * D * 2
    DK: tl.constexpr = 128 // D  # slots of dk_out to one of the staging
    k_empty = tlx.alloc_warp_barrier(NUM_KV, num_warps=8)
    v_empty = tlx.alloc_warp_barrier(NUM_KV, num_warps=8)
    q_full = tlx.alloc_barriers(NUM_Q)
    q_empty = tlx.alloc_warp_barrier(NUM_Q, num_warps=8)
    do_empty = tlx.alloc_warp_barrier(NUM_DO, num_warps=8)
    full = tlx.alloc_warp_barrier(STAGES * 2, num_warps=4)
    do_full = tlx.alloc_barriers(NUM_DO)
    no_steps = tlx.alloc_barriers(1)
    ready = tlx.alloc_barriers(STAGES * 2)
    taken = ready
    peer = 0
    if PAIR:
        taken = tlx.alloc_barriers(1, arrive_count=2)
        may_give = tlx.alloc_barriers(2)
        met = tlx.alloc_barriers(1)
        tlx.fence_mbarrier_init_cluster()
        peer = 1 - tlx.cluster_cta_rank()
    pid = tl.program_id(0)
    begin = tl.load(bounds + pid)
    end = tl.load(bounds + pid + 1)
    start = first_tile(tiles, begin, end, pid, ROTATE)

    with tlx.async_tasks():
        with tlx.async_task("default"):
            if COUNTED:
                cast_counted(acc, dq, counters, tiles, begin, end, num_blocks, row_stride, scale, GROUP, BLOCK_M, D,
                             HINTS)

        with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=2):
            cid: tl.constexpr = tlx.async_task_replica_id()
            n_step = 0
            n_kv = 0
            n_idle = 0  # uses of the staging that nobody uses
            n_without = 0
            for place in tl.range(begin, end, num_stages=1):
                t = tile_at(place, begin, end, start, ROTATE)
                after = tiles + tile_at(tl.minimum(place + 1, end - 1), begin, end, start, ROTATE) * FIELDS
                tlx.prefetch(after, level="L1")  # a load would be waited for here
                tlx.prefetch(after + FIELDS - 1, level="L1")
                record = tiles + t * FIELDS
                steps = tl.load(record + 6)
                whole = steps  # steps with keys for this consumer
                if SKIP and cid == 1:
                    whole = steps_with_keys(record, steps)
                cut0, cut1 = tl.load(record + 7), tl.load(record + 8)
                partials, lasts = tl.load(record + 10), tl.load(record + 12)
                kb = n_kv % NUM_KV
                back = walks_back(record, SERPENTINE, PAIR)
                role = tl.load(record + 18) if PAIR else 0
                if steps == 0:
                    tlx.barrier_wait(no_steps[0], n_without & 1)
                    n_without += 1
                dk = tl.zeros([HALF, D], tl.float32)
                dv = tl.zeros([HALF, D], tl.float32)
                for g in tl.range(0, GROUP, num_stages=1):
                    if SKIP and cid == 1:
                        for i in tl.range(whole, steps, num_stages=1):
                            qb = n_step % NUM_Q
                            db = n_step % NUM_DO
                            use = n_step + USES * n_kv + n_idle
                            slot = cid if KEEP else use % STAGES * 2 + cid
                            j = block_of_step(i, steps, back, role, SERPENTINE, PAIR)
                            k_slot = first_slot(n_kv, NUM_KV, LATE)
                            hand = Hand(gives(i, steps, role), takes(i, steps, role), taken[0], peer)
                            last = j < lasts
                            partial = j < partials
                            if PAIR:
                                last &= hand.give == 0
                                partial &= hand.take == 0
                            step_without_keys(
                                kv_smem, ds_smem, staging[slot], final[2 * slot], k_slot, q_full[qb], q_empty[qb],
                                (n_step // NUM_Q) & 1, do_full[db], do_empty[db], (n_step // NUM_DO) & 1, ready[slot],
                                full[slot], (use // STAGES) & 1, last, n_step > 0 if KEEP else partial,
                                scale, n_step % 2, hand, cid, DTYPE, D, DS_STAGES, DK_FIRST, KEEP, PAIR)
                            n_step += 1
                    for i in tl.range(0, whole, num_stages=1):
                        qb = n_step % NUM_Q
                        db = n_step % NUM_DO
                        use = n_step + USES * n_kv + n_idle
                        slot = cid if KEEP else use % STAGES * 2 + cid
                        j = block_of_step(i, steps, back, role, SERPENTINE, PAIR)
                        k_slot = first_slot(n_kv, NUM_KV, LATE)
                        v_slot = 2 - k_slot if LATE else 2 * NUM_KV + k_slot
                        cut = j < cut0
                        if HAS_LEFT:
                            cut |= j >= cut1
                        even = n_step % 2
                        slot_before = (use + STAGES - 1) % STAGES * 2 + cid if LATE else 0
                        pending = g + i
                        pending = opaque(pending)  # else the first step becomes a copy of its own
                        unsaid = pending > 0
                        if PAIR:
                            unsaid &= gives(i - 1, steps, role) == 0
                        done_v = (i + 1 == whole) & (g == GROUP - 1)
                        hand = Hand(gives(i, steps, role), takes(i, steps, role), taken[0], peer)
                        last = j < lasts
                        partial = j < partials
                        if PAIR:
                            last &= hand.give == 0
                            partial &= hand.take == 0
                        if D == 128:
                            dk, dv = step_128(
                                kv_smem, q_smem[0 if KEEP else qb], do_smem[db], ds_smem, staging[slot],
                                final[2 * slot], lse_smem[qb], delta_smem[qb], k_slot, v_slot, q_full[qb], q_empty[qb],
                                (n_step // NUM_Q) & 1, do_full[db], do_empty[db], (n_step // NUM_DO) & 1, ready[slot],
                                full[slot], (use // STAGES) & 1, dk, dv, j, cut, last,
                                n_step > 0 if KEEP else partial, scale_log2, scale, record, left, right, even,
                                unsaid, full[slot_before], done_v, v_empty[kb], hand, cid, DTYPE, DS_STAGES,
                                DK_FIRST, KEEP, LATE, PAIR, HAS_LEFT, HAS_RIGHT)
                        else:
                            dk, dv = step_64(
                                kv_smem, q_smem[qb], do_smem[db], ds_smem, staging[slot], final[2 * slot], lse_smem,
                                delta_smem, 2 * qb, k_slot, v_slot, q_full[qb], q_empty[qb], (n_step // NUM_Q) & 1,
                                do_full[db], do_empty[db], (n_step // NUM_DO) & 1, ready[slot], full[slot],
                                (use // STAGES) & 1, dk, dv, j, cut, last, partial, scale_log2, scale, record,
                                left, right, even, unsaid, full[slot_before], done_v, v_empty[kb], hand, cid, DTYPE,
                                DS_STAGES, LATE, HAS_LEFT, HAS_RIGHT)
                        n_step += 1
                if LATE:  # noqa: SIM102
                    if (whole > 0) & (gives(steps - 1, steps, role) == 0):
                        tlx.fence("async_shared")
                        tlx.barrier_arrive(full[(n_step + USES * n_kv + n_idle + STAGES - 1) % STAGES * 2 + cid])
                if KEEP:
                    tlx.named_barrier_wait(12, 256)  # both have done with this K, and with dS
                else:
                    tlx.barrier_arrive(k_empty[kb])
                k_start, k_len = tl.load(record + 3), tl.load(record + 4)
                row = tl.load(record + 5) + cid * 64
                column = tl.load(record + 13) * D
                if LATE:
                    if whole == 0:  # else its last step has
                        tlx.barrier_arrive(v_empty[kb])
                    use = n_step + USES * n_kv + n_idle
                    slot = use % STAGES * 2 + cid
                    tlx.barrier_wait(ready[slot], (use // STAGES) & 1)
                    tlx.local_store(dk_out[slot * DK], dv.to(DTYPE))
                    tlx.fence("async_shared")
                    tlx.barrier_arrive(full[slot])
                else:
                    tlx.local_store(kv_smem[2 * NUM_KV + kb * 2 + cid], dv.to(DTYPE))
                    tlx.fence("async_shared")
                    store_rows(desc_dv, kv_smem[2 * NUM_KV + kb * 2 + cid], k_start, k_len, row, column, ONCE)
                if KEEP:
                    tlx.local_store(kv_smem[kb * 2 + cid], (dk * scale).to(DTYPE))
                    tlx.fence("async_shared")
                    store_rows(desc_dk, kv_smem[kb * 2 + cid], k_start, k_len, row, column, ONCE)
                else:
                    use = n_step + USES * n_kv + n_idle + USES - 1
                    slot = use % STAGES * 2 + cid
                    tlx.barrier_wait(ready[slot], (use // STAGES) & 1)
                    tlx.local_store(dk_out[slot * DK], (dk * scale).to(DTYPE))
                    tlx.fence("async_shared")
                    tlx.barrier_arrive(full[slot])
                if PAIR:  # noqa: SIM102 (one is known to the compiler)
                    if (role == 0) & (steps % 2 == 1):
                        use = n_step + USES * n_kv + n_idle + USES
                        slot = use % STAGES * 2 + cid
                        tlx.barrier_wait(ready[slot], (use // STAGES) & 1)
                        tlx.barrier_arrive(full[slot])
                        n_idle += 1
                if not LATE:
                    tlx.async_descriptor_store_wait(0)
                    tlx.barrier_arrive(v_empty[kb])
                if KEEP:
                    tlx.barrier_arrive(k_empty[kb])
                n_kv += 1  # noqa: SIM113
            if KEEP:
                tlx.fence("async_shared")
                tlx.barrier_arrive(full[cid])

        with tlx.async_task(num_warps=1, registers=24):  # loader
            n_step = 0
            n_kv = 0
            for place in tl.range(begin, end, num_stages=1):
                t = tile_at(place, begin, end, start, ROTATE)
                record = tiles + t * FIELDS
                q_start, q_len, o_start = tl.load(record), tl.load(record + 1), tl.load(record + 2)
                k_start, k_len, n0 = tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
                steps, m_first = tl.load(record + 6), tl.load(record + 9)
                head, block = tl.load(record + 13), tl.load(record + 14)
                back = walks_back(record, SERPENTINE, PAIR)
                role = tl.load(record + 18) if PAIR else 0
                kb = n_kv % NUM_KV
                kv_phase = ((n_kv // NUM_KV) & 1) ^ 1
                k_slot = first_slot(n_kv, NUM_KV, LATE)
                v_slot = 2 - k_slot if LATE else 2 * NUM_KV + k_slot
                if steps == 0:  # no phase may pass unseen
                    tlx.barrier_wait(k_empty[kb], kv_phase)
                    tlx.barrier_wait(v_empty[kb], kv_phase)
                    tlx.barrier_arrive(no_steps[0])
                for g in tl.range(0, GROUP, num_stages=1):
                    head_q = head * GROUP + g
                    for i in tl.range(0, steps, num_stages=1):
                        m = m_first + block_of_step(i, steps, back, role, SERPENTINE, PAIR)
                        opens = g + i == 0
                        qb = n_step % NUM_Q
                        db = n_step % NUM_DO
                        at = rows + (head_q * num_blocks + block + m).to(tl.int64) * (2 * BLOCK_M)
                        tlx.barrier_wait(q_empty[qb], ((n_step // NUM_Q) & 1) ^ 1)
                        if KEEP:  # the same Q in every step, and one step a tile
                            if n_step > 0:
                                tlx.barrier_expect_bytes(q_full[qb], ROW_BYTES + 2 * KV_BYTES)
                            else:
                                tlx.barrier_expect_bytes(q_full[qb], Q_BYTES + ROW_BYTES + 2 * KV_BYTES)
                                load_rows(desc_q, q_smem[0], q_start, q_len, m * BLOCK_M, head_q * D, q_full[qb])
                        else:
                            if opens:
                                tlx.barrier_expect_bytes(q_full[qb], Q_BYTES + ROW_BYTES +
                                                         (KV_BYTES if LATE else 2 * KV_BYTES))
                            else:
                                tlx.barrier_expect_bytes(q_full[qb], Q_BYTES + ROW_BYTES)
                            load_rows(desc_q, q_smem[qb], q_start, q_len, m * BLOCK_M, head_q * D, q_full[qb])
                        for x in tl.static_range(BLOCK_M // 64):
                            piece = qb * (BLOCK_M // 64) + x
                            tlx.async_load(at + x * 64, lse_smem[piece], bulk=True, barrier=q_full[qb])
                            tlx.async_load(at + BLOCK_M + x * 64, delta_smem[piece], bulk=True, barrier=q_full[qb])
                        if opens:
                            tlx.barrier_wait(v_empty[kb] if LATE else k_empty[kb], kv_phase)
                            for c in tl.static_range(2):
                                load_rows(desc_k, kv_smem[k_slot + c], k_start, k_len, n0 + c * 64, head * D,
                                          q_full[qb], ONCE)
                            if not LATE:
                                tlx.barrier_wait(v_empty[kb], kv_phase)
                                for c in tl.static_range(2):
                                    load_rows(desc_v, kv_smem[v_slot + c], k_start, k_len, n0 + c * 64, head * D,
                                              q_full[qb], ONCE)
                        tlx.barrier_wait(do_empty[db], ((n_step // NUM_DO) & 1) ^ 1)
                        if LATE:
                            if opens:
                                tlx.barrier_expect_bytes(do_full[db], Q_BYTES + KV_BYTES)
                            else:
                                tlx.barrier_expect_bytes(do_full[db], Q_BYTES)
                        else:
                            tlx.barrier_expect_bytes(do_full[db], Q_BYTES)
                        load_rows(desc_do, do_smem[db], o_start, q_len, m * BLOCK_M, head_q * D, do_full[db])
                        if LATE:  # noqa: SIM102 (one is known to the compiler)
                            if opens:
                                tlx.barrier_wait(k_empty[kb], kv_phase)
                                for c in tl.static_range(2):
                                    load_rows(desc_v, kv_smem[v_slot + c], k_start, k_len, n0 + c * 64, head * D,
                                              do_full[db], ONCE)
                        n_step += 1
                n_kv += 1  # noqa: SIM113

        with tlx.async_task(num_warps=1, registers=24):  # writer
            if KEEP:
                for c in tl.static_range(2):
                    tlx.barrier_wait(full[c], 0)
                    if begin < end:
                        row = tl.load(tiles + begin * FIELDS + 15) * BLOCK_M
                        tlx.async_descriptor_store(desc_acc, staging[c], [row, c * 64])
                stores_done(begin)
            else:
                n_use = 0
                n_give = 0
                n_take = 0
                n_taken = 0
                n_met = 0
                ROW: tl.constexpr = 0 if D == 128 else 64  # where consumer 1's part of dQ begins
                COLUMN: tl.constexpr = 64 if D == 128 else 0
                AHEAD: tl.constexpr = STAGES == 2
                for place in tl.range(begin, end, num_stages=1):
                    t = tile_at(place, begin, end, start, ROTATE)
                    record = tiles + t * FIELDS
                    q_start, q_len = tl.load(record), tl.load(record + 1)
                    steps, m_first = tl.load(record + 6), tl.load(record + 9)
                    partials, firsts, lasts = tl.load(record + 10), tl.load(record + 11), tl.load(record + 12)
                    head, acc_block, acc_group = tl.load(record + 13), tl.load(record + 15), tl.load(record + 16)
                    if tl.load(record + 17) != 0:  # the tile before it wrote to the same partial dQ
                        dq_stores_done(n_use)
                    if TURNS:
                        turn = counters + tl.load(record + 23)
                        wanted = tl.load(record + 22)
                        if wanted > 0:
                            await_adds(turn, wanted)
                    if COUNTED:
                        counted = tl.load(record + 21) > 0
                        storing, wanted = tl.load(record + 18), tl.load(record + 22)
                        counter0 = head * GROUP * num_blocks + tl.load(record + 14) + m_first
                        stored = -1  # the last step's counter
                    back = walks_back(record, SERPENTINE, PAIR)
                    role = tl.load(record + 18) if PAIR else 0
                    if PAIR:  # noqa: SIM102 (one is known to the compiler)
                        if (role != 0) & (partials > 0):
                            meet(met, n_met, peer)
                            n_met += 1
                    if AHEAD:
                        j = tl.maximum(block_of_step(0, steps, back, role, SERPENTINE, PAIR), 0)
                        row = (acc_block + m_first + j) * BLOCK_M
                        if PAIR and takes(0, steps, role):
                            make_ready_to_take(ready, may_give, n_use, n_take, peer, STAGES)
                            n_take += 1
                        else:
                            make_ready(desc_acc, staging, ready, n_use, row, j < partials, ROW, COLUMN, STAGES, AGAIN,
                                       0 if PAIR else 2)
                    for g in tl.range(0, GROUP, num_stages=1):
                        column = (head * GROUP + g) * D
                        for i in tl.range(0, steps, num_stages=1):
                            j = block_of_step(i, steps, back, role, SERPENTINE, PAIR)
                            m = m_first + j
                            first = j >= firsts
                            last = j < lasts
                            row = (acc_block + g * acc_group + m) * BLOCK_M
                            if AHEAD:  # the next step's, of the next query head after this one's last, or dK's
                                over = i + 1 >= steps
                                g2 = tl.where(over, g + 1, g)
                                i2 = tl.where(over, 0, i + 1)
                                j2 = block_of_step(i2, steps, back, role, SERPENTINE, PAIR)
                                row2 = (acc_block + g2 * acc_group + m_first + j2) * BLOCK_M
                                fetch = (j2 < partials) & (g2 < GROUP)
                                if PAIR:  # noqa: SIM102
                                    if gives(i - 1, steps, role):
                                        tlx.barrier_wait(taken[0], n_taken & 1)
                                        n_taken += 1
                                if PAIR and takes(i2, steps, role) & (g2 < GROUP):
                                    make_ready_to_take(ready, may_give, n_use + 1, n_take, peer, STAGES)
                                    n_take += 1
                                else:
                                    make_ready(desc_acc, staging, ready, n_use + 1, row2, fetch, ROW, COLUMN, STAGES,
                                               AGAIN, 0)
                            else:
                                make_ready(desc_acc, staging, ready, n_use, row, j < partials, ROW, COLUMN, STAGES,
                                            AGAIN, 0)
                            if COUNTED:
                                if stored >= 0:
                                    count_add(counters + stored)
                                stored = tl.where(counted, counter0 + g * num_blocks + i, -1)
                                first |= i < storing
                                if counted & (first == 0):
                                    await_adds(counters + stored, wanted)
                            for c in tl.static_range(2):
                                slot = n_use % STAGES * 2 + c
                                tlx.barrier_wait(full[slot], (n_use // STAGES) & 1)
                                if PAIR and gives(i, steps, role):
                                    if c == 1:
                                        give(staging, ready, may_give, slot - 1, n_give, i, steps, role, peer)
                                        n_give += 1
                                elif last:
                                    store_rows(desc_dq, final[2 * slot], q_start, q_len, m * BLOCK_M + c * ROW,
                                               column + c * COLUMN, ONCE)
                                elif first:
                                    tlx.async_descriptor_store(desc_acc, staging[slot], [row + c * ROW, c * COLUMN],
                                                               eviction_policy=AGAIN)
                                else:
                                    tlx.async_descriptor_store(desc_acc, staging[slot], [row + c * ROW, c * COLUMN],
                                                               eviction_policy=AGAIN, store_reduce="add")
                            n_use += 1
                    if not AHEAD:
                        make_ready(desc_acc, staging, ready, n_use, 0, False, ROW, COLUMN, STAGES, AGAIN, 0)
                    if COUNTED:  # noqa: SIM102 (one is known to the compiler)
                        if stored >= 0:
                            count_add(counters + stored)
                    k_start, k_len, n0 = tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
                    if LATE:
                        if PAIR:  # noqa: SIM102
                            if gives(steps - 1, steps, role):
                                tlx.barrier_wait(taken[0], n_taken & 1)
                                n_taken += 1
                        if AHEAD:
                            make_ready(desc_acc, staging, ready, n_use + 1, 0, False, ROW, COLUMN, STAGES, AGAIN, 0)
                        for c in tl.static_range(2):
                            slot = n_use % STAGES * 2 + c
                            tlx.barrier_wait(full[slot], (n_use // STAGES) & 1)
                            store_rows(desc_dv, dk_out[slot * DK], k_start, k_len, n0 + c * 64, head * D, ONCE)
                        n_use += 1
                        if not AHEAD:
                            make_ready(desc_acc, staging, ready, n_use, 0, False, ROW, COLUMN, STAGES, AGAIN, 0)
                    for c in tl.static_range(2):
                        slot = n_use % STAGES * 2 + c
                        tlx.barrier_wait(full[slot], (n_use // STAGES) & 1)
                        store_rows(desc_dk, dk_out[slot * DK], k_start, k_len, n0 + c * 64, head * D, ONCE)
                    n_use += 1
                    if PAIR:  # noqa: SIM102
                        if (role == 0) & (steps % 2 == 1):
                            make_ready(desc_acc, staging, ready, n_use, 0, False, ROW, COLUMN, STAGES, AGAIN, 0)
                            for c in tl.static_range(2):
                                tlx.barrier_wait(full[n_use % STAGES * 2 + c], (n_use // STAGES) & 1)
                            n_use += 1
                    if TURNS:  # noqa: SIM102
                        if tl.load(record + 23) >= 0:
                            dq_stores_done(n_use)
                            if n0 == 128:  # the last in turn, for the next launch
                                tl.store(turn, 0)
                            else:
                                count_tile(turn)
                stores_done(n_use)
