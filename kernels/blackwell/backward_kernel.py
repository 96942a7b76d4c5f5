"""TLX jagged flash attention, backward, for Blackwell (sm_100a): the warp-specialised kernel.

A CTA is persistent. A tile is one block of 128 KV rows of one (sequence, KV head); its steps are the blocks of Q that
see it, for each query head of the group. Per step: S^T = K Q^T, P^T = exp2(scale S^T - lse), dP^T = V dO^T,
dS^T = P^T (dP^T - delta), dV += P^T dO, dK += dS^T Q, dQ = dS K. Operands are 16 bits, accumulators fp32 in tensor
memory.

    role       warps         registers  does                                                          file
    compute    8 (default)   168        P, dS; at a tile's end dV and dK to memory                    backward_compute
    reduction  4             96         dQ to memory: reduce-adds, or dq itself                       backward_reduce
    MMA        1             80         issues all matmuls                                            backward_mma
    load       1             80         TMA loads of K, V, Q, dO; bulk loads of lse and delta         backward_load

    shared memory  blocks     holds
    k, v           NUM_KV     [128, D]; at the tile's end dK and dV on their way out, 64 columns each
    q, do          NUM_Q/_DO  [BLOCK_M, D]
    ds             1          [128, BLOCK_M], dS^T, for dQ
    staging        STAGES     [BLOCK_M, 32] fp32, or in 16 bits if it is dq itself
    lse, delta     1, 2       [64] fp32, negated; two of these where BLOCK_M is 128

    tensor memory, columns   BLOCK_M 64       BLOCK_M 128      BLOCK_M 128, D = 64
    S^T, then P^T            0-63             0-127            0-127
    dP^T, then dS^T          64-127           128-255          128-255
    dV, dK                   D each           128 each         64 each
    dQ                       D                that of dP^T     64

    barrier        completed by                              waited for by
    k_full, v_full the TMA's bytes                           MMA
    kv_empty       compute: dV and dK have left the slot     load
    q_full/do_full the TMA's bytes                           MMA
    q_empty        commit of dK                              load
    do_empty       commit of dV                              load
    lse/delta_full the bulk copy's bytes                     compute
    lse/delta_empty  compute, having used them               load
    s_full         commit of S                               compute
    p_full         compute: P is in tensor memory, S read    MMA, before dV (and all that follows it)
    dp_full        commit of dP, so dQ(n - 1) is done too    compute, before it writes dS
    ds_tmem_full   compute: dS is in tensor memory           MMA, before dK
    ds_full        compute: dS is in shared memory           MMA, before dQ
    dq_full        commit of dQ                              reduction
    dq_empty       reduction, having read dQ                 MMA, before the next dQ; if they share columns, before dP
    partial_full   bytes of partial dQ from memory           reduction
    dv_full        commit, after a tile's last dV            compute
    dk_full        commit, after a tile's last dK and dQ     compute; K is free then
    named 13       all compute warps of a pair wrote dS      all, before one thread says so to the relay
    named 12       all reduction warps have read partial dQ  all, before dq takes its slot
    named 10, 11   all compute warps have read S, dP         all, before they write P, dS to the same columns

Tensor memory of S, P, dP, dS, dV and dK needs no empty barriers: see the order of issue in `backward_mma`, and compute
reads dV and dK of a tile before it writes the next tile's first P, which the first matmul into dV waits for.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.backward_compute import compute
from kernels.blackwell.backward_load import load
from kernels.blackwell.backward_mma import multiply
from kernels.blackwell.backward_pair import allocate_pair, load_pair, multiply_pair, relay
from kernels.blackwell.backward_reduce import reduce
from kernels.blackwell.backward_walk import (
    BLOCK_N,
    HALF,
    Barriers,
    Buffers,
    Config,
    Work,
    first_tile,
    next_tile,
)


@triton.jit(do_not_specialize=["num_blocks", "kv_stride", "left", "right"])
def jagged_backward(desc_q, desc_do, desc_k, desc_v, desc_q_rows, desc_do_rows, desc_k_columns, desc_dq, desc_dk,
                    desc_dv, desc_acc, dk, dv, rows, tiles, bounds, num_blocks, kv_stride, scale_log2, scale, left,
                    right, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, D: tl.constexpr, NUM_Q: tl.constexpr,
                    NUM_DO: tl.constexpr, NUM_KV: tl.constexpr, STAGES: tl.constexpr, COLUMNS: tl.constexpr,
                    RELEASE: tl.constexpr, PEEL: tl.constexpr, WARP_BAR: tl.constexpr, PACKED: tl.constexpr,
                    CLC: tl.constexpr, PAIR: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """See the table at the top of the file; `kernels.blackwell.backward_options` says what each switch does.

    ``tiles`` int32 [T, 24] as `kernels.hopper.backward_schedule` makes it; CTA (or pair) ``p`` does tiles ``bounds[p]``
    to ``bounds[p + 1]``, with CLC tile ``p`` and what it draws. ``rows`` fp32 [num_heads_q, num_blocks, 2, BLOCK_M]:
    -lse * log2(e) and -delta, -inf and 0 where a block of Q has no row. ``desc_acc`` is fp32 [rows, D] of partial dQ,
    in blocks of BLOCK_M rows. ``dk`` and ``dv`` (``kv_stride`` elements a row) are for tiles without steps, which are
    zero. ``desc_*_rows`` and ``desc_k_columns`` are those of PAIR, see `kernels.blackwell.backward_pair`.
    """
    DTYPE: tl.constexpr = tlx.dtype_of(desc_q)
    CTAS: tl.constexpr = 2 if PAIR else 1
    SHIFT: tl.constexpr = 1 if PAIR else 0  # cluster launch control numbers a pair's CTAs apart
    ALIAS_DQ: tl.constexpr = BLOCK_M == 128 and D == 128
    c: tl.constexpr = Config(GROUP, BLOCK_M, D, NUM_Q, NUM_DO, NUM_KV, STAGES, COLUMNS, RELEASE, PEEL, PACKED, CLC,
                             PAIR, ALIAS_DQ, HAS_LEFT, HAS_RIGHT, DTYPE)
    work = Work(tiles, bounds, rows, num_blocks, scale_log2, scale, left, right)

    k = tlx.local_alloc((BLOCK_N, D), DTYPE, NUM_KV)
    v = tlx.local_alloc((BLOCK_N, D), DTYPE, NUM_KV)
    q = tlx.local_alloc((BLOCK_M, D // CTAS), DTYPE, NUM_Q)
    do = tlx.local_alloc((BLOCK_M, D // CTAS), DTYPE, NUM_DO)
    ds = tlx.local_alloc((BLOCK_N * CTAS, BLOCK_M // CTAS), DTYPE, 1)
    staging = tlx.local_alloc((BLOCK_M, COLUMNS), tl.float32, STAGES)
    final = tlx.local_alloc((BLOCK_M, COLUMNS), DTYPE, 2 * STAGES, reuse=staging)
    lse = tlx.local_alloc((HALF,), tl.float32, BLOCK_M // HALF)
    delta = tlx.local_alloc((HALF,), tl.float32, 2 * BLOCK_M // HALF)

    s_columns = tlx.storage_alias_spec(storage=tlx.storage_kind.tmem)
    dp_columns = tlx.storage_alias_spec(storage=tlx.storage_kind.tmem)
    s_tmem = tlx.local_alloc((BLOCK_N, BLOCK_M), tl.float32, 1, tlx.storage_kind.tmem, reuse=s_columns)
    p_tmem = tlx.local_alloc((BLOCK_N, BLOCK_M), DTYPE, 1, tlx.storage_kind.tmem, reuse=s_columns)
    dp_tmem = tlx.local_alloc((BLOCK_N, BLOCK_M), tl.float32, 1, tlx.storage_kind.tmem, reuse=dp_columns)
    ds_tmem = tlx.local_alloc((BLOCK_N, BLOCK_M), DTYPE, 1, tlx.storage_kind.tmem, reuse=dp_columns)
    dv_tmem = tlx.local_alloc((BLOCK_N, D), tl.float32, 1, tlx.storage_kind.tmem)
    dk_tmem = tlx.local_alloc((BLOCK_N, D), tl.float32, 1, tlx.storage_kind.tmem)
    if PAIR:
        dq_tmem = tlx.local_alloc((BLOCK_M // 2, D), tl.float32, 1, tlx.storage_kind.tmem, reuse=s_columns)
        dq_lanes = tlx.local_alloc((BLOCK_M, D // 2), tl.float32, 1, tlx.storage_kind.tmem, reuse=s_columns)
        s_columns.set_buffer_overlap(tlx.reuse_group(
            s_tmem,
            tlx.reuse_group(p_tmem, tlx.reuse_group(dq_tmem, dq_lanes, group_type=tlx.reuse_group_type.shared),
                            group_type=tlx.reuse_group_type.distinct),
            group_type=tlx.reuse_group_type.shared))
        dp_columns.set_buffer_overlap(tlx.reuse_group(dp_tmem, ds_tmem, group_type=tlx.reuse_group_type.shared))
        staging_part = tlx.local_alloc((HALF, COLUMNS), tl.float32, 2 * STAGES, reuse=staging)
        final_part = tlx.local_alloc((HALF, COLUMNS), DTYPE, 4 * STAGES, reuse=staging)
    else:
        s_columns.set_buffer_overlap(tlx.reuse_group(s_tmem, p_tmem, group_type=tlx.reuse_group_type.shared))
        if ALIAS_DQ:
            dq_tmem = tlx.local_alloc((BLOCK_M, D), tl.float32, 1, tlx.storage_kind.tmem, reuse=dp_columns)
            dp_columns.set_buffer_overlap(tlx.reuse_group(dp_tmem, ds_tmem, dq_tmem,
                                                          group_type=tlx.reuse_group_type.shared))
        else:
            dq_tmem = tlx.local_alloc((BLOCK_M, D), tl.float32, 1, tlx.storage_kind.tmem)
            dp_columns.set_buffer_overlap(tlx.reuse_group(dp_tmem, ds_tmem, group_type=tlx.reuse_group_type.shared))
        dq_lanes = dq_tmem
        staging_part = staging
        final_part = final
    buf = Buffers(k, v, q, do, ds, staging, final, staging_part, final_part, lse, delta, s_tmem, p_tmem,
                  dp_tmem, ds_tmem, dq_tmem, dq_lanes, dk_tmem, dv_tmem)

    k_full = tlx.alloc_barriers(NUM_KV)
    v_full = tlx.alloc_barriers(NUM_KV)
    kv_empty = tlx.alloc_barriers(NUM_KV)
    q_full = tlx.alloc_barriers(NUM_Q)
    q_empty = tlx.alloc_barriers(NUM_Q)
    do_full = tlx.alloc_barriers(NUM_DO)
    do_empty = tlx.alloc_barriers(NUM_DO)
    lse_full = tlx.alloc_barriers(1)
    delta_full = tlx.alloc_barriers(2)
    s_full = tlx.alloc_barriers(1)
    dp_full = tlx.alloc_barriers(1)
    dq_full = tlx.alloc_barriers(1)
    partial_full = tlx.alloc_barriers(1)
    dv_full = tlx.alloc_barriers(1)
    dk_full = tlx.alloc_barriers(1)
    if WARP_BAR:
        lse_empty = tlx.alloc_warp_barrier(1, num_warps=8)
        delta_empty = tlx.alloc_warp_barrier(2, num_warps=8)
        p_full = tlx.alloc_warp_barrier(1, num_warps=8)
        ds_tmem_full = tlx.alloc_warp_barrier(1, num_warps=8)
        ds_full = tlx.alloc_warp_barrier(1, num_warps=8)
        dq_empty = tlx.alloc_warp_barrier(1, num_warps=4)
    else:
        lse_empty = tlx.alloc_barriers(1)
        delta_empty = tlx.alloc_barriers(2)
        p_full = tlx.alloc_barriers(1, arrive_count=CTAS)
        ds_tmem_full = tlx.alloc_barriers(1, arrive_count=CTAS)
        ds_full = tlx.alloc_barriers(1, arrive_count=CTAS)
        dq_empty = tlx.alloc_barriers(1, arrive_count=CTAS)
    bar = Barriers(k_full, v_full, kv_empty, q_full, q_empty, do_full, do_empty, lse_full, lse_empty, delta_full,
                   delta_empty, s_full, p_full, dp_full, ds_tmem_full, ds_full, dq_full, dq_empty, partial_full,
                   dv_full, dk_full)

    if PAIR:
        pair = allocate_pair(ds, c)
        clc = tlx.clc_create_context(num_consumers=9) if CLC else work  # work: not used
        tlx.fence_mbarrier_init_cluster()
    else:
        pair = buf  # not used
        clc = tlx.clc_create_context(num_consumers=4) if CLC else work

    # the loops over tiles stand here, as a CLC context can't be passed to a function
    with tlx.async_tasks():
        with tlx.async_task("default"):
            n = 0
            n_kv = 0
            turn = 0
            tile, end = first_tile(bounds, c)
            while tile >= 0:
                n, n_kv = compute(tile, n, n_kv, desc_dk, desc_dv, dk, dv, kv_stride, work, buf, bar, pair, c)
                tile = tlx.clc_consumer(clc, turn & 1, multi_ctas=PAIR) >> SHIFT if CLC else next_tile(tile, end)
                turn += 1
        with tlx.async_task(num_warps=4, registers=96):
            n = 0
            fetches = 0
            turn = 0
            tile, end = first_tile(bounds, c)
            while tile >= 0:
                n, fetches = reduce(tile, n, fetches, desc_acc, desc_dq, work, buf, bar, c)
                tile = tlx.clc_consumer(clc, turn & 1, multi_ctas=PAIR) >> SHIFT if CLC else next_tile(tile, end)
                turn += 1
            tlx.async_descriptor_store_wait(0)
        with tlx.async_task(num_warps=1, registers=80):
            n = 0
            n_kv = 0
            turn = 0
            tile, end = first_tile(bounds, c)
            if PAIR:
                tile = tl.where(tlx.cluster_cta_rank() == 0, tile, -1)
            while tile >= 0:
                if PAIR:
                    n, n_kv = multiply_pair(tile, n, n_kv, work, buf, bar, pair, c)
                else:
                    n, n_kv = multiply(tile, n, n_kv, work, buf, bar, c)
                tile = tlx.clc_consumer(clc, turn & 1, multi_ctas=PAIR) >> SHIFT if CLC else next_tile(tile, end)
                turn += 1
        with tlx.async_task(num_warps=1, registers=80):
            n = 0
            n_kv = 0
            turn = 0
            tile, end = first_tile(bounds, c)
            while tile >= 0:
                if CLC:
                    tlx.clc_producer(clc, (turn & 1) ^ 1, multi_ctas=PAIR)
                if PAIR:
                    n, n_kv = load_pair(tile, n, n_kv, desc_q, desc_do, desc_q_rows, desc_do_rows, desc_k, desc_v,
                                        desc_k_columns, work, buf, bar, pair, c)
                else:
                    n, n_kv = load(tile, n, n_kv, desc_q, desc_do, desc_k, desc_v, work, buf, bar, c)
                tile = tlx.clc_consumer(clc, turn & 1, multi_ctas=PAIR) >> SHIFT if CLC else next_tile(tile, end)
                turn += 1
        if PAIR:
            with tlx.async_task(num_warps=1, registers=80):
                n = 0
                turn = 0
                tile, end = first_tile(bounds, c)
                while tile >= 0:
                    n = relay(tile, n, work, bar, pair, c)
                    tile = tlx.clc_consumer(clc, turn & 1, multi_ctas=PAIR) >> SHIFT if CLC else next_tile(tile, end)
                    turn += 1
