"""What loader and consumers must agree on: which item comes next, and which KV blocks a tile walks.

An item is one head of one tile. Item ``i`` is tile ``i // num_heads``, head ``i % num_heads``; with SECTIONS a
sequence's heads go in sections of ``section``, all of the sequence's tiles for one section after the other, so that K
and V of a section stay in L2. A worker is one loader with its consumers; a CTA holds ``STREAMS`` of them. Both sides
derive everything from the same tile record.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

ITEM_SLOTS = tl.constexpr(4)
DRAWS = tl.constexpr(64)  # draws from one end before the other end's turn, if BOTH_ENDS
FIELDS = tl.constexpr(8)  # int32 fields of a tile record, see kernels.tile_schedule


class Config(NamedTuple):
    """Compile-time switches of one kernel; `kernels.hopper.options` says what each does."""

    STREAMS: tl.constexpr
    GROUPS: tl.constexpr
    BLOCK_N: tl.constexpr
    D: tl.constexpr
    NUM_Q: tl.constexpr
    NUM_K: tl.constexpr
    NUM_V: tl.constexpr
    Q_REG: tl.constexpr
    O_IN_V: tl.constexpr
    O_IN_Q: tl.constexpr
    APART: tl.constexpr
    PINGPONG: tl.constexpr
    PEEL: tl.constexpr
    PREFETCH: tl.constexpr
    SECTIONS: tl.constexpr
    ZIGZAG: tl.constexpr
    DYNAMIC: tl.constexpr
    BOTH_ENDS: tl.constexpr
    STALE: tl.constexpr
    HAS_LEFT: tl.constexpr
    HAS_RIGHT: tl.constexpr
    DTYPE: tl.constexpr


class Ring(NamedTuple):
    """Slots in shared memory, and the barriers that say full and empty."""

    smem: tlx.buffered_tensor
    full: tlx.mbarrier
    empty: tlx.mbarrier


class Work(NamedTuple):
    """Runtime arguments that describe the items; ``counter`` int32 [2] is zero at start and at exit.

    ``section`` divides ``num_heads``; ``row_step`` is from a tile's first row to that of the next tile of its run.
    """

    tiles: tl.tensor
    counter: tl.tensor
    num_items: tl.tensor
    num_heads: tl.tensor
    group_size: tl.tensor
    section: tl.tensor
    row_step: tl.tensor
    left: tl.tensor
    right: tl.tensor


@triton.jit
def record_of(work, item):
    """Pointer to the record of the item's tile; of the last tile for an item past the end."""
    return work.tiles + (tl.minimum(item, work.num_items - 1) // work.num_heads) * FIELDS


@triton.jit
def read_run(record, SECTIONS: tl.constexpr):
    """``(row, first, count)`` of a record: its first row, and its run: tiles ``first ... first + count - 1``."""
    row = tl.load(record + 2)
    first = 0
    count = 1
    if SECTIONS:
        first = tl.load(record + 6)
        count = tl.load(record + 7)
    return row, first, count


@triton.jit
def place(work, item, run, SECTIONS: tl.constexpr):
    """``(row, head)`` of an item, whose record has the run ``run``."""
    row, first, count = run
    if SECTIONS:
        item = tl.minimum(item, work.num_items - 1)
        tile = item // work.num_heads
        at = item - first * work.num_heads
        section = at // (count * work.section)
        at -= section * (count * work.section)
        row += (first + at // work.section - tile) * work.row_step
        head = section * work.section + at % work.section
    else:
        head = item % work.num_heads
    return row, head


@triton.jit
def dealt_item(work, turn, worker, workers, c: tl.constexpr):
    """The item that a worker takes at its ``turn``-th turn: dealt in rows, every other row backwards if ZIGZAG.

    With BOTH_ENDS the second half of the workers takes its items in reverse. Past its last: ``num_items`` or more.
    """
    if c.BOTH_ENDS:
        rows = work.num_items // workers
        count = rows + tl.where(_dealt_place(rows, worker, workers, c.ZIGZAG) < work.num_items % workers, 1, 0)
        reverse = worker >= workers // 2
        at = tl.where(reverse, tl.maximum(count - 1 - turn, 0), turn)
        item = at * workers + _dealt_place(at, worker, workers, c.ZIGZAG)
        item = tl.where(reverse & (turn >= count), work.num_items, item)
    else:
        item = turn * workers + _dealt_place(turn, worker, workers, c.ZIGZAG)
    return item


@triton.jit
def _dealt_place(row, worker, workers, ZIGZAG: tl.constexpr):
    place = worker
    if ZIGZAG:
        place = tl.where(row % 2 == 1, workers - 1 - worker, worker)
    return place


@triton.jit
def drawn_item(work, draw, c: tl.constexpr):
    """The item of a draw: in their order, with BOTH_ENDS `DRAWS` from the front and as many from the back in turns."""
    item = draw
    if c.BOTH_ENDS:
        at = (draw // (2 * DRAWS)) * DRAWS + draw % DRAWS
        item = tl.where((draw // DRAWS) % 2 == 1, work.num_items - 1 - at, at)
        item = tl.where(draw < work.num_items, item, draw)
    return item


@triton.jit
def first_item(work, worker, workers, c: tl.constexpr):
    """A worker's first item: drawn or dealt without asking anyone."""
    return drawn_item(work, worker, c) if c.DYNAMIC else dealt_item(work, 0, worker, workers, c)


@triton.jit
def draw_item(work, items, turn, workers, FIRST: tl.constexpr, c: tl.constexpr):
    """Loader: draw the next item from the counter and hand it to the consumers."""
    item = drawn_item(work, tl.atomic_add(work.counter, 1) + workers, c)
    slot = FIRST + turn % ITEM_SLOTS
    tlx.barrier_wait(items.empty[slot], ((turn // ITEM_SLOTS) & 1) ^ 1)
    tlx.local_store(items.smem[slot], tl.full([32], 0, tl.int32) + item)
    tlx.barrier_arrive(items.full[slot])
    return item


@triton.jit
def receive_item(items, turn, FIRST: tl.constexpr):
    """Consumer: what `draw_item` drew at this turn. The consumer releases the slot when its tile is done."""
    slot = FIRST + turn % ITEM_SLOTS
    tlx.barrier_wait(items.full[slot], (turn // ITEM_SLOTS) & 1)
    return tl.max(tlx.local_load(items.smem[slot]), 0)


@triton.jit
def reset_counter(work, workers):
    """Loader, after its last item: every draw of a launch precedes its last worker's exit, which clears the counter."""
    if tl.atomic_add(work.counter + 1, 1) == workers - 1:
        tl.store(work.counter, 0)
        tl.store(work.counter + 1, 0)


@triton.jit
def kv_range(q_len, m_row, k_len, work, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr,
             HAS_RIGHT: tl.constexpr):
    """``(low, n, head, tail)``: blocks ``low ... low + n - 1``, of which ``head`` on top and ``tail`` below need masks.

    ``n >= head >= 1``. Block ``i`` of the walk is ``low + n - 1 - i``.
    """
    shift = k_len - q_len
    last_row = tl.minimum(m_row + BLOCK_M, q_len) - 1
    high = k_len
    full_high = k_len
    low = 0
    if HAS_RIGHT:
        high = tl.minimum(tl.maximum(last_row + shift + work.right + 1, 0), k_len)
        full_high = tl.minimum(tl.maximum(m_row + shift + work.right + 1, 0), k_len)
    if HAS_LEFT:
        low = tl.minimum(tl.maximum(m_row + shift - work.left, 0), k_len) // BLOCK_N
    n = tl.maximum(tl.cdiv(high, BLOCK_N) - low, 1)
    head = tl.maximum(low + n - tl.maximum(full_high // BLOCK_N, low), 1)
    tail = 0
    if HAS_LEFT:
        full_low = tl.cdiv(tl.minimum(tl.maximum(last_row + shift - work.left, 0), k_len), BLOCK_N)
        tail = tl.minimum(tl.maximum(full_low - low, 0), n - head)
    return low, n, head, tail


@triton.jit
def group_place(group, turn, GROUPS: tl.constexpr):
    """Which 64 rows of a tile a group takes: they go round, so that short tiles' rows don't fall to one group."""
    return (group + turn) % GROUPS


@triton.jit
def own_range(q_len, row, k_len, work, low, n, c: tl.constexpr):
    """``(before, after, head, tail)`` for 64 rows from ``row`` on in a tile that walks blocks ``low ... low + n - 1``.

    They leave out the first ``before`` blocks of the walk and the last ``after``; of what remains, at least one block,
    ``head`` at its start and ``tail`` at its end need masks.
    """
    own_low, own, head, tail = kv_range(q_len, row, k_len, work, 64, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT)
    before = tl.minimum(tl.maximum(low + n - own_low - own, 0), n - 1)
    after = tl.minimum(tl.maximum(own_low - low, 0), n - 1 - before)
    return before, after, head, tail
