"""One step of the Hopper backward, for a consumer: a block of Q against a block of K and V; see `backward_kernel`."""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_alternate import is_mine, whole_dq
from kernels.hopper.backward_hold import fetches_to_leave, leaves, slot_of_step, takes_over
from kernels.hopper.backward_pair import Hand
from kernels.hopper.backward_parts import first_slot, load_partial, masked, opaque, store_partial
from kernels.hopper.backward_walk import block_of_step, gives, takes


class Step(NamedTuple):
    """Where a step is, which slots and barriers are its own, and what becomes of its dQ."""

    block: tl.tensor  # of Q, of the tile's walk
    q: tl.tensor  # slots
    do: tl.tensor
    k: tl.tensor
    stage: tl.tensor  # of the staging
    use: tl.tensor  # of the staging
    odd: tl.tensor  # 1 in every second step of the CTA
    mine: tl.tensor  # ALTERNATE: this consumer computes dQ
    q_full: tlx.mbarrier
    q_empty: tlx.mbarrier
    q_phase: tl.tensor
    do_full: tlx.mbarrier
    do_empty: tlx.mbarrier
    do_phase: tl.tensor
    ready: tlx.mbarrier
    full: tlx.mbarrier
    ready_phase: tl.tensor
    partial: tl.tensor  # the staging holds what dQ is to be added to
    last: tl.tensor  # dQ leaves as dq itself
    leave: tl.tensor  # the block of Q, and its dQ, stay for the CTA's next tile
    hand: Hand


