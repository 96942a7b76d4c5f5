"""What the roles of the Hopper backward share: switches, buffers, barriers, a CTA's round, the mask, ends of stores.

Every role derives its trip counts from the same tile record, so none of them is told how many steps there are.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_record import BLOCK, K_LEN, K_ROW, Q_LEN

HALF = tl.constexpr(64)  # KV rows of a consumer, and both sides of its part of dQ


class Config(NamedTuple):
    """Compile-time switches of one kernel; `kernels.hopper.backward_options` says what each does.

    LATE, USES: see `kernels.hopper.backward_kernel`. ONCE and AGAIN: L2's policy for what passes once, and for partial
    dQ. ROW, COLUMN: where consumer 1's part of a block of dQ begins.
    """

    GROUP: tl.constexpr
    BLOCK_M: tl.constexpr
    D: tl.constexpr
    NUM_Q: tl.constexpr
    NUM_DO: tl.constexpr
    NUM_KV: tl.constexpr
    STAGES: tl.constexpr
    DS_STAGES: tl.constexpr
    DK_FIRST: tl.constexpr
    HAS_LEFT: tl.constexpr
    HAS_RIGHT: tl.constexpr
    KEEP: tl.constexpr
    COUNTED: tl.constexpr
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
    ROW: tl.constexpr
    COLUMN: tl.constexpr
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
    final: tuple  # the staging as [64, 64] of dq, two to a stage
    dkv: tuple  # the staging as [64, D] of dv or dk, 128 / D to a stage
    lse: tlx.buffered_tensor
    delta: tlx.buffered_tensor


class Tile(NamedTuple):
    """A tile, for a consumer: of its record, and the CTA's counts before it (`kernels.hopper.backward_kernel`)."""

    record: tl.tensor
    steps: tl.tensor
    back: tl.tensor
    role: tl.tensor
    held: tl.tensor
    alone: tl.tensor  # consumer 1 has no keys in it
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
def first_slot(n_kv, NUM_KV: tl.constexpr, LATE: tl.constexpr):
    """The first slot of a tile's K. LATE: K and V change places with every tile, see `backward_kernel`."""
    slot = (n_kv % 2 if LATE else n_kv % NUM_KV) * 2
    return opaque(slot)


@triton.jit
def ends_early(record):
    """Whether consumer 1 has no keys in a tile: the sequence ends in its first 64 rows."""
    return tl.load(record + K_LEN) - tl.load(record + K_ROW) <= HALF


@triton.jit
def masked(p, row, record, left, right, CID: tl.constexpr, BLOCK_M: tl.constexpr, HAS_LEFT: tl.constexpr,
            HAS_RIGHT: tl.constexpr):
    """P^T with zeros where the key is not visible to the query: after the exp2, which may be inf without a key.

    ``row`` is the first of 64 Q rows, counted from the walk's first.
    """
    k_len = tl.load(record + K_LEN)
    kv_row = tl.load(record + K_ROW) + CID * 64 + tl.arange(0, 64)
    visible = kv_row[:, None] < k_len
    if HAS_LEFT or HAS_RIGHT:  # where the Q rows stand among the keys
        at = tl.load(record + BLOCK) * BLOCK_M + row + k_len - tl.load(record + Q_LEN) + tl.arange(0, 64)
        if HAS_RIGHT:
            visible &= kv_row[:, None] <= (at + right)[None, :]
        if HAS_LEFT:
            visible &= kv_row[:, None] >= (at - left)[None, :]
    return tl.where(visible, p, 0.0)


@triton.jit
def stores_done(x):
    """Wait until this thread's bulk stores are complete and visible, not only read, for later bulk accesses too."""
    return tl.inline_asm_elementwise("cp.async.bulk.wait_group 0; fence.proxy.async; mov.u32 $0, $1;", "=r,r", [x],
                                     tl.int32, False, 1)


@triton.jit
def dq_stores_done(x):
    """The same between two tiles, but for the last two stores, which are dK."""
    return tl.inline_asm_elementwise("cp.async.bulk.wait_group 2; fence.proxy.async; mov.u32 $0, $1;", "=r,r", [x],
                                     tl.int32, False, 1)


@triton.jit
def store_partial(staging, x):
    """``x [64, 64]`` to the staging, eight rows in the order 0 4 1 5 2 6 3 7.

    So the four rows that half a warp stores at a time have banks of their own.
    """
    view = tlx.local_trans(tlx.local_reshape(staging, [8, 4, 2, 64]), (0, 2, 1, 3))
    tlx.local_store(tlx.local_reshape(view, [64, 64]), x)


@triton.jit
def load_partial(staging):
    """What `store_partial` stored."""
    view = tlx.local_trans(tlx.local_reshape(staging, [8, 4, 2, 64]), (0, 2, 1, 3))
    return tlx.local_load(tlx.local_reshape(view, [64, 64]))


@triton.jit
def spread_row(row):
    """Where a row of a block of partial dQ is."""
    return row // 8 * 8 + row % 4 * 2 + row % 8 // 4
