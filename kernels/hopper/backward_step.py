"""One step of the Hopper backward, for a consumer: a block of Q against a block of K and V; see `backward_kernel`."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_parts import load_partial, masked, opaque, store_partial


@triton.jit
def _partial(staging, ready, ready_phase, partial, c: tl.constexpr):
    """What dQ starts from: the partial that the writer has fetched, or with KEEP the consumer left there, or zeros."""
    if partial:
        if not c.KEEP:
            tlx.barrier_wait(ready, ready_phase)
        dq = load_partial(staging)
    else:
        dq = tl.zeros([64, 64], tl.float32)
    return dq


@triton.jit
def _hand_over(dq, staging, final, ready, ready_phase, full, last, scale, hand, LATE: tl.constexpr,
               c: tl.constexpr):
    """A consumer's part of dQ to the writer, as dq itself if no other tile adds to it, or of the pair's other CTA.

    LATE: the staging is free, and the next fence and arrival are the next step's, so that nobody waits for the stores.
    """
    if c.KEEP:
        store_partial(staging, dq)
    else:
        if not LATE:
            tlx.barrier_wait(ready, ready_phase)
        if c.PAIR:  # noqa: SIM102 (one is known to the compiler)
            if hand.take:
                dq += load_partial(staging)
                tlx.barrier_arrive(hand.taken, remote_cta_rank=hand.peer)
        if last:
            tlx.local_store(final, (dq * scale).to(c.DTYPE))
        else:
            store_partial(staging, dq)
        if not LATE:
            tlx.fence("async_shared")
            tlx.barrier_arrive(full)
        elif c.PAIR:  # noqa: SIM102 (one is known to the compiler)
            if hand.give:  # the other CTA waits for it
                tlx.fence("async_shared")
                tlx.barrier_arrive(full)


@triton.jit
def step_128(kv_smem, q, do, ds_smem, staging, final, lse_smem, delta_smem, k_slot, v_slot, q_full, q_empty, q_phase,
             do_full, do_empty, do_phase, ready, full, ready_phase, dk, dv, i, cut, last, partial, scale_log2, scale,
             record, left, right, even, pending, full_before, done_v, v_empty, hand, CID: tl.constexpr,
             c: tl.constexpr):
    """Step ``i`` of a walk at D = 128: 64 Q rows; a consumer computes half of dQ's columns.

    ``cut``: it needs the mask. ``partial``: the staging holds what its dQ is to be added to. ``pending``: the dQ of the
    step before is in the staging, and the writer of ``full_before`` hasn't been told yet (LATE).
    """
    tlx.barrier_wait(q_full, q_phase)
    lse = tlx.local_load(lse_smem)
    s = tlx.async_dot(kv_smem[k_slot + CID], tlx.local_trans(q))  # [64, 64]
    tlx.barrier_wait(do_full, do_phase)
    dp = tlx.async_dot(kv_smem[v_slot + CID], tlx.local_trans(do))  # [64, 64]
    s = tlx.async_dot_wait(1, s)
    p = tl.math.exp2(s * scale_log2 - lse[None, :])
    if cut:
        p = masked(p, i * 64, record, left, right, CID, 64, c.HAS_LEFT, c.HAS_RIGHT)
    p16 = p.to(c.DTYPE)
    dp = tlx.async_dot_wait(0, dp)
    if c.LATE:
        tlx.barrier_arrive(v_empty, pred=done_v)
    delta = tlx.local_load(delta_smem)
    ds = (p * (dp - delta[None, :])).to(c.DTYPE)
    dv = tlx.async_dot(p16, do, dv)  # [64, 128]
    side = even * 2 * (c.DS_STAGES - 1)
    side = opaque(side)
    if c.DS_STAGES == 1 and not c.KEEP:
        tlx.named_barrier_wait(12, 256)
    tlx.local_store(ds_smem[side + CID], ds)
    tlx.fence("async_shared")
    if c.LATE:
        tlx.barrier_arrive(full_before, pred=pending)
    if c.DK_FIRST:
        tlx.named_barrier_arrive(8 + side + CID, 256)
        dk = tlx.async_dot(ds, q, dk)  # [64, 128]
        tlx.named_barrier_wait(9 + side - CID, 256)
    else:
        tlx.named_barrier_wait(9, 256)
    dq = _partial(staging, ready, ready_phase, partial, c)
    k0 = tlx.local_slice(kv_smem[k_slot], [0, CID * 64], [64, 64])
    k1 = tlx.local_slice(kv_smem[k_slot + 1], [0, CID * 64], [64, 64])
    dq = tlx.async_dot(tlx.local_trans(ds_smem[side]), k0, dq)
    dq = tlx.async_dot(tlx.local_trans(ds_smem[side + 1]), k1, dq)
    if c.DK_FIRST:
        dv = tlx.async_dot_wait(3, dv)
        tlx.barrier_arrive(do_empty)
        dk = tlx.async_dot_wait(2, dk)
        tlx.barrier_arrive(q_empty)
        if c.LATE:
            tlx.barrier_wait(ready, ready_phase)
        dq = tlx.async_dot_wait(0, dq)
        _hand_over(dq, staging, final, ready, ready_phase, full, last, scale, hand, c.LATE, c)
    else:
        dk = tlx.async_dot(ds, q, dk)  # [64, 128]
        dv = tlx.async_dot_wait(3, dv)
        tlx.barrier_arrive(do_empty)
        if c.LATE:
            tlx.barrier_wait(ready, ready_phase)
        dq = tlx.async_dot_wait(1, dq)
        _hand_over(dq, staging, final, ready, ready_phase, full, last, scale, hand, c.LATE, c)
        dk = tlx.async_dot_wait(0, dk)
        tlx.barrier_arrive(q_empty)
    return dk, dv


@triton.jit
def step_64(kv_smem, q, do, ds_smem, staging, final, lse_smem, delta_smem, row_slot, k_slot, v_slot, q_full, q_empty,
            q_phase, do_full, do_empty, do_phase, ready, full, ready_phase, dk, dv, i, cut, last, partial, scale_log2,
            scale, record, left, right, even, pending, full_before, done_v, v_empty, hand, CID: tl.constexpr,
            c: tl.constexpr):
    """Step ``i`` of a walk at D = 64: 128 Q rows in two halves; a consumer computes one half's dQ."""
    q0 = tlx.local_slice(q, [0, 0], [64, 64])
    q1 = tlx.local_slice(q, [64, 0], [64, 64])
    do0 = tlx.local_slice(do, [0, 0], [64, 64])
    do1 = tlx.local_slice(do, [64, 0], [64, 64])
    tlx.barrier_wait(q_full, q_phase)
    s0 = tlx.async_dot(kv_smem[k_slot + CID], tlx.local_trans(q0))  # [64, 64], as all of them
    tlx.barrier_wait(do_full, do_phase)
    dp0 = tlx.async_dot(kv_smem[v_slot + CID], tlx.local_trans(do0))
    s1 = tlx.async_dot(kv_smem[k_slot + CID], tlx.local_trans(q1))
    lse0 = tlx.local_load(lse_smem[row_slot])
    s0 = tlx.async_dot_wait(2, s0)
    p0 = tl.math.exp2(s0 * scale_log2 - lse0[None, :])
    if cut:
        p0 = masked(p0, i * 128, record, left, right, CID, 128, c.HAS_LEFT, c.HAS_RIGHT)
    dp0 = tlx.async_dot_wait(1, dp0)
    delta0 = tlx.local_load(delta_smem[row_slot])
    ds0 = (p0 * (dp0 - delta0[None, :])).to(c.DTYPE)
    dp1 = tlx.async_dot(kv_smem[v_slot + CID], tlx.local_trans(do1))
    dv = tlx.async_dot(p0.to(c.DTYPE), do0, dv)
    dk = tlx.async_dot(ds0, q0, dk)
    lse1 = tlx.local_load(lse_smem[row_slot + 1])
    s1 = tlx.async_dot_wait(3, s1)
    p1 = tl.math.exp2(s1 * scale_log2 - lse1[None, :])
    if cut:
        p1 = masked(p1, i * 128 + 64, record, left, right, CID, 128, c.HAS_LEFT, c.HAS_RIGHT)
    dp1 = tlx.async_dot_wait(2, dp1)
    if c.LATE:
        tlx.barrier_arrive(v_empty, pred=done_v)
    delta1 = tlx.local_load(delta_smem[row_slot + 1])
    ds1 = (p1 * (dp1 - delta1[None, :])).to(c.DTYPE)
    dv = tlx.async_dot(p1.to(c.DTYPE), do1, dv)
    side = even * 4 * (c.DS_STAGES - 1)
    side = opaque(side)
    if c.DS_STAGES == 1:
        tlx.named_barrier_wait(12, 256)
    tlx.local_store(ds_smem[side + CID], ds0)
    tlx.local_store(ds_smem[side + 2 + CID], ds1)
    tlx.fence("async_shared")
    if c.LATE:
        tlx.barrier_arrive(full_before, pred=pending)
    tlx.named_barrier_wait(9, 256)
    dq = _partial(staging, ready, ready_phase, partial, c)
    dq = tlx.async_dot(tlx.local_trans(ds_smem[side + 2 * CID]), kv_smem[k_slot], dq)
    dq = tlx.async_dot(tlx.local_trans(ds_smem[side + 2 * CID + 1]), kv_smem[k_slot + 1], dq)
    dk = tlx.async_dot(ds1, q1, dk)
    dv = tlx.async_dot_wait(3, dv)
    tlx.barrier_arrive(do_empty)
    if c.LATE:
        tlx.barrier_wait(ready, ready_phase)
    dq = tlx.async_dot_wait(1, dq)
    _hand_over(dq, staging, final, ready, ready_phase, full, last, scale, hand, c.LATE, c)
    dk = tlx.async_dot_wait(0, dk)
    tlx.barrier_arrive(q_empty)
    return dk, dv


