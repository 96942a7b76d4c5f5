"""A block of Q stays with its CTA from one tile of an owned sequence to the next, where a serpentine walk turns.

The last step of a tile that *leaves* its block keeps Q, dO, lse and delta in their slots and its dQ in the staging: no
slot is given back, and the writer isn't told. The first step of the tile that *takes over* uses the same slots, of the
rings and of the staging, and adds its dQ to what stands there. What memory already has of this block's dQ is
fetched by the step that leaves, so that the sum is complete so far, and the step that takes over stores it, unless it
is the last and writes dq.

K and V of a tile that takes over have barriers of their own, the ones past the rings', as no Q and dO come with them.
dV and dK leave through the slot of the staging that the block doesn't have, one after the other. For that, uses of the
staging are counted as if there were two more: dV is the use after the step's, dK the third, and the step that takes
over the fourth, in whose slot the same phases of `ready` and `full` are due as in the use of the step that leaves.

A tile's record says so in `HOLDS` (`kernels.hopper.backward_schedule`): 1 takes over, 2 leaves, 4 and memory has a
partial dQ of the block that it leaves.
"""

import triton
import triton.language as tl


@triton.jit
def takes_over(held, i):
    """Whether step ``i`` of a tile finds its block in shared memory."""
    return (held & 1 != 0) & (i == 0)


@triton.jit
def leaves(held, i, steps):
    """Whether it leaves its block there."""
    return (held & 2 != 0) & (i == steps - 1)


@triton.jit
def fetches_to_leave(held, i, steps):
    """Whether it adds to a partial dQ in memory only because it leaves its block."""
    return (held & 4 != 0) & (i == steps - 1)


@triton.jit
def slot_of_step(n_step, n_held, take, STAGES: tl.constexpr, HOLD: tl.constexpr):
    """A step's slot in the ring of Q or dO, its full barrier and that barrier's phase.

    ``n_held``: steps so far that took over, this one among them if ``take``.
    """
    ring = n_step
    if HOLD:
        ring -= n_held
    slot = ring % STAGES
    full = slot
    phase = (ring // STAGES) & 1
    if HOLD:
        full = tl.where(take, STAGES, slot)
        phase = tl.where(take, (n_held - 1) & 1, phase)
    return slot, full, phase
