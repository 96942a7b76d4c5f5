"""What both main kernels of the Hopper backward use: a tile's record, the round of a CTA, the mask, ends of stores."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

FIELDS = tl.constexpr(24)  # int32 fields of a tile record, see `kernels.hopper.backward_schedule`
HALF = tl.constexpr(64)  # KV rows of a consumer, and both sides of its part of dQ


@triton.jit
def opaque(x):
    """``x``, as a value that the compiler can't know to be the same in every round of a loop.

    So it does not hoist what depends on it, a wgmma descriptor for each 16 columns, into registers that aren't there.
    """
    return tl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [x], tl.int32, False, 1)


@triton.jit
def first_tile(tiles, begin, end, pid, ROTATE: tl.constexpr):
    """Where a CTA begins its round of ``begin ... end - 1``: at a sequence of its own, so that CTAs are not all at
    their longest ones together.
    """
    start = begin
    if ROTATE:
        start = begin + (end - begin) * (pid * 37 % 64) // 64
        while (start < end) & (tl.load(tiles + tl.maximum(tl.minimum(start, end - 1), 0) * FIELDS + 17) != 0):
            start += 1
        start = tl.where(start < end, start, begin)
    return start


@triton.jit
def tile_at(place, begin, end, start, ROTATE: tl.constexpr):
    """The tile at a place of a CTA's round; past the last of them comes the first again."""
    tile = place
    if ROTATE:
        tile += start - begin
        tile = tl.where(tile < end, tile, tile - end + begin)
    return tile


@triton.jit
def first_slot(n_kv, NUM_KV: tl.constexpr, LATE: tl.constexpr):
    """The first slot of a tile's K. LATE: K and V change places with every tile, see `backward_kernel`."""
    slot = (n_kv % 2 if LATE else n_kv % NUM_KV) * 2
    return opaque(slot)


@triton.jit
def steps_with_keys(record, steps):
    """Consumer 1's steps with keys in a tile: all, or none if the sequence ends in the first 64 rows."""
    return tl.where(tl.load(record + 4) - tl.load(record + 5) <= HALF, 0, steps)


@triton.jit
def masked(p, row, record, left, right, CID: tl.constexpr, BLOCK_M: tl.constexpr, HAS_LEFT: tl.constexpr,
            HAS_RIGHT: tl.constexpr):
    """P^T with zeros where the key is not visible to the query: after the exp2, which may be inf without a key.

    ``row`` is the first of 64 Q rows, counted from the walk's first.
    """
    k_len = tl.load(record + 4)
    kv_row = tl.load(record + 5) + CID * 64 + tl.arange(0, 64)
    visible = kv_row[:, None] < k_len
    if HAS_LEFT or HAS_RIGHT:  # where the Q rows stand among the keys
        at = tl.load(record + 9) * BLOCK_M + row + k_len - tl.load(record + 1) + tl.arange(0, 64)
        if HAS_RIGHT:
            visible &= kv_row[:, None] <= (at + right)[None, :]
        if HAS_LEFT:
            visible &= kv_row[:, None] >= (at - left)[None, :]
    return tl.where(visible, p, 0.0)


@triton.jit
def make_ready(desc_acc, staging, ready, use, row, fetch, ROW: tl.constexpr, COLUMN: tl.constexpr,
               STAGES: tl.constexpr, AGAIN: tl.constexpr, NEWER: tl.constexpr):
    """The writer gives the slots of a use to the consumers: free, or with a partial dQ in them if ``fetch``.

    ``NEWER``: stores issued since the slots' last ones.
    """
    for c in tl.static_range(2):
        slot = use % STAGES * 2 + c
        tlx.async_descriptor_store_wait(1 - c + NEWER)
        if fetch:
            tlx.barrier_expect_bytes(ready[slot], HALF * HALF * 4)
            tlx.async_descriptor_load(desc_acc, staging[slot], [row + c * ROW, c * COLUMN], ready[slot],
                                      eviction_policy=AGAIN)
        else:
            tlx.barrier_arrive(ready[slot])


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
