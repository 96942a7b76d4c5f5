"""In which order the Hopper backward walks the blocks of Q of a tile, alone or as one of a pair (`backward_pair`)."""

import triton
import triton.language as tl

from kernels.hopper.backward_record import AFTER_ITSELF, BACK, K_ROW


@triton.jit
def _of_three(i, steps):
    """0, 1 or 2 in the last three steps of an odd number, else -1."""
    return tl.where((steps % 2 == 1) & (steps >= 3) & (i >= steps - 3), i - (steps - 3), -1)


@triton.jit
def order_in_pair(i, steps, role):
    """Which block of a walk comes in step ``i``; ``role``: 0 for a tile of one CTA, else the rank plus 1."""
    three = _of_three(i, steps)
    swapped = tl.where(three >= 0, steps - 3 + tl.where(three == 0, 2, three - 1), tl.minimum(i ^ 1, steps - 1))
    return tl.where(role == 2, swapped, i)


@triton.jit
def gives(i, steps, role):
    """Whether step ``i`` gives its dQ to the other CTA."""
    three = _of_three(i, steps)
    giving = tl.where(three >= 0, (three == 0) | ((three == 1) & (role == 1)), i % 2 == 0)
    return (role != 0) & giving & ((steps > 1) | (role == 1))


@triton.jit
def takes(i, steps, role):
    """Whether it takes the other's."""
    return (role != 0) & (i < steps) & (gives(i, steps, role) == 0)


@triton.jit
def taken_later(i, steps, role):
    """How many steps after step ``i`` the other CTA takes what is given in it."""
    three = _of_three(i, steps)
    return tl.where(steps == 1, 0, tl.where((three == 0) & (role == 2), 2, 1))


@triton.jit
def walks_back(record, c: tl.constexpr):
    """Whether a tile's walk over Q goes from its last block to its first: every second tile of an owned sequence.

    So what the tile before it touched last, and L2 still has, comes first.
    """
    back = tl.load(record + K_ROW) < 0
    if c.PAIR:
        back = tl.load(record + BACK) != 0
    elif c.SERPENTINE:
        back = (tl.load(record + K_ROW) // (128 * c.BLOCKS) & tl.load(record + AFTER_ITSELF)) == 1
    return back


@triton.jit
def block_of_step(i, steps, back, role, SERPENTINE: tl.constexpr, PAIR: tl.constexpr):
    """Which of its blocks of Q a tile's walk is at in step ``i``; ``role``: see `kernels.hopper.backward_pair`."""
    j = i
    if PAIR:
        j = order_in_pair(i, steps, role)
    if SERPENTINE:
        j = tl.where(back, steps - 1 - j, j)
    return j
