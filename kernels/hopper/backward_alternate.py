"""The two consumers of the Hopper backward take turns at dQ: one computes a step's whole dQ, the other the next's.

Otherwise each computes half of every dQ: two matmuls of 64 columns, which read dS twice from shared memory, and each
waits for the other's dS in every step. One matmul of 128 columns reads it once, and only who computes dQ waits, so that
the two drift apart and fill each other's gaps. With dQ and dS twice, not in pairs; at D = 64, where half of dQ would
be 32 columns, it is always so.

The dQ of a CTA's 1st, 3rd ... step is consumer 0's, that of the others consumer 1's. The other says that its dS is
written, and goes on.

    named barrier    arrives                             waits
    8 to 11          consumer 0 (8, 10) or 1 (9, 11)     the other, before the step's dQ
                     without dQ to do: dS is written
                     in the first stage, in the second
    12, 13           consumer 0 (12) or 1 (13) who had   the other, before a slot of the staging whose last use it
                     a tile's last dQ: it is staged      had no part in

Why dS may be written two steps later without asking: who computes dQ(n) writes its own dS(n+1) after it, and the other
waits for that before its dQ(n+1), so before its dS(n+2). In a step without keys for it a consumer does the same, its dS
being zeros, or nothing where dQ is its own. At a tile's end there are barriers 12 and 13.

Why those: a use of the staging is known by the phase of `ready` alone, so who waits for one must know that the one
before it in its stage was ready, or takes an older phase for it. Within a tile a consumer has every second use, of one
stage. At its end both have dV and dK to stage, and who had no part in the last dQ must not run ahead of it. They are
two, as a consumer that doesn't wait for the other's dS in a tile of one step could wait here before the other has
waited for the tile before, and its arrival be taken for the other's.

The part of dQ that comes from memory is added after the matmul: as what the accumulator starts from, it would have to
change its layout through 32 KB of shared memory.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_parts import DS_WRITTEN, load_partial, store_partial


@triton.jit
def is_mine(n_step, CID: tl.constexpr):
    """Whether the dQ of the CTA's ``n_step``-th step is consumer ``CID``'s."""
    return n_step % 2 == CID


@triton.jit
def _stage(left, right, step, buf, c: tl.constexpr):
    """Both halves of dQ to the staging."""
    if step.last:
        tlx.local_store(buf.final[0][2 * c.BLOCKS * step.stage], left.to(c.DTYPE))
        tlx.local_store(buf.final[1][2 * c.BLOCKS * step.stage], right.to(c.DTYPE))
    else:
        store_partial(buf.staging[0][c.BLOCKS * step.stage], left, c.HALF)
        store_partial(buf.staging[1][c.BLOCKS * step.stage], right, c.HALF)


@triton.jit
def whole_dq(step, side, buf, bar, BOTH: tl.constexpr, CID: tl.constexpr, c: tl.constexpr):
    """A step's dQ by one consumer, from the dS of both or of the other alone, to the staging. Tells nobody."""
    OTHER: tl.constexpr = 1 - CID
    tlx.named_barrier_wait(DS_WRITTEN + side // c.BLOCKS + OTHER, 256)
    dq = tl.zeros([64, c.D], tl.float32)
    for block in tl.static_range(c.BLOCKS):
        if BOTH:
            own = 2 * block + CID
            dq = tlx.async_dot(tlx.local_trans(buf.ds[side + own]), buf.kv[step.k + own], dq)
        other = 2 * block + OTHER
        dq = tlx.async_dot(tlx.local_trans(buf.ds[side + other]), buf.kv[step.k + other], dq)
    tlx.barrier_wait(bar.ready[2 * step.stage + 1], step.ready_phase)  # after the other, unless a partial dQ comes
    dq = tlx.async_dot_wait(0, dq)
    left, right = tl.split(tl.permute(tl.reshape(dq, [64, 2, c.HALF]), (0, 2, 1)))
    if step.partial:
        tlx.barrier_wait(bar.ready[2 * step.stage], step.ready_phase)
        left += load_partial(buf.staging[0][c.BLOCKS * step.stage], c.HALF)
        right += load_partial(buf.staging[1][c.BLOCKS * step.stage], c.HALF)
        _stage(left, right, step, buf, c)  # in both branches, as no layout of the sum would fit both
    else:
        _stage(left, right, step, buf, c)
