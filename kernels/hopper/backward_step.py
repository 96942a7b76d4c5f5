"""One step of the Hopper backward, for a consumer: a block of Q against a block of K and V; see `backward_kernel`."""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_alternate import is_mine, whole_dq
from kernels.hopper.backward_hold import fetches_to_leave, leaves, slot_of_step, takes_over
from kernels.hopper.backward_pair import Hand
from kernels.hopper.backward_parts import (
    DS_READ,
    DS_WRITTEN,
    first_slot,
    load_partial,
    masked,
    opaque,
    slot_of_v,
    store_partial,
)
from kernels.hopper.backward_walk import block_of_step, gives, takes


class Step(NamedTuple):
    """Where a step is, which slots and barriers are its own, and what becomes of its dQ."""

    block: tl.tensor  # of Q, of the tile's walk
    two: tl.tensor  # D = 64: 1 if this consumer has two blocks of keys, else 0
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
        partial = n_step > 0
    elif not c.SUMMED:
        partial, last = block < tile.partials, block < tile.lasts
        if c.HOLD:
            partial |= take_over | fetches_to_leave(tile.held, i, tile.steps)
        if c.PAIR:
            partial &= hand.take == 0
            last &= hand.give == 0
    return Step(block, tile.two, qb, db, first_slot(tile.n_kv, c.NUM_KV, c.LATE, c.BLOCKS), stage, use, n_step % 2,
                is_mine(n_step, CID), bar.q_full[q_at], bar.q_empty[qb], q_phase, bar.do_full[do_at],
                bar.do_empty[db], do_phase, bar.ready[slot], bar.full[slot], (use // c.STAGES) & 1, partial, last,
                leave, hand)


@triton.jit
def told_later(g, i, tile, c: tl.constexpr):
    """LATE: whether dQ of the step before step ``i`` of query head ``g`` is staged, and the writer hasn't been told."""
    pending = g + i
    pending = opaque(pending)  # else the first step becomes a copy of its own
    pending = pending > 0
    if c.PAIR:
        pending &= gives(i - 1, tile.steps, tile.role) == 0
    return pending


@triton.jit
def _start(step, buf, CID: tl.constexpr, c: tl.constexpr):
    """What a consumer's part of dQ starts from: what the writer has fetched, or with KEEP the sum so far, or zeros.

    SKIP: always zeros, as where the step itself is in a branch the load doesn't take on the accumulator's layout.
    """
    if not c.SKIP and step.partial:
        if not c.KEEP:
            tlx.barrier_wait(step.ready, step.ready_phase)
        dq = load_partial(buf.staging[CID][step.stage], c.HALF)
    else:
        dq = tl.zeros([64, 64], tl.float32)
    return dq


@triton.jit
def _finish(dq, step, buf, CID: tl.constexpr, c: tl.constexpr):
    """A consumer's part of dQ to the writer. SKIP: after what the writer has fetched is added."""
    if c.SKIP and step.partial:
        tlx.barrier_wait(step.ready, step.ready_phase)
        dq += load_partial(buf.staging[CID][step.stage], c.HALF)
    _hand_over(dq, step, buf, CID, c)


@triton.jit
def _hand_over(dq, step, buf, CID: tl.constexpr, c: tl.constexpr):
    """A consumer's part of dQ to the writer, as dq itself if no other tile adds to it, or of the pair's other CTA.

    LATE: the staging is free, and the next fence and arrival are the next step's, so that nobody waits for the stores.
    """
    staging = buf.staging[CID][step.stage]
    if c.KEEP:
        store_partial(staging, dq, c.HALF)
    else:
        if not c.LATE:
            tlx.barrier_wait(step.ready, step.ready_phase)
        if c.PAIR and step.hand.take:
            dq += load_partial(staging, c.HALF)
            tlx.barrier_arrive(step.hand.taken, remote_cta_rank=step.hand.peer)
        if step.last:
            tlx.local_store(buf.final[CID][2 * step.stage], dq.to(c.DTYPE))
        else:
            store_partial(staging, dq, c.HALF)
        if not c.LATE or (c.PAIR and step.hand.give):  # or the other CTA waits for it
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
def step_with_keys(step, dk, dv, dk0, dv0, cut, pending, done_v, v_empty, record, scale_log2, scale, left, right, buf,
                   bar, CID: tl.constexpr, c: tl.constexpr):
    """A step in which keys of this consumer are visible. Returns ``dk, dv, dk0, dv0``.

    ``dk0`` and ``dv0`` are of the first of two blocks of keys (D = 64, `Tile.two`), ``dk`` and ``dv`` of the last.
    ``cut``: it needs the mask. ``pending``: this consumer has put dQ of the step before in the staging, and hasn't told
    the writer yet; ``done_v``: it is the tile's last to need V (both LATE).
    """
    q = buf.q[0 if c.KEEP else step.q]
    do = buf.do[step.do]
    v_slot = slot_of_v(step.k, c)
    before = (step.use + c.STAGES - 1) % c.STAGES * 2
    side = step.odd * 2 * c.BLOCKS * (c.DS_STAGES - 1)  # of dS
    side = opaque(side)
    tlx.barrier_wait(step.q_full, step.q_phase)
    last = 2 * step.two + CID  # block of keys
    if c.BLOCKS == 2 and step.two != 0:
        s0 = tlx.async_dot(buf.kv[step.k + CID], tlx.local_trans(q))  # [64, 64]
        tlx.barrier_wait(step.do_full, step.do_phase)
        dp0 = tlx.async_dot(buf.kv[v_slot + CID], tlx.local_trans(do))  # [64, 64]
        s0 = tlx.async_dot_wait(1, s0)
        lse0 = tlx.local_load(buf.lse[step.q])
        p0 = tl.math.exp2(s0 * scale_log2 - lse0[None, :])
        if cut:
            p0 = masked(p0, step.block, record, left, right, CID, c)
        dp0 = tlx.async_dot_wait(0, dp0)
        delta0 = tlx.local_load(buf.delta[step.q])
        ds0 = (p0 * (dp0 * scale - delta0[None, :])).to(c.DTYPE)
        dv0 = tlx.async_dot(p0.to(c.DTYPE), do, dv0)  # [64, D]
        dk0 = tlx.async_dot(ds0, q, dk0)  # [64, D]
        tlx.local_store(buf.ds[side + CID], ds0)
        dv0 = tlx.async_dot_wait(1, dv0)
        dk0 = tlx.async_dot_wait(0, dk0)
    elif c.BLOCKS == 2:
        tlx.local_store(buf.ds[side + 2 + CID], tl.zeros([64, 64], c.DTYPE))
    lse = tlx.local_load(buf.lse[step.q])
    s = tlx.async_dot(buf.kv[step.k + last], tlx.local_trans(q))  # [64, 64]
    tlx.barrier_wait(step.do_full, step.do_phase)
    dp = tlx.async_dot(buf.kv[v_slot + last], tlx.local_trans(do))  # [64, 64]
    s = tlx.async_dot_wait(1, s)
    p = tl.math.exp2(s * scale_log2 - lse[None, :])
    if cut:
        p = masked(p, step.block, record, left, right, last, c)
    p16 = p.to(c.DTYPE)
    dp = tlx.async_dot_wait(0, dp)
    if c.LATE:
        tlx.barrier_arrive(v_empty, pred=done_v)
    delta = tlx.local_load(buf.delta[step.q])
    ds = (p * (dp * scale - delta[None, :])).to(c.DTYPE)
    dv = tlx.async_dot(p16, do, dv)  # [64, D]
    if c.DS_STAGES == 1 and not c.KEEP:
        tlx.named_barrier_wait(DS_READ, 256)
    tlx.local_store(buf.ds[side + last], ds)
    tlx.fence("async_shared")
    if c.ALTERNATE:
        if step.mine == 0:
            for half in tl.static_range(2):
                tlx.barrier_arrive(bar.full[before + half], pred=pending)
            tlx.named_barrier_arrive(DS_WRITTEN + side // c.BLOCKS + CID, 256)
        dk = tlx.async_dot(ds, q, dk)  # [64, D]
        dv = tlx.async_dot_wait(1, dv)
        _give_back(step.do_empty, step.leave, c)
        dk = tlx.async_dot_wait(0, dk)  # no matmul may be under way where code branches
        _give_back(step.q_empty, step.leave, c)
        if step.mine:
            whole_dq(step, side, buf, bar, True, CID, c)
    else:
        if c.LATE:
            tlx.barrier_arrive(bar.full[before + CID], pred=pending)
        tlx.named_barrier_arrive(DS_WRITTEN + side + CID, 256)
        dk = tlx.async_dot(ds, q, dk)  # [64, D]
        tlx.named_barrier_wait(DS_WRITTEN + side + 1 - CID, 256)
        dq = _start(step, buf, CID, c)
        k0 = tlx.local_slice(buf.kv[step.k], [0, CID * 64], [64, 64])
        k1 = tlx.local_slice(buf.kv[step.k + 1], [0, CID * 64], [64, 64])
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side]), k0, dq)
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side + 1]), k1, dq)
        dv = tlx.async_dot_wait(3, dv)
        _give_back(step.do_empty, step.leave, c)
        dk = tlx.async_dot_wait(2, dk)
        _give_back(step.q_empty, step.leave, c)
        if c.LATE:
            tlx.barrier_wait(step.ready, step.ready_phase)
        dq = tlx.async_dot_wait(0, dq)
        _finish(dq, step, buf, CID, c)
    return dk, dv, dk0, dv0


