"""The forward's tile records, built on the device: the host knows neither the lengths nor how many tiles there are.

The records are those of `kernels.tile_schedule.tile_records`, in the same order. A sequence's place in the order is
the sum of the tiles of all sequences before it, which each program counts for its own few sequences by comparing them
with all: B^2 comparisons spread over the GPU, one launch, no sort and no scan. At B = 4096 that is 17 million.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.jagged_layout import JaggedLayout
from kernels.launch import Launcher
from kernels.problem import JaggedProblem
from kernels.tile_schedule import RECORD_FIELDS, TileShape

SEQUENCES = 16  # of one program
HEADER = 4  # int32 ahead of the records: two counters of `dynamic`, zero at start; the number of tiles; nothing
FIELDS = tl.constexpr(len(RECORD_FIELDS))


@triton.jit
def lengths_of(cu_seqlens, b, inside, longest):
    """``(start, length)`` of sequences ``b``, 0 where not ``inside``.

    None is longer than the caller said: that would be more tiles than there is room for.
    """
    start = tl.load(cu_seqlens + b, mask=inside, other=0)
    length = tl.load(cu_seqlens + b + 1, mask=inside, other=0) - start
    return start, tl.minimum(length, longest)


@triton.jit(do_not_specialize=["batch", "longest_rows", "longest_walk"])
def tiles_kernel(cu_rows, cu_walk, header, records, batch, longest_rows, longest_walk, ROWS: tl.constexpr,
                 BLOCK: tl.constexpr, SORTED: tl.constexpr, LAST_FIRST: tl.constexpr, SHARED_ROWS: tl.constexpr,
                 SEQUENCES: tl.constexpr, CHUNK: tl.constexpr, TILES: tl.constexpr):
    """Writes ``records [T, 8]`` of ``batch`` sequences with offsets ``cu_rows`` and ``cu_walk``, and the ``header``.

    No sequence has more than ``longest_rows`` rows and walks more than ``longest_walk``.

    SORTED: most blocks to walk first. LAST_FIRST: a sequence's last tile first. SHARED_ROWS: all read rows from 0 on.
    """
    b = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    inside = b < batch
    row_start, row_len = lengths_of(cu_rows, b, inside, longest_rows)
    walk_start, walk_len = lengths_of(cu_walk, b, inside, longest_walk)
    count, work = tl.cdiv(row_len, ROWS), tl.cdiv(walk_len, BLOCK)
    before = tl.zeros([SEQUENCES, CHUNK], tl.int32)
    total = tl.zeros([CHUNK], tl.int32)
    for other0 in tl.range(0, batch, CHUNK, num_stages=1):
        other = other0 + tl.arange(0, CHUNK)
        _start, rows = lengths_of(cu_rows, other, other < batch, longest_rows)
        _start, walk = lengths_of(cu_walk, other, other < batch, longest_walk)
        counts, works = tl.cdiv(rows, ROWS), tl.cdiv(walk, BLOCK)
        precedes = other[None, :] < b[:, None]  # [SEQUENCES, CHUNK]
        if SORTED:
            precedes = (works[None, :] > work[:, None]) | ((works[None, :] == work[:, None]) & precedes)
        before += tl.where(precedes, counts[None, :], 0)
        total += counts
    first = tl.sum(before, 1)
    if tl.program_id(0) == 0:
        tl.store(header, 0)
        tl.store(header + 1, 0)
        tl.store(header + 2, tl.sum(total, 0))
    read_from = row_start
    if SHARED_ROWS:
        read_from = row_start * 0
    for tile0 in tl.range(0, tl.max(count, 0), TILES, num_stages=1):
        tile = tile0 + tl.arange(0, TILES)[None, :]
        some = tile < count[:, None]  # [SEQUENCES, TILES]
        within = tile + count[:, None] * 0
        if LAST_FIRST:
            within = count[:, None] - 1 - tile
        record = records + (first[:, None] + tile) * FIELDS
        nothing = tile * 0
        tl.store(record, read_from[:, None] + nothing, mask=some)
        tl.store(record + 1, row_len[:, None] + nothing, mask=some)
        tl.store(record + 2, within * ROWS, mask=some)
        tl.store(record + 3, row_start[:, None] + nothing, mask=some)
        tl.store(record + 4, walk_start[:, None] + nothing, mask=some)
        tl.store(record + 5, walk_len[:, None] + nothing, mask=some)
        tl.store(record + 6, first[:, None] + nothing, mask=some)
        tl.store(record + 7, count[:, None] + nothing, mask=some)


class DeviceTiles(NamedTuple):
    """Tile records on the device.

    Attributes:
        header: int32 ``[HEADER]``, see there.
        records: int32 ``[at_most, 8]``, of which the first ``header[2]`` are set.
        at_most: an upper bound of the tiles, known to the host.
    """

    header: torch.Tensor
    records: torch.Tensor
    at_most: int


def most_tiles(layout: JaggedLayout, rows: int) -> int:
    """Tiles of ``rows`` rows that a layout is cut into: their number if the host has the lengths, else a bound."""
    if layout.on_host:
        return int((-(-layout.lengths // rows)).sum())
    return min(layout.total // rows + layout.batch, layout.batch * -(-layout.max_seqlen // rows))


def device_tiles(problem: JaggedProblem, shape: TileShape, order: str, stream: int) -> DeviceTiles:
    """The tiles of a problem with at least one query, cached on the K layout for launches on the same stream.

    ``order`` is ``none`` or ``sorted``. Launches one kernel on the current stream, whose handle is ``stream``.
    """
    rows, walk = problem.layout_q, problem.layout_k
    last_first = problem.mask.right is not None and order != "none"
    partner = rows.max_seqlen if problem.broadcast_q else None if rows is walk else rows  # no layout refers to itself
    key = ("hopper forward", partner, problem.broadcast_q, shape, order, last_first, stream)

    def build() -> DeviceTiles:
        at_most = most_tiles(rows, shape.rows)
        memory = torch.empty((at_most * len(RECORD_FIELDS) + HEADER,), dtype=torch.int32, device=rows.device)
        header, records = memory[:HEADER], memory[HEADER:]
        launch = _launcher(shape, order == "sorted", last_first, problem.broadcast_q, rows.device)
        launch((-(-rows.batch // SEQUENCES), 1), rows.cu_seqlens, walk.cu_seqlens, header, records, rows.batch,
               rows.max_seqlen, walk.max_seqlen)
        return DeviceTiles(header, records, at_most)

    return walk.cached(key, build)


@functools.cache
def _launcher(shape: TileShape, in_order: bool, last_first: bool, shared_rows: bool, device: torch.device) -> Launcher:
    return Launcher(tiles_kernel, {
        "ROWS": shape.rows, "BLOCK": shape.block, "SORTED": in_order, "LAST_FIRST": last_first,
        "SHARED_ROWS": shared_rows, "SEQUENCES": SEQUENCES, "CHUNK": 256, "TILES": 8}, {"num_warps": 4})
