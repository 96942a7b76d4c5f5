"""What the roles of the Hopper backward share: switches, buffers, barriers, a CTA's round, the mask, ends of stores.

Every role derives its trip counts from the same tile record, so none of them is told how many steps there are.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_record import BLOCK, K_LEN, K_ROW, Q_LEN

ROWS = tl.constexpr(64)  # of a block of Q, and of K or V

# Named barriers of the two consumers; who arrives and who waits is in the table of `backward_kernel`.
DS_WRITTEN = tl.constexpr(8)  # by consumer 0, next 1; then in the second stage of dS
DS_READ = tl.constexpr(12)  # by both
LAST_STAGED = tl.constexpr(12)  # ALTERNATE: by consumer 0, next 1


class Config(NamedTuple):
    """Compile-time switches of one kernel; `kernels.hopper.backward_options` says what each does.

    LATE, USES: see `kernels.hopper.backward_kernel`. ONCE and AGAIN: L2's policy for what passes once, and for partial
    dQ. BLOCKS: of keys, a consumer's. HALF: columns of dQ, half of them.
    """

    GROUP: tl.constexpr
    D: tl.constexpr
    BLOCKS: tl.constexpr
    HALF: tl.constexpr
    NUM_Q: tl.constexpr
    NUM_DO: tl.constexpr
    NUM_KV: tl.constexpr
    STAGES: tl.constexpr
    DS_STAGES: tl.constexpr
    HAS_LEFT: tl.constexpr
    HAS_RIGHT: tl.constexpr
    KEEP: tl.constexpr
    COUNTED: tl.constexpr
    SKIP: tl.constexpr
    SERPENTINE: tl.constexpr
    TURNS: tl.constexpr
    PAIR: tl.constexpr
    HOLD: tl.constexpr
    ALL_SEEN: tl.constexpr
    SUMMED: tl.constexpr
    ALTERNATE: tl.constexpr
    LATE: tl.constexpr
    USES: tl.constexpr
    ONCE: tl.constexpr
    AGAIN: tl.constexpr
    DTYPE: tl.constexpr


class Work(NamedTuple):
    """A CTA's tiles, ``begin ... end - 1``, and what their records point to."""

    tiles: tl.tensor
    begin: tl.tensor
    end: tl.tensor
    rows: tl.tensor
    num_blocks: tl.tensor
    counters: tl.tensor


class Buffers(NamedTuple):
    """Shared memory; the table in `kernels.hopper.backward_kernel` says what each holds."""

    kv: tlx.buffered_tensor
    q: tlx.buffered_tensor
    do: tlx.buffered_tensor
    ds: tlx.buffered_tensor
    staging: tuple  # of consumer 0 and 1: apart, or the compiler puts a barrier between stores to both
    final: tuple  # the staging as [64, D / 2] of dq, 2 BLOCKS to a stage
    dkv: tuple  # the staging as [64, D] of dv or dk, BLOCKS to a stage
    lse: tlx.buffered_tensor
    delta: tlx.buffered_tensor


class Tile(NamedTuple):
    """A tile, for a consumer: of its record, and the CTA's counts before it (`kernels.hopper.backward_kernel`)."""

    record: tl.tensor
    steps: tl.tensor
    back: tl.tensor
    role: tl.tensor
    held: tl.tensor
    two: tl.tensor  # D = 64: 1 if it has keys past its first 128 rows, and so two blocks for each consumer, else 0
    begin: tl.tensor  # steps in which this consumer has visible keys, from ...
    end: tl.tensor  # ... to
    partials: tl.tensor
    lasts: tl.tensor
    n_kv: tl.tensor
    n_idle: tl.tensor
    n_held: tl.tensor


class Barriers(NamedTuple):
    """mbarriers; the table in `kernels.hopper.backward_kernel` says who completes and who waits."""

    k_empty: tlx.mbarrier
    v_empty: tlx.mbarrier
    q_full: tlx.mbarrier
    q_empty: tlx.mbarrier
    do_full: tlx.mbarrier
    do_empty: tlx.mbarrier
    ready: tlx.mbarrier
    full: tlx.mbarrier
    no_steps: tlx.mbarrier
    may_give: tlx.mbarrier
    taken: tlx.mbarrier
    met: tlx.mbarrier


@triton.jit
def opaque(x):
    """``x``, as a value that the compiler can't know to be the same in every round of a loop.

    So it does not hoist what depends on it, a wgmma descriptor for each 16 columns, into registers that aren't there.
    """
    return tl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [x], tl.int32, False, 1)


@triton.jit
def first_slot(n_kv, NUM_KV: tl.constexpr, LATE: tl.constexpr, BLOCKS: tl.constexpr):
    """The first slot of a tile's K. LATE: K and V change places with every tile, see `backward_kernel`."""
    slot = (n_kv % 2 if LATE else n_kv % NUM_KV) * 2 * BLOCKS
    return opaque(slot)