@triton.jit
def step_of(i, n_step, tile, bar, peer, CID: tl.constexpr, c: tl.constexpr):
    """Step ``i`` of a tile's walk, the CTA's ``n_step``-th, as consumer ``CID`` does it."""
    take_over, leave = takes_over(tile.held, i), leaves(tile.held, i, tile.steps)
    qb, q_at, q_phase = slot_of_step(n_step, tile.n_held, take_over, c.NUM_Q, c.HOLD)
    db, do_at, do_phase = slot_of_step(n_step, tile.n_held, take_over, c.NUM_DO, c.HOLD)
    use = n_step + c.USES * tile.n_kv + tile.n_idle
    stage = 0 if c.KEEP else use % c.STAGES
    slot = 2 * stage + CID
    block = block_of_step(i, tile.steps, tile.back, tile.role, c.SERPENTINE, c.PAIR)
    hand = Hand(gives(i, tile.steps, tile.role), takes(i, tile.steps, tile.role), bar.taken[0], peer)
    partial, last = False, False
    if c.KEEP:
        partial = n_step > 0  # the sum so far
    elif not c.SUMMED:
        partial, last = block < tile.partials, block < tile.lasts
        if c.HOLD:
            partial |= take_over | fetches_to_leave(tile.held, i, tile.steps)
        if c.PAIR:
            partial &= hand.take == 0
            last &= hand.give == 0
    return Step(block, qb, db, first_slot(tile.n_kv, c.NUM_KV, c.LATE), stage, use, n_step % 2,
                is_mine(n_step, tile.alone, CID), bar.q_full[q_at], bar.q_empty[qb], q_phase, bar.do_full[do_at],
                bar.do_empty[db], do_phase, bar.ready[slot], bar.full[slot], (use // c.STAGES) & 1, partial, last,
                leave, hand)


@triton.jit
def _partial(step, buf, CID: tl.constexpr, c: tl.constexpr):
    """What dQ starts from: the partial that the writer has fetched, or with KEEP the consumer left there, or zeros."""
    if step.partial:
        if not c.KEEP:
            tlx.barrier_wait(step.ready, step.ready_phase)
        dq = load_partial(buf.staging[CID][step.stage])
    else:
        dq = tl.zeros([64, 64], tl.float32)
    return dq


@triton.jit
def _hand_over(dq, step, buf, LATE: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """A consumer's part of dQ to the writer, as dq itself if no other tile adds to it, or of the pair's other CTA.

    LATE: the staging is free, and the next fence and arrival are the next step's, so that nobody waits for the stores.
    """
    staging = buf.staging[CID][step.stage]
    if c.KEEP:
        store_partial(staging, dq)
    else:
        if not LATE:
            tlx.barrier_wait(step.ready, step.ready_phase)
        if c.PAIR and step.hand.take:
            dq += load_partial(staging)
            tlx.barrier_arrive(step.hand.taken, remote_cta_rank=step.hand.peer)
        if step.last:
            tlx.local_store(buf.final[CID][2 * step.stage], dq.to(c.DTYPE))
        else:
            store_partial(staging, dq)
        if not LATE or (c.PAIR and step.hand.give):  # or the other CTA waits for it
            tlx.fence("async_shared")
            tlx.barrier_arrive(step.full)


@triton.jit
def _give_back(empty, leave, c: tl.constexpr):
    """The slot of Q or dO, unless its block stays for the next tile."""
    if c.HOLD:
        tlx.barrier_arrive(empty, pred=leave == 0)
    else:
        tlx.barrier_arrive(empty)


@triton.jit
def step_128(step, dk, dv, v_slot, cut, pending, done_v, v_empty, record, scale_log2, scale, left, right, buf, bar,
             CID: tl.constexpr, c: tl.constexpr):
    """A step at D = 128: 64 Q rows; a consumer computes half of dQ's columns. Returns ``dk, dv``.

    ``cut``: it needs the mask. ``pending``: this consumer has put dQ of the step before in the staging, and hasn't told
    the writer yet; ``done_v``: it is the tile's last to need V (both LATE).
    """
    q = buf.q[0 if c.KEEP else step.q]
    do = buf.do[step.do]
    tlx.barrier_wait(step.q_full, step.q_phase)
    lse = tlx.local_load(buf.lse[step.q])
    s = tlx.async_dot(buf.kv[step.k + CID], tlx.local_trans(q))  # [64, 64]
    tlx.barrier_wait(step.do_full, step.do_phase)
    dp = tlx.async_dot(buf.kv[v_slot + CID], tlx.local_trans(do))  # [64, 64]
    s = tlx.async_dot_wait(1, s)
    p = tl.math.exp2(s * scale_log2 - lse[None, :])
    if cut:
        p = masked(p, step.block * 64, record, left, right, CID, 64, c.HAS_LEFT, c.HAS_RIGHT)
    p16 = p.to(c.DTYPE)
    dp = tlx.async_dot_wait(0, dp)
    if c.LATE:
        tlx.barrier_arrive(v_empty, pred=done_v)
    delta = tlx.local_load(buf.delta[step.q])
    ds = (p * (dp * scale - delta[None, :])).to(c.DTYPE)
    dv = tlx.async_dot(p16, do, dv)  # [64, 128]
    before = (step.use + c.STAGES - 1) % c.STAGES * 2
    side = step.odd * 2 * (c.DS_STAGES - 1)
    side = opaque(side)
    if c.DS_STAGES == 1 and not c.KEEP:
        tlx.named_barrier_wait(12, 256)
    tlx.local_store(buf.ds[side + CID], ds)
    tlx.fence("async_shared")
    if c.ALTERNATE:
        if step.mine == 0:
            for half in tl.static_range(2):
                tlx.barrier_arrive(bar.full[before + half], pred=pending)
            tlx.named_barrier_arrive(8 + side + CID, 256)
        dk = tlx.async_dot(ds, q, dk)  # [64, 128]
        dv = tlx.async_dot_wait(1, dv)
        _give_back(step.do_empty, step.leave, c)
        dk = tlx.async_dot_wait(0, dk)  # no matmul may be under way where code branches
        _give_back(step.q_empty, step.leave, c)
        if step.mine:
            whole_dq(step, side, buf, bar, True, CID, c)
    else:
        if c.LATE:
            tlx.barrier_arrive(bar.full[before + CID], pred=pending)
        if c.DK_FIRST:
            tlx.named_barrier_arrive(8 + side + CID, 256)
            dk = tlx.async_dot(ds, q, dk)  # [64, 128]
            tlx.named_barrier_wait(9 + side - CID, 256)
        else:
            tlx.named_barrier_wait(9, 256)
        dq = _partial(step, buf, CID, c)
        k0 = tlx.local_slice(buf.kv[step.k], [0, CID * 64], [64, 64])
        k1 = tlx.local_slice(buf.kv[step.k + 1], [0, CID * 64], [64, 64])
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side]), k0, dq)
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side + 1]), k1, dq)
        if c.DK_FIRST:
            dv = tlx.async_dot_wait(3, dv)
            _give_back(step.do_empty, step.leave, c)
            dk = tlx.async_dot_wait(2, dk)
            _give_back(step.q_empty, step.leave, c)
            if c.LATE:
                tlx.barrier_wait(step.ready, step.ready_phase)
            dq = tlx.async_dot_wait(0, dq)
            _hand_over(dq, step, buf, c.LATE, CID, c)
        else:
            dk = tlx.async_dot(ds, q, dk)  # [64, 128]
            dv = tlx.async_dot_wait(3, dv)
            _give_back(step.do_empty, step.leave, c)
            if c.LATE:
                tlx.barrier_wait(step.ready, step.ready_phase)
            dq = tlx.async_dot_wait(1, dq)
            _hand_over(dq, step, buf, c.LATE, CID, c)
            dk = tlx.async_dot_wait(0, dk)
            _give_back(step.q_empty, step.leave, c)
    return dk, dv


