"""A step of the Hopper backward at D = 128 whose dQ is that of the step before, for a consumer; see `backward_kernel`.

In `kernels.hopper.backward_step` a consumer needs the other's dS of the same step, so that both do their exponentials
at the same time and leave the tensor cores idle. Here it needs the other's dS of the step before, and they may be half
a step apart. A tile's last dQ comes after its last step. Its first step has none to do, and works one out from whatever
is in dS, for nothing: a branch round a wgmma costs more.

    named barrier    arrives                               waits
    8 + s + c        consumer c: its dS is in slot s       the other, before the dQ of that step
    12 + s + c       consumer c: a dQ has read slot s      the other, before it writes its dS there

``s`` is 0 or 2, by the step; dS has two slots. At the start slot 2 is zeros, and slot 0 is free. With TURNS a consumer
waits for the other's dS earlier, at the start of a step: consumer 0 for that of the step before, consumer 1 for that of
this step. So one works on scores while the other is at its products.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_parts import masked, opaque
from kernels.hopper.backward_step import hand_over, partial_dq


@triton.jit
def begin_late(ds_smem, CID: tl.constexpr, DTYPE: tl.constexpr):
    """Before a consumer's first step."""
    tlx.local_store(ds_smem[2 + CID], tl.zeros([64, 64], DTYPE))
    tlx.fence("async_shared")
    tlx.named_barrier_arrive(10 + CID, 256)
    tlx.named_barrier_wait(11 - CID, 256)
    tlx.named_barrier_arrive(12 + CID, 256)


@triton.jit
def _dq_of(k_smem, ds_smem, k_slot, side, dq, CID: tl.constexpr):
    dq = tlx.async_dot(tlx.local_trans(ds_smem[side]), tlx.local_slice(k_smem[k_slot], [0, CID * 64], [64, 64]), dq)
    other = tlx.local_slice(k_smem[k_slot + 1], [0, CID * 64], [64, 64])
    return tlx.async_dot(tlx.local_trans(ds_smem[side + 1]), other, dq)


@triton.jit
def step_late(k_smem, v_smem, q, do, ds_smem, staging, final, lse_smem, delta_smem, k_slot, q_full, q_empty, q_phase,
              do_full, do_empty, do_phase, ready, full, ready_phase, dk, dv, i, cut, later, last, partial, scale_log2,
              scale, record, left, right, even, CID: tl.constexpr, DTYPE: tl.constexpr, TURNS: tl.constexpr,
              HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Step ``i`` of a walk: 64 Q rows. ``later``: the tile has had a step before it, whose dQ this does.

    Of that dQ: ``last``, ``partial``, ``ready``, ``full``, ``staging`` and ``final``; as in `step_128`.
    """
    side = even * 2
    side = opaque(side)
    before = 2 - side
    if TURNS:
        if CID == 1:
            tlx.named_barrier_wait(8 + side, 256)
        elif later:
            tlx.named_barrier_wait(9 + before, 256)
    tlx.barrier_wait(q_full, q_phase)
    s = tlx.async_dot(k_smem[k_slot + CID], tlx.local_trans(q))  # [64, 64]
    tlx.barrier_wait(do_full, do_phase)
    dp = tlx.async_dot(v_smem[k_slot + CID], tlx.local_trans(do))  # [64, 64]
    lse = tlx.local_load(lse_smem)
    s = tlx.async_dot_wait(1, s)
    p = tl.math.exp2(s * scale_log2 - lse[None, :])
    if cut:
        p = masked(p, i * 64, record, left, right, CID, 64, HAS_LEFT, HAS_RIGHT)
    p16 = p.to(DTYPE)
    dp = tlx.async_dot_wait(0, dp)
    delta = tlx.local_load(delta_smem)
    ds = (p * (dp - delta[None, :])).to(DTYPE)
    dv = tlx.async_dot(p16, do, dv)  # [64, 128]
    tlx.named_barrier_wait(13 + side - CID, 256)
    tlx.local_store(ds_smem[side + CID], ds)
    tlx.fence("async_shared")
    tlx.named_barrier_arrive(8 + side + CID, 256)
    dk = tlx.async_dot(ds, q, dk)  # [64, 128]
    if not TURNS:  # noqa: SIM102 (one is known to the compiler)
        if later:
            tlx.named_barrier_wait(9 + before - CID, 256)
    dq = partial_dq(staging, ready, ready_phase, partial, False)
    dq = _dq_of(k_smem, ds_smem, k_slot, before, dq, CID)
    dv = tlx.async_dot_wait(3, dv)
    tlx.barrier_arrive(do_empty)
    dk = tlx.async_dot_wait(2, dk)
    tlx.barrier_arrive(q_empty)
    dq = tlx.async_dot_wait(0, dq)
    tlx.named_barrier_arrive(12 + before + CID, 256)
    if later:
        hand_over(dq, staging, final, ready, ready_phase, full, last, scale, DTYPE, False)
    return dk, dv


@triton.jit
def end_late(k_smem, ds_smem, staging, final, k_slot, ready, full, ready_phase, some, last, partial, scale, even,
             CID: tl.constexpr, DTYPE: tl.constexpr, TURNS: tl.constexpr):
    """A tile's last dQ, if it has ``some`` step; its slot is given back by the next tile's first step."""
    side = even * 2
    side = opaque(side)
    if not TURNS or CID == 0:  # noqa: SIM102
        if some:
            tlx.named_barrier_wait(9 + side - CID, 256)
    dq = _dq_of(k_smem, ds_smem, k_slot, side, tl.zeros([64, 64], tl.float32), CID)
    dq = tlx.async_dot_wait(0, dq)
    if partial:  # not what dq starts from, which spills here
        tlx.barrier_wait(ready, ready_phase)
        dq += tlx.local_load(staging)
    if some:
        hand_over(dq, staging, final, ready, ready_phase, full, last, scale, DTYPE, False)