@triton.jit
def step_without_keys(kv_smem, ds_smem, staging, final, k_slot, q_full, q_empty, q_phase, do_full, do_empty, do_phase,
                      ready, full, ready_phase, last, partial, scale, even, hand, CID: tl.constexpr,
                      c: tl.constexpr):
    """A step for a consumer that has no keys in this tile: its dS is zeros, and only its part of dQ is left to do."""
    PARTS: tl.constexpr = 128 // c.D  # of dS
    tlx.barrier_wait(q_full, q_phase)
    tlx.barrier_arrive(q_empty)
    tlx.barrier_wait(do_full, do_phase)
    tlx.barrier_arrive(do_empty)
    side = even * 2 * PARTS * (c.DS_STAGES - 1)
    side = opaque(side)
    if c.DS_STAGES == 1 and not c.KEEP:
        tlx.named_barrier_wait(12, 256)
    for part in tl.static_range(PARTS):
        tlx.local_store(ds_smem[side + 2 * part + CID], tl.zeros([64, 64], c.DTYPE))
    tlx.fence("async_shared")
    if c.DK_FIRST and c.D == 128:
        tlx.named_barrier_arrive(8 + side + CID, 256)
        tlx.named_barrier_wait(9 + side - CID, 256)
    else:
        tlx.named_barrier_wait(9, 256)
    dq = _partial(staging, ready, ready_phase, partial, c)
    if c.D == 128:
        k0 = tlx.local_slice(kv_smem[k_slot], [0, CID * 64], [64, 64])
        dq = tlx.async_dot(tlx.local_trans(ds_smem[side]), k0, dq)
    else:
        dq = tlx.async_dot(tlx.local_trans(ds_smem[side + 2 * CID]), kv_smem[k_slot], dq)
    dq = tlx.async_dot_wait(0, dq)
    _hand_over(dq, staging, final, ready, ready_phase, full, last, scale, hand, False, c)