@triton.jit
def step_without_keys(step, pending, buf, bar, CID: tl.constexpr, c: tl.constexpr):
    """A step in which no key of this consumer is visible: only its part of dQ is left to do."""
    OTHER: tl.constexpr = 1 - CID
    before = (step.use + c.STAGES - 1) % c.STAGES * 2
    side = step.odd * 2 * c.BLOCKS * (c.DS_STAGES - 1)
    side = opaque(side)
    tlx.barrier_wait(step.q_full, step.q_phase)
    tlx.barrier_wait(step.do_full, step.do_phase)
    _give_back(step.do_empty, step.leave, c)
    _give_back(step.q_empty, step.leave, c)
    if c.ALTERNATE and step.mine:
        whole_dq(step, side, buf, bar, False, CID, c)
    else:
        if c.DS_STAGES == 1:
            tlx.named_barrier_wait(DS_READ, 256)
        for block in tl.static_range(c.BLOCKS):
            tlx.local_store(buf.ds[side + 2 * block + CID], tl.zeros([64, 64], c.DTYPE))
        tlx.fence("async_shared")
        if c.ALTERNATE:
            for half in tl.static_range(2):
                tlx.barrier_arrive(bar.full[before + half], pred=pending)
            tlx.named_barrier_arrive(DS_WRITTEN + side // c.BLOCKS + CID, 256)
        else:
            if c.LATE:
                tlx.barrier_arrive(bar.full[before + CID], pred=pending)
            tlx.named_barrier_arrive(DS_WRITTEN + side + CID, 256)
            tlx.named_barrier_wait(DS_WRITTEN + side + OTHER, 256)
            dq = tl.zeros([64, 64], tl.float32)
            k = tlx.local_slice(buf.kv[step.k + OTHER], [0, CID * 64], [64, 64])
            dq = tlx.async_dot(tlx.local_trans(buf.ds[side + OTHER]), k, dq)
            if c.LATE:
                tlx.barrier_wait(step.ready, step.ready_phase)
            dq = tlx.async_dot_wait(0, dq)
            _finish(dq, step, buf, CID, c)