@triton.jit
def slot_of_v(k_slot, c: tl.constexpr):
    """The first slot of a tile's V."""
    return 2 * c.BLOCKS - k_slot if c.LATE else 2 * c.BLOCKS * c.NUM_KV + k_slot


@triton.jit
def has_two(record):
    """D = 64: whether each consumer has two blocks of keys in a tile, as 0 or 1."""
    return (tl.load(record + K_LEN) - tl.load(record + K_ROW) > 2 * ROWS).to(tl.int32)


@triton.jit
def steps_with_keys(record, steps, back, left, right, CID: tl.constexpr, c: tl.constexpr):
    """The steps of a tile's walk in which some key of a consumer is visible, as ``begin, end``; equal if none."""
    k_len, k_row = tl.load(record + K_LEN), tl.load(record + K_ROW) + CID * ROWS
    begin, end = steps * 0, steps
    if c.HAS_LEFT or c.HAS_RIGHT:  # its first key less the position of the walk's first query
        apart = k_row - (tl.load(record + BLOCK) * ROWS + k_len - tl.load(record + Q_LEN))
        if c.HAS_RIGHT:
            begin = tl.maximum(apart - right, 0) // ROWS
        if c.HAS_LEFT:
            last = tl.minimum(k_row + (2 * c.BLOCKS - 1) * ROWS, k_len) - k_row - 1
            end = tl.minimum(tl.maximum(apart + last + left + ROWS, 0) // ROWS, steps)
    none = (k_row >= k_len) | (begin >= end)
    begin, end = tl.where(none, 0, begin), tl.where(none, 0, end)
    if c.SERPENTINE:
        begin, end = tl.where(back, steps - end, begin), tl.where(back, steps - begin, end)
    return begin, end


@triton.jit
def masked(p, block, record, left, right, number, c: tl.constexpr):
    """P^T with zeros where the key is not visible to the query: after the exp2, which may be inf without a key.

    ``block`` of Q is counted from the walk's first; ``number``: the block of keys, from the tile's first.
    """
    k_len = tl.load(record + K_LEN)
    kv_row = tl.load(record + K_ROW) + number * ROWS + tl.arange(0, ROWS)
    visible = kv_row[:, None] < k_len
    if c.HAS_LEFT or c.HAS_RIGHT:  # where the Q rows stand among the keys
        at = (tl.load(record + BLOCK) + block) * ROWS + k_len - tl.load(record + Q_LEN) + tl.arange(0, ROWS)
        if c.HAS_RIGHT:
            visible &= kv_row[:, None] <= (at + right)[None, :]
        if c.HAS_LEFT:
            visible &= kv_row[:, None] >= (at - left)[None, :]
    return tl.where(visible, p, 0.0)


@triton.jit
def stores_done(x):
    """Wait until this thread's bulk stores are complete and visible, not only read, for later bulk accesses too."""
    return tl.inline_asm_elementwise("cp.async.bulk.wait_group 0; fence.proxy.async; mov.u32 $0, $1;", "=r,r", [x],
                                     tl.int32, False, 1)


@triton.jit
def dq_stores_done(x, BLOCKS: tl.constexpr):
    """The same between two tiles, but for the last ``2 BLOCKS`` stores, which are dK."""
    WAIT: tl.constexpr = ("cp.async.bulk.wait_group 2; fence.proxy.async; mov.u32 $0, $1;" if BLOCKS == 1 else
                          "cp.async.bulk.wait_group 4; fence.proxy.async; mov.u32 $0, $1;")
    return tl.inline_asm_elementwise(WAIT, "=r,r", [x], tl.int32, False, 1)


@triton.jit
def store_partial(staging, x, HALF: tl.constexpr):
    """``x [64, HALF]`` to the staging, eight rows in the order 0 4 1 5 2 6 3 7.

    So the four rows that half a warp stores at a time have banks of their own.
    """
    view = tlx.local_trans(tlx.local_reshape(staging, [8, 4, 2, HALF]), (0, 2, 1, 3))
    tlx.local_store(tlx.local_reshape(view, [64, HALF]), x)


@triton.jit
def load_partial(staging, HALF: tl.constexpr):
    """What `store_partial` stored."""
    view = tlx.local_trans(tlx.local_reshape(staging, [8, 4, 2, HALF]), (0, 2, 1, 3))
    return tlx.local_load(tlx.local_reshape(view, [64, HALF]))


@triton.jit
def spread_row(row):
    """Where a row of a block of partial dQ is."""
    return row // 8 * 8 + row % 4 * 2 + row % 8 // 4
