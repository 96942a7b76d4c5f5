"""Which 128x128 blocks of a packed batch's score matrix hold anything, as FlexAttention's lists.

The score matrix of all packed queries against all packed keys is block diagonal; nothing of its size is ever made. Its
blocks are found per segment: the rows of one sequence in one block of 128 query rows. The keys that a segment sees
are one range, and both ends of the range only grow from row to row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.mask import Mask
from kernels.problem import JaggedProblem

BLOCK = 128
List = tuple[np.ndarray, np.ndarray]  # int32 [rows] counts and [rows, widest] indices, of which the first ones count


@dataclass(frozen=True, eq=False)
class Segments:
    """int64 arrays, one element a segment that sees any key, in packed order.

    Key blocks ``begin`` to ``end`` (exclusive) of query block ``query_block`` are needed, and not listed by an
    earlier segment of the same query block; of those, ``full_begin`` to ``full_end`` are seen whole by every row.
    """

    query_blocks: int
    key_blocks: int
    query_block: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    full_begin: np.ndarray
    full_end: np.ndarray

    @property
    def index_bytes(self) -> int:
        """At most what `block_lists` make of index tensors."""
        per_query = np.bincount(self.query_block, self.end - self.begin, minlength=1)
        steps = np.zeros(self.key_blocks + 1, dtype=np.int64)
        np.add.at(steps, self.begin, 1)
        np.add.at(steps, self.end, -1)
        widest_query, widest_key = int(per_query.max(initial=0)), int(np.cumsum(steps).max(initial=0))
        return 2 * 4 * (self.query_blocks * widest_query + self.key_blocks * widest_key)


def find_segments(mask: Mask, offsets_q: np.ndarray, offsets_k: np.ndarray) -> Segments:
    """The segments of a batch, from its offsets, int64 ``[B + 1]`` each."""
    lengths_q = np.diff(offsets_q)
    present = np.flatnonzero(lengths_q)
    first_block = offsets_q[present] // BLOCK
    counts = (offsets_q[present + 1] - 1) // BLOCK - first_block + 1
    sequence = np.repeat(present, counts)  # of each segment
    query_block = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts - first_block, counts)
    start_q, start_k = offsets_q[sequence], offsets_k[sequence]
    first_row = np.maximum(query_block * BLOCK, start_q)
    last_row = np.minimum((query_block + 1) * BLOCK, offsets_q[sequence + 1]) - 1
    len_q, len_k = lengths_q[sequence], offsets_k[sequence + 1] - start_k
    low_first, high_first = mask.key_bounds(first_row - start_q, len_q, len_k)
    low_last, high_last = mask.key_bounds(last_row - start_q, len_q, len_k)

    sees = high_last > low_first
    begin = (start_k + low_first)[sees] // BLOCK
    end = -(-(start_k + high_last)[sees] // BLOCK)
    query_block = query_block[sees]
    same = np.flatnonzero(query_block[1:] == query_block[:-1]) + 1
    begin[same] = np.maximum(begin[same], end[same - 1])
    end = np.maximum(begin, end)
    whole = (last_row - first_row)[sees] == BLOCK - 1
    full_begin = np.clip(-(-(start_k + low_last)[sees] // BLOCK), begin, end)
    full_end = np.where(whole, np.clip((start_k + high_first)[sees] // BLOCK, full_begin, end), full_begin)
    return Segments(-(-int(offsets_q[-1]) // BLOCK), -(-int(offsets_k[-1]) // BLOCK), query_block, begin, end,
                    full_begin, full_end)


def block_lists(segments: Segments) -> dict[str, List]:
    """Lists by the prefix of `BlockMask`'s arguments: ``kv``, ``full_kv`` (key blocks of each query block, where a
    mask must be applied or all is seen), ``q``, ``full_q`` (query blocks of each key block).

    A list and its full one are equally wide: torch 2.11 steps through both with the stride of the first.
    """
    counts = segments.end - segments.begin
    segment = np.repeat(np.arange(len(counts)), counts)
    key_block = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts - segments.begin, counts)
    query_block = segments.query_block[segment]
    full = (key_block >= segments.full_begin[segment]) & (key_block < segments.full_end[segment])
    order = np.argsort(key_block, kind="stable")
    by_query = _lists(query_block, key_block, full, segments.query_blocks)
    by_key = _lists(key_block[order], query_block[order], full[order], segments.key_blocks)
    return dict(zip(("kv", "full_kv", "q", "full_q"), (*by_query, *by_key), strict=True))


def _lists(rows: np.ndarray, values: np.ndarray, full: np.ndarray, n_rows: int) -> tuple[List, List]:
    """Those that aren't full, those that are; ``rows`` ascend."""
    chosen = ~full, full
    counts = [np.bincount(rows[which], minlength=n_rows) for which in chosen]
    indices = np.zeros((2, n_rows, max(int(np.max(counts, initial=0)), 1)), dtype=np.int32)
    for which, count, table in zip(chosen, counts, indices, strict=True):
        position = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        table[rows[which], position] = values[which]
    return (counts[0].astype(np.int32), indices[0]), (counts[1].astype(np.int32), indices[1])


def visible_range(problem: JaggedProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 ``[total_q]`` each, on the device: a packed query sees packed keys ``low <= j < high``. No sync."""
    layout_q, layout_k, mask = problem.layout_q, problem.layout_k, problem.mask
    row = torch.arange(layout_q.total, dtype=torch.int32, device=layout_q.device)
    sequence = torch.searchsorted(layout_q.cu_seqlens[1:], row, right=True)
    start, end = layout_k.cu_seqlens[sequence], layout_k.cu_seqlens[sequence + 1]
    position = row - layout_q.cu_seqlens[sequence + 1] + end  # of the query among packed keys, aligned at the ends
    low = start if mask.left is None else torch.maximum(start, position - mask.left)
    high = end if mask.right is None else torch.minimum(end, position + mask.right + 1)
    return low, high