@triton.jit
def step_64(step, dk, dv, v_slot, cut, pending, done_v, v_empty, record, scale_log2, scale, left, right, buf, bar,
            CID: tl.constexpr, c: tl.constexpr):
    """The same at D = 64: 128 Q rows in two halves; a consumer computes one half's dQ."""
    q = buf.q[step.q]
    do = buf.do[step.do]
    q0 = tlx.local_slice(q, [0, 0], [64, 64])
    q1 = tlx.local_slice(q, [64, 0], [64, 64])
    do0 = tlx.local_slice(do, [0, 0], [64, 64])
    do1 = tlx.local_slice(do, [64, 0], [64, 64])
    tlx.barrier_wait(step.q_full, step.q_phase)
    s0 = tlx.async_dot(buf.kv[step.k + CID], tlx.local_trans(q0))  # [64, 64], as all of them
    tlx.barrier_wait(step.do_full, step.do_phase)
    dp0 = tlx.async_dot(buf.kv[v_slot + CID], tlx.local_trans(do0))
    s1 = tlx.async_dot(buf.kv[step.k + CID], tlx.local_trans(q1))
    lse0 = tlx.local_load(buf.lse[2 * step.q])
    s0 = tlx.async_dot_wait(2, s0)
    p0 = tl.math.exp2(s0 * scale_log2 - lse0[None, :])
    if cut:
        p0 = masked(p0, step.block * 128, record, left, right, CID, 128, c.HAS_LEFT, c.HAS_RIGHT)
    dp0 = tlx.async_dot_wait(1, dp0)
    delta0 = tlx.local_load(buf.delta[2 * step.q])
    ds0 = (p0 * (dp0 * scale - delta0[None, :])).to(c.DTYPE)
    dp1 = tlx.async_dot(buf.kv[v_slot + CID], tlx.local_trans(do1))
    dv = tlx.async_dot(p0.to(c.DTYPE), do0, dv)
    dk = tlx.async_dot(ds0, q0, dk)
    lse1 = tlx.local_load(buf.lse[2 * step.q + 1])
    s1 = tlx.async_dot_wait(3, s1)
    p1 = tl.math.exp2(s1 * scale_log2 - lse1[None, :])
    if cut:
        p1 = masked(p1, step.block * 128 + 64, record, left, right, CID, 128, c.HAS_LEFT, c.HAS_RIGHT)
    dp1 = tlx.async_dot_wait(2, dp1)
    if c.LATE:
        tlx.barrier_arrive(v_empty, pred=done_v)
    delta1 = tlx.local_load(buf.delta[2 * step.q + 1])
    ds1 = (p1 * (dp1 * scale - delta1[None, :])).to(c.DTYPE)
    dv = tlx.async_dot(p1.to(c.DTYPE), do1, dv)
    before = (step.use + c.STAGES - 1) % c.STAGES * 2
    side = step.odd * 4 * (c.DS_STAGES - 1)
    side = opaque(side)
    if c.DS_STAGES == 1:
        tlx.named_barrier_wait(12, 256)
    tlx.local_store(buf.ds[side + CID], ds0)
    tlx.local_store(buf.ds[side + 2 + CID], ds1)
    tlx.fence("async_shared")
    if c.LATE:
        tlx.barrier_arrive(bar.full[before + CID], pred=pending)
    tlx.named_barrier_wait(9, 256)
    dq = _partial(step, buf, CID, c)
    dq = tlx.async_dot(tlx.local_trans(buf.ds[side + 2 * CID]), buf.kv[step.k], dq)
    dq = tlx.async_dot(tlx.local_trans(buf.ds[side + 2 * CID + 1]), buf.kv[step.k + 1], dq)
    dk = tlx.async_dot(ds1, q1, dk)
    dv = tlx.async_dot_wait(3, dv)
    _give_back(step.do_empty, step.leave, c)
    if c.LATE:
        tlx.barrier_wait(step.ready, step.ready_phase)
    dq = tlx.async_dot_wait(1, dq)
    _hand_over(dq, step, buf, c.LATE, CID, c)
    dk = tlx.async_dot_wait(0, dk)
    _give_back(step.q_empty, step.leave, c)
    return dk, dv


