"""What the forward's roles share: switches, barriers, and how each finds the next tile and the KV blocks it walks.

A tile is 256 query rows of one sequence and one head, in two groups of 128. Every role walks the same items in the
same order and derives everything from the same tile record, so that all of them count the same tiles and blocks.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.work import kv_range, place, record_of

ROWS = tl.constexpr(128)  # query rows of a group: tcgen05's M
CLC_ROLES = tl.constexpr(6)  # tasks that read each answer of cluster launch control


class Config(NamedTuple):
    """Compile-time switches of one kernel; `kernels.blackwell.options` says what each does."""

    BLOCK_N: tl.constexpr
    D: tl.constexpr
    KV_SLOTS: tl.constexpr
    P_SLICES: tl.constexpr
    ALIAS: tl.constexpr
    SKIP_RESCALE: tl.constexpr
    EMULATED: tl.constexpr
    PACKED: tl.constexpr
    PEEL: tl.constexpr
    EARLY_RELEASE: tl.constexpr
    SKIP_IDLE: tl.constexpr
    SECTIONS: tl.constexpr
    ZIGZAG: tl.constexpr
    CLC: tl.constexpr
    HAS_LEFT: tl.constexpr
    HAS_RIGHT: tl.constexpr
    DTYPE: tl.constexpr


class Bars(NamedTuple):
    """The mbarriers; the table in `forward.py` says who completes each."""

    q_full: tlx.mbarrier
    q_empty: tlx.mbarrier
    kv_full: tlx.mbarrier
    kv_empty: tlx.mbarrier
    s_full: tlx.mbarrier
    s_empty: tlx.mbarrier
    p_full: tlx.mbarrier
    alpha_full: tlx.mbarrier
    norm_full: tlx.mbarrier
    o_ready: tlx.mbarrier
    o_done: tlx.mbarrier
    o_full: tlx.mbarrier
    o_empty: tlx.mbarrier


class Work(NamedTuple):
    """What describes the items; see `kernels.hopper.work`.

    ``first_item`` and ``workers`` are the CTA's index and the number of CTAs: here, rather than asked for where
    they are needed, so that every role gets its own copy: ptxas spills values that all roles share.
    """

    first_item: tl.tensor
    workers: tl.tensor
    tiles: tl.tensor
    num_items: tl.tensor
    num_heads: tl.tensor
    group_size: tl.tensor
    section: tl.tensor
    row_step: tl.tensor
    left: tl.tensor
    right: tl.tensor


class Counts(NamedTuple):
    """How far a role is, over all of its tiles: what tells barriers' phases and ring slots.

    ``tiles``: tiles in which a group has rows; ``busy``: of these, those with keys; ``steps``: KV blocks of these.
    """

    tiles0: tl.tensor
    tiles1: tl.tensor
    busy0: tl.tensor
    busy1: tl.tensor
    steps0: tl.tensor
    steps1: tl.tensor


class Record(NamedTuple):
    """An item's tile record as loaded; fields as in `kernels.tile_schedule.RECORD_FIELDS`."""

    q_start: tl.tensor
    q_len: tl.tensor
    row: tl.tensor
    out_start: tl.tensor
    k_start: tl.tensor
    k_len: tl.tensor
    run_first: tl.tensor
    run_len: tl.tensor


@triton.jit
def read_record(work, item, c: tl.constexpr):
    """The record of an item; past the end that of the last tile, which nobody uses."""
    at = record_of(work, item)
    run_first = 0
    run_len = 1
    if c.SECTIONS:
        run_first = tl.load(at + 6)
        run_len = tl.load(at + 7)
    return Record(tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5),
                  run_first, run_len)


@triton.jit
def next_item(turn, answer, work, c: tl.constexpr):
    """The item after a role's ``turn``-th; ``num_items`` or more at the end. ``answer``: that of CLC, -1 at the end.

    Without CLC items are dealt in rows, every other row backwards if ZIGZAG.
    """
    if c.CLC:
        item = tl.where(answer < 0, work.num_items, answer)
    else:
        at = work.first_item
        if c.ZIGZAG:
            at = tl.where(turn % 2 == 0, work.workers - 1 - at, at)
        item = (turn + 1) * work.workers + at
    return item


@triton.jit
def place_tile(work, item, tile, c: tl.constexpr):
    """``(row, head, both)`` of an item: first row, query head, whether the second group has rows too."""
    row, head = place(work, item, (tile.row, tile.run_first, tile.run_len), c.SECTIONS)
    both = tile.q_len > 0  # of every tile
    if c.SKIP_IDLE:
        both = tile.q_len - row > ROWS
    return row, head, both


@triton.jit
def no_counts():
    """At a role's start."""
    return Counts(0, 0, 0, 0, 0, 0)


@triton.jit
def count_tile(counts, n, both):
    """After a tile of ``n`` KV blocks, in which group 1 has rows if ``both``."""
    one = tl.where(both, 1, 0)
    busy = tl.where(n > 0, 1, 0)
    return Counts(counts.tiles0 + 1, counts.tiles1 + one, counts.busy0 + busy, counts.busy1 + busy * one,
                  counts.steps0 + n, counts.steps1 + n * one)


@triton.jit
def blocks_of(work, tile, row, c: tl.constexpr):
    """`kv_range` of a tile, with ``n = 0`` where the sequence has no key: then nothing enters the pipeline."""
    low, n, head, tail = kv_range(tile.q_len, row, tile.k_len, work, 2 * ROWS, c.BLOCK_N, c.HAS_LEFT, c.HAS_RIGHT)
    if tile.k_len == 0:
        n = 0
    return low, n, head, tail
