"""From jagged layouts to work tiles: which rows a worker takes, in what order, so that all finish together.

A tile is a block of rows of one sequence that walks the sequence's other side in blocks: for a forward, query rows
walk keys; for a backward, key rows walk queries (pass ``mask.transposed``-like bounds and the layouts swapped).
Heads are not in the list: an item of a launch is one head of one tile, and item ``i`` belongs to the run of tiles
(below) that holds tile ``i // num_heads``.

Orders, and how a kernel with W workers deals them (`deal`):

- ``none``: sequences as they come; worker ``w`` takes items ``w, w + W, ...``
- ``sorted``: sequences with the most work first, dealt the same way.
- ``zigzag``: as ``sorted``, every other round dealt backwards, so that no worker is always first.

A sequence's tiles stay next to each other, the heaviest first, because they read the same keys and values; where
those fit the L2 cache anyway, ``by_tile`` sorts tile by tile, which balances masked work better. Tiles that stay
together are a run: they differ in ``row`` alone, by ``rows`` from each to the next.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem

ORDERS = ("none", "sorted", "zigzag")
RECORD_FIELDS = ("row_start", "row_len", "row", "out_start", "walk_start", "walk_len", "run_first", "run_len")
_FULL = Mask()
_L2_BYTES = 50 * 2**20  # of an H100, H200 or larger
_MAX_KEY = np.iinfo(np.uint16).max  # 16-bit keys: NumPy then sorts by radix


class TileShape(NamedTuple):
    """How sequences are cut: ``rows`` a tile, ``block`` rows of the other side a step."""

    rows: int
    block: int


def tile_records(rows: JaggedLayout, walk: JaggedLayout, shape: TileShape, order: str = "zigzag", mask: Mask = _FULL,
                 broadcast_rows: bool = False, by_tile: bool = False) -> np.ndarray:
    """int32 ``[T, 8]``, fields as in `RECORD_FIELDS`, covering every row of ``rows`` exactly once.

    ``row_start`` is where the sequence's rows are read (0 with ``broadcast_rows``: one dense block for all) and
    ``out_start`` where its results go; both differ only then. ``row`` counts from the sequence's first row. The tile's
    run is records ``run_first ... run_first + run_len - 1``. Raises `ValueError` for an unknown order or layouts of
    different batch size.
    """
    if order not in ORDERS:
        raise ValueError(f"schedule: expected one of {', '.join(ORDERS)}, got {order!r}")
    if rows.batch != walk.batch:
        raise ValueError(f"layouts: expected the same batch size, got {rows.batch} and {walk.batch}")
    row_offsets, walk_offsets = rows.offsets, walk.offsets
    row_lens, walk_lens = np.diff(row_offsets), np.diff(walk_offsets)
    walk_blocks = -(-walk_lens // shape.block)
    tiles = -(-row_lens // shape.rows)
    sequence = np.arange(rows.batch)
    if order != "none":
        sequence = _descending(walk_blocks)
    count = tiles[sequence]
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    seq = np.repeat(sequence, count)
    first, length = np.repeat(ends - count, count), np.repeat(count, count)
    within = np.arange(total) - first
    if mask.right is not None and order != "none":
        within = length - 1 - within  # a bound on the right leaves the last rows the most to do
    row = within * shape.rows
    if by_tile and order != "none" and not mask.is_full:
        last = np.minimum(row + shape.rows, row_lens[seq]) - 1
        low, _ = mask.key_bounds(row, row_lens[seq], walk_lens[seq])
        _, high = mask.key_bounds(last, row_lens[seq], walk_lens[seq])
        best = _descending(-(-np.maximum(high - low, 0) // shape.block))
        seq, row = seq[best], row[best]
        first, length = np.arange(total), np.ones(total, dtype=np.int64)
    records = np.empty((total, len(RECORD_FIELDS)), dtype=np.int32)
    records[:, 0] = 0 if broadcast_rows else row_offsets[seq]
    records[:, 1] = row_lens[seq]
    records[:, 2] = row
    records[:, 3] = row_offsets[seq]
    records[:, 4] = walk_offsets[seq]
    records[:, 5] = walk_lens[seq]
    records[:, 6] = first
    records[:, 7] = length
    return records


def tiles_on_device(problem: JaggedProblem, shape: TileShape, order: str) -> torch.Tensor:
    """`tile_records` of a forward, int32 ``[T, 8]`` on the problem's device, for kernels whose grid depends on T.

    Built on the host (one sync where the layouts' offsets aren't known there) and cached on the K layout.
    """
    kv_bytes = 4 * problem.layout_k.total * problem.num_heads_kv * problem.head_dim
    by_tile = kv_bytes <= _L2_BYTES // 2 and not problem.mask.is_full
    shared = problem.layout_q is problem.layout_k  # no layout's cache refers to the layout itself
    partner = problem.layout_q.max_seqlen if problem.broadcast_q else None if shared else problem.layout_q
    device = problem.layout_k.device

    def build() -> torch.Tensor:
        records = torch.from_numpy(tile_records(problem.layout_q, problem.layout_k, shape, order, problem.mask,
                                                problem.broadcast_q, by_tile))
        return records.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else records

    return problem.layout_k.cached(("tiles", partner, problem.broadcast_q, shape, order, problem.mask, by_tile), build)


def deal(num_items: int, workers: int, order: str) -> list[np.ndarray]:
    """Each worker's items in its order, as the kernels deal them."""
    turns = -(-num_items // workers)
    places = np.arange(workers)[None, :].repeat(turns, 0)
    if order == "zigzag":
        places[1::2] = workers - 1 - places[1::2]
    items = np.arange(turns)[:, None] * workers + places
    return [column[column < num_items] for column in items.T]


def _descending(work: np.ndarray) -> np.ndarray:
    """Indices from the most work to the least, equals in their order; work past 65,535 blocks counts as that."""
    key = (_MAX_KEY - np.minimum(work, _MAX_KEY)).astype(np.uint16)
    return np.argsort(key, kind="stable")


@functools.lru_cache(maxsize=4096)
def heads_within(section_mb: int, heads_q: int, heads_kv: int, head_dim: int, longest: int) -> int:
    """Query heads that walk a sequence together: as many as have K and V of ``longest`` keys in ``section_mb`` MiB."""
    head_bytes = 4 * longest * head_dim
    kv_heads = max(section_mb * 2**20 // max(head_bytes, 1), 1)
    return max(n for n in range(1, heads_q + 1) if heads_q % n == 0 and n <= kv_heads * (heads_q // heads_kv))
