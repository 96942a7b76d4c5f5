"""TLX jagged flash attention, backward, for Hopper (sm_90a): the warp-specialised kernel.

A CTA is persistent and walks its own slice of a list of tiles; a tile is 128 KV rows of one (sequence, KV head), or 256
at D = 64. Its steps are the blocks of 64 Q rows that see it, for each query head of the group. Per step, in the units
of the operands: S^T = K Q^T, P^T = exp2(scale S^T - lse), dP^T = V dO^T, dS^T = P^T scale (dP^T - delta), then
dV += P^T dO, dK += dS^T Q and dQ = dS K. Each consumer owns every second block of 64 KV rows, BLOCKS of them, with dV
and dK in registers; dS^T passes through SMEM, so that each of them computes half of dQ's columns over all KV rows, or
(ALTERNATE) all of dQ in every second step.

    role       warps         does
    (default)  4             with COUNTED: casts, see `kernels.hopper.backward_counted`; else nothing
    consumer   4 x 2         all matmuls; stages dQ, dV and dK for the writer; unless LATE stores dV, if KEEP dK
    loader     1             TMA loads of K, V, Q, dO, and of each block's lse and delta
    writer     1             dQ: stores, reduce-adds or final stores; fetches partial dQ; stores dK, if LATE dV

    buffer        blocks         holds
    kv            NUM_KV x 4 x BLOCKS     [64, D] of K and V, in the order of the rows; LATE: K and V change places
                                          with every tile; else V's slot carries dV out
    q, do         NUM_Q, NUM_DO           [64, D]
    ds            DS_STAGES x 2 x BLOCKS  [64, 64], dS^T of each block of keys
    staging       STAGES x 2              BLOCKS x [64, D / 2] fp32: half of a partial dQ coming in, then half of dQ
                                          (in the first of them) or once a tile a consumer's dV, dK going out

    barrier          completed by                          waited for by
    q_full, do_full  the TMA's bytes: at a tile's first    consumers
                     step K's too, V's with dO if LATE;
                     HOLD: the last of each, K and V alone
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
    named 8 to 11    one consumer: dS is written           the other, before dQ (two for each stage of dS)
    named 12, 13     ALTERNATE: a tile's last dQ staged    the consumer that had no part in it
    may_give, taken, met   see `kernels.hopper.backward_pair` (PAIR)

ALTERNATE: see `kernels.hopper.backward_alternate`. HOLD: see `kernels.hopper.backward_hold`. ALL_SEEN: no tile is
without steps, and there is no code for one. That matters: with few steps to a tile all of the kernel's code is in use,
and beyond about 64 KB of it warps wait for instructions.

With one slot of K and V (LATE) the next K goes to the slot of this V, which is free after the last dP, while dK and dQ
of the last step are still computed; V, which is needed later, to that of this K.

LATE: nothing but TMA writes to operands of S and dP, or the compiler would put a fence before
them that waits for all stores. So dV leaves through the staging. And dQ's stores are waited for by the fence that the
next step's dS needs anyway.

What becomes of a step's dQ depends on its block of Q and two numbers of the tile, see
`kernels.hopper.backward_schedule`: the step is the *first* to touch the block, the *last*, both or neither. Last: the
sum is complete and leaves as dq itself, with the accumulator's part added unless it is first too. Otherwise it goes to
the accumulator in fp32, stored (first) or reduce-added. TURNS: a tile's writer waits for the tiles that must come
before it and counts it when its dQ is in memory. SUMMED: a CTA's first tile stores, its others add (broadcast-Q).
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_counted import cast_counted
from kernels.hopper.backward_loader import load
from kernels.hopper.backward_output import end_tile, even_out
from kernels.hopper.backward_parts import (
    ROWS,
    Barriers,
    Buffers,
    Config,
    Tile,
    Work,
    has_two,
    steps_with_keys,
)
from kernels.hopper.backward_record import CUT_END, CUT_FROM, FIELDS, HOLDS, LASTS, PARTIALS, ROLE, STEPS
from kernels.hopper.backward_step import step_of, step_with_keys, step_without_keys, told_later
from kernels.hopper.backward_walk import walks_back
from kernels.hopper.backward_writer import write, write_kept, write_summed


@triton.jit(do_not_specialize=["num_blocks", "left", "right"])
def jagged_backward(desc_q, desc_do, desc_k, desc_v, desc_dq, desc_dk, desc_dv, desc_acc, rows, tiles, bounds,
                    num_blocks, scale_log2, scale, left, right, acc, dq, counters, row_stride, GROUP: tl.constexpr,
                    D: tl.constexpr, NUM_Q: tl.constexpr, NUM_DO: tl.constexpr,
                    NUM_KV: tl.constexpr, STAGES: tl.constexpr, DS_STAGES: tl.constexpr,
                    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, KEEP: tl.constexpr, HINTS: tl.constexpr,
                    COUNTED: tl.constexpr, SKIP: tl.constexpr, SERPENTINE: tl.constexpr,
                    TURNS: tl.constexpr, PAIR: tl.constexpr, HOLD: tl.constexpr, ALL_SEEN: tl.constexpr,
                    SUMMED: tl.constexpr, ALTERNATE: tl.constexpr, REGISTERS: tl.constexpr):
    """See the table at the top of the file; `kernels.hopper.backward_options` says what each switch does.

    ``tiles`` int32 [T, FIELDS] as `kernels.hopper.backward_schedule` makes it; CTA ``p`` does tiles ``bounds[p]`` to
    ``bounds[p + 1]``. ``rows`` fp32 [num_heads_q, num_blocks, 2, 64]: lse * log2(e) and scale * delta, +inf and 0
    where a block of Q has no row. ``desc_acc`` is fp32 [rows, D] of partial dQ, in blocks of 64 rows. COUNTED
    alone uses ``acc`` and ``dq``, the same as their descriptors. ``counters`` int32, zero: COUNTED [num_heads_q,
    num_blocks], TURNS [batch, KV heads], which are zero again afterwards.
    """
    DTYPE: tl.constexpr = tlx.dtype_of(desc_q)
    LATE: tl.constexpr = NUM_KV == 1 and not KEEP
    USES: tl.constexpr = 2 if LATE else 1  # of the staging a tile, for dV and dK
    ONCE: tl.constexpr = "evict_first" if HINTS else ""
    AGAIN: tl.constexpr = "evict_last" if HINTS and (TURNS or SUMMED) else ""
    BLOCKS: tl.constexpr = 128 // D
    HALF: tl.constexpr = D // 2
    c: tl.constexpr = Config(GROUP, D, BLOCKS, HALF, NUM_Q, NUM_DO, NUM_KV, STAGES, DS_STAGES, HAS_LEFT, HAS_RIGHT,
                             KEEP, COUNTED, SKIP, SERPENTINE, TURNS, PAIR, HOLD, ALL_SEEN, SUMMED, ALTERNATE, LATE,
                             USES, ONCE, AGAIN, DTYPE)
    kv_smem = tlx.local_alloc((ROWS, D), DTYPE, NUM_KV * 4 * BLOCKS)
    q_smem = tlx.local_alloc((ROWS, D), DTYPE, 1 if KEEP else NUM_Q)
    do_smem = tlx.local_alloc((ROWS, D), DTYPE, NUM_DO)
    ds_smem = tlx.local_alloc((ROWS, ROWS), DTYPE, 2 * BLOCKS * DS_STAGES)
    staging0 = tlx.local_alloc((ROWS, HALF), tl.float32, STAGES * BLOCKS)
    staging1 = tlx.local_alloc((ROWS, HALF), tl.float32, STAGES * BLOCKS)
    final0 = tlx.local_alloc((ROWS, HALF), DTYPE, STAGES * BLOCKS * 2, reuse=staging0)
    final1 = tlx.local_alloc((ROWS, HALF), DTYPE, STAGES * BLOCKS * 2, reuse=staging1)
    dkv0 = tlx.local_alloc((ROWS, D), DTYPE, STAGES * BLOCKS, reuse=staging0)
    dkv1 = tlx.local_alloc((ROWS, D), DTYPE, STAGES * BLOCKS, reuse=staging1)
    lse_smem = tlx.local_alloc((ROWS,), tl.float32, NUM_Q)
    delta_smem = tlx.local_alloc((ROWS,), tl.float32, NUM_Q)
    k_empty = tlx.alloc_warp_barrier(NUM_KV, num_warps=8)
    v_empty = tlx.alloc_warp_barrier(NUM_KV, num_warps=8)
    q_full = tlx.alloc_barriers(NUM_Q + HOLD)
    q_empty = tlx.alloc_warp_barrier(NUM_Q, num_warps=8)
    do_empty = tlx.alloc_warp_barrier(NUM_DO, num_warps=8)
    full = tlx.alloc_warp_barrier(STAGES * 2, num_warps=4)
    do_full = tlx.alloc_barriers(NUM_DO + HOLD)
    no_steps = tlx.alloc_barriers(1)
    ready = tlx.alloc_barriers(STAGES * 2)
    taken = ready  # these three are not used without PAIR
    may_give = ready
    met = ready
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
    work = Work(tiles, begin, end, rows, num_blocks, counters)
    buf = Buffers(kv_smem, q_smem, do_smem, ds_smem, (staging0, staging1), (final0, final1), (dkv0, dkv1),
                  lse_smem, delta_smem)
    bar = Barriers(k_empty, v_empty, q_full, q_empty, do_full, do_empty, ready, full, no_steps, may_give, taken, met)

    with tlx.async_tasks():
        with tlx.async_task("default"):
            if COUNTED:
                cast_counted(acc, dq, counters, tiles, begin, end, num_blocks, row_stride, GROUP, ROWS, D, HINTS)

        with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=2):
            cid: tl.constexpr = tlx.async_task_replica_id()
            n_step = 0
            n_kv = 0
            n_idle = 0  # uses of the staging that nobody uses
            n_without = 0
            n_held = 0
            for place in tl.range(begin, end, num_stages=1):
                record = tiles + place * FIELDS
                tlx.prefetch(record + FIELDS, level="L1")  # the next one; a load would be waited for here
                tlx.prefetch(record + 2 * FIELDS - 1, level="L1")
                steps = tl.load(record + STEPS)
                if ALL_SEEN:
                    tl.assume(steps > 0)  # no code for loops that don't run
                elif steps == 0:
                    tlx.barrier_wait(no_steps[0], n_without & 1)
                    n_without += 1
                cut0, cut1 = tl.load(record + CUT_END), tl.load(record + CUT_FROM)
                kb = n_kv % NUM_KV
                held = tl.load(record + HOLDS) if HOLD else 0
                if HOLD:
                    n_held += held & 1
                back = walks_back(record, c)
                two = has_two(record) if BLOCKS == 2 else 0
                first, last = 0, steps
                if SKIP:
                    first, last = steps_with_keys(record, steps, back, left, right, cid, c)
                tile = Tile(record, steps, back, tl.load(record + ROLE) if PAIR else 0, held, two, first, last,
                            tl.load(record + PARTIALS), tl.load(record + LASTS), n_kv, n_idle, n_held)
                dk = tl.zeros([ROWS, D], tl.float32)
                dv = tl.zeros([ROWS, D], tl.float32)
                dk0 = tl.zeros([ROWS, D], tl.float32) if BLOCKS == 2 else 0  # of the first of two blocks of keys
                dv0 = tl.zeros([ROWS, D], tl.float32) if BLOCKS == 2 else 0
                for g in tl.range(0, GROUP, num_stages=1):
                    for i in tl.range(0, steps, num_stages=1):
                        step = step_of(i, n_step, tile, bar, peer, cid, c)
                        pending = told_later(g, i, tile, c)
                        if SKIP and ((i < first) | (i >= last)):
                            step_without_keys(step, pending, buf, bar, cid, c)
                        else:
                            cut = step.block < cut0
                            if HAS_LEFT:
                                cut |= step.block >= cut1
                            done_v = (i + 1 == last) & (g == GROUP - 1)
                            dk, dv, dk0, dv0 = step_with_keys(step, dk, dv, dk0, dv0, cut, pending, done_v, v_empty[kb],
                                                              record, scale_log2, scale, left, right, buf, bar, cid, c)
                        n_step += 1
                end_tile(dk, dv, dk0, dv0, desc_dk, desc_dv, tile, kb, n_step, buf, bar, cid, c)
                if PAIR:
                    n_idle = even_out(tile, n_step, bar, cid, c)
                if HOLD:
                    n_idle += (held & 2) // 2
                n_kv += 1  # noqa: SIM113
            if KEEP:
                tlx.fence("async_shared")
                tlx.barrier_arrive(full[cid])

        with tlx.async_task(num_warps=1, registers=24):
            load(desc_q, desc_do, desc_k, desc_v, work, buf, bar, c)

        with tlx.async_task(num_warps=1, registers=24):
            if KEEP:
                write_kept(desc_acc, work, buf, bar, c)
            elif SUMMED:
                write_summed(desc_dk, desc_dv, desc_acc, work, buf, bar, c)
            else:
                write(desc_dq, desc_dk, desc_dv, desc_acc, work, buf, bar, peer, c)