@triton.jit
def step_without_keys(step, buf, bar, CID: tl.constexpr, c: tl.constexpr):
    """A step for consumer 1 where it has no keys: only its part of dQ is left to do, or with ALTERNATE all of dQ."""
    PARTS: tl.constexpr = 128 // c.D  # of dS
    side = step.odd * 2 * PARTS * (c.DS_STAGES - 1)
    side = opaque(side)
    tlx.barrier_wait(step.q_full, step.q_phase)
    tlx.barrier_wait(step.do_full, step.do_phase)
    if c.ALTERNATE:
        whole_dq(step, side, buf, bar, False, CID, c)
        tlx.fence("async_shared")
        for half in tl.static_range(2):
            tlx.barrier_arrive(bar.full[2 * step.stage + half])
        tlx.barrier_arrive(step.q_empty)
        tlx.barrier_arrive(step.do_empty)
    else:
        tlx.barrier_arrive(step.q_empty)
        tlx.barrier_arrive(step.do_empty)
        _half_without_keys(step, side, buf, CID, c)


@triton.jit
def _half_without_keys(step, side, buf, CID: tl.constexpr, c: tl.constexpr):
    PARTS: tl.constexpr = 128 // c.D
    if c.DS_STAGES == 1 and not c.KEEP:
        tlx.named_barrier_wait(12, 256)
    for part in tl.static_range(PARTS):
        tlx.local_store(buf.ds[side + 2 * part + CID], tl.zeros([64, 64], c.DTYPE))
    tlx.fence("async_shared")
    if c.DK_FIRST and c.D == 128:
        tlx.named_barrier_arrive(8 + side + CID, 256)
        tlx.named_barrier_wait(9 + side - CID, 256)
    else:
        tlx.named_barrier_wait(9, 256)
    dq = _partial(step, buf, CID, c)
    if c.D == 128:
        k0 = tlx.local_slice(buf.kv[step.k], [0, CID * 64], [64, 64])
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side]), k0, dq)
    else:
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side + 2 * CID]), buf.kv[step.k], dq)
    dq = tlx.async_dot_wait(0, dq)
    _hand_over(dq, step, buf, False, CID, c)
