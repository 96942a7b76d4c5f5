from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.portable.arguments import num_tiles
from kernels.primitives import peel, row_pointers, tile_of_program, visible_range


@triton.jit
def _tiles_kernel(programs, results, cu_seqlens, batch, heads, max_seqlen, BLOCK: tl.constexpr, SEARCH: tl.constexpr):
    index = tl.program_id(0)
    sequence, head, block = tile_of_program(tl.load(programs + index), cu_seqlens, batch, heads, max_seqlen, BLOCK,
                                            SEARCH)
    tl.store(results + 3 * index, sequence)
    tl.store(results + 3 * index + 1, head)
    tl.store(results + 3 * index + 2, block)


def tiles(layout, heads, block, search, programs):
    """``[len(programs), 3]``: sequence, head and block of each program."""
    device = layout.device
    results = torch.empty(len(programs), 3, dtype=torch.int32, device=device)
    _tiles_kernel[(len(programs),)](torch.tensor(programs, dtype=torch.int32, device=device), results,
                                    layout.cu_seqlens, layout.batch, heads, layout.max_seqlen, BLOCK=block,
                                    SEARCH=search)
    return results.tolist()


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("lengths", [[5, 0, 16, 17, 33, 0], [0, 0], [40], [1] * 20, [0] * 15 + [15, 1]], ids=str)
def test_every_tile_has_exactly_one_program(device, lengths, search):
    layout = JaggedLayout.from_lengths(lengths, device)
    programs = list(range(num_tiles(layout, 16, search) * 2))
    working = [(sequence, head, block) for sequence, head, block in tiles(layout, 2, 16, search, programs)
               if block * 16 < lengths[sequence]]
    expected = {(sequence, head, block) for sequence, length in enumerate(lengths) for head in range(2)
                for block in range(math.ceil(length / 16))}
    assert len(working) == len(expected)
    assert set(working) == expected


@pytest.mark.parametrize("batch", [63, 64, 65, 4096, 4097, 20000])
def test_search_in_large_batches(device, batch):
    lengths = np.random.default_rng(batch).integers(0, 40, batch) * (np.arange(batch) % 7 == 0)
    layout = JaggedLayout.from_lengths(lengths, device)
    first_tile = layout.offsets[:-1] // 16 + np.arange(batch)
    chosen = sorted({0, 1, batch // 2, batch - 2, batch - 1})
    got = tiles(layout, 1, 16, True, [int(first_tile[sequence]) for sequence in chosen])
    assert got == [[sequence, 0, 0] for sequence in chosen]


@triton.jit
def _ranges_kernel(bounds, first, last, shift, length, before, after, HAS_BEFORE: tl.constexpr,
                   HAS_AFTER: tl.constexpr, BLOCK: tl.constexpr):
    low, full_low, full_high, high = visible_range(first, last, shift, length, before, after, HAS_BEFORE, HAS_AFTER)
    start, end = peel(low, full_low, full_high, BLOCK)
    tl.store(bounds, low)
    tl.store(bounds + 1, start)
    tl.store(bounds + 2, end)
    tl.store(bounds + 3, high)


def blocks_of(bounds, length, block):
    """Positions touched with and without a mask, in order, beyond-the-end ones left out."""
    low, start, end, high = bounds
    masked, full = [], []
    for stretch, positions in ((range(low, start, block), masked), (range(start, end, block), full),
                               (range(end, high, block), masked)):
        for first in stretch:
            positions += range(first, first + block) if positions is full else range(first, min(first + block, length))
    return masked, full


@pytest.mark.parametrize("mask", [Mask(), Mask(None, 0), Mask(0, 0), Mask(5, 2), Mask(20, 0), Mask(None, 9),
                                  Mask(3, None), Mask(30, 30)], ids=str)
@pytest.mark.parametrize(("len_q", "len_k"), [(20, 20), (33, 10), (10, 33), (9, 0)])
def test_loop_bounds_cover_what_is_seen_and_peel_what_is_not(device, mask, len_q, len_k):
    """For each query block over keys: no visible key is left out, none is visited twice, full blocks need no mask."""
    low, high = mask.key_bounds(np.arange(len_q), np.array(len_q), np.array(len_k))
    sees = (np.arange(len_k) >= low[:, None]) & (np.arange(len_k) < high[:, None])
    bounds = torch.empty(4, dtype=torch.int32, device=device)
    for first in range(0, len_q, 8):
        last = min(first + 8, len_q) - 1
        _ranges_kernel[(1,)](bounds, first, last, len_k - len_q, len_k, mask.left or 0, mask.right or 0,
                             HAS_BEFORE=mask.left is not None, HAS_AFTER=mask.right is not None, BLOCK=4)
        masked, full = blocks_of(bounds.tolist(), len_k, 4)
        assert len(set(masked + full)) == len(masked + full)
        assert set(np.flatnonzero(sees[first:last + 1].any(0)).tolist()) <= set(masked + full)
        assert set(full) <= set(np.flatnonzero(sees[first:last + 1].all(0)).tolist())
        if mask.is_full:
            assert len(full) == len_k // 4 * 4


@triton.jit
def _pointers_kernel(base, first, stride, results, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    distance = row_pointers(base, stride, first, ROWS, COLUMNS).to(tl.int64) - base.to(tl.int64)
    tl.store(results + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], distance)


@pytest.mark.parametrize(("first", "stride"), [(3, 128), (2**30, 2**10), (2**31 - 64, 4096), (100, 0)])
def test_addresses_are_64_bit(device, first, stride):
    base = torch.zeros(16, dtype=torch.bfloat16, device=device)
    results = torch.empty(4, 16, dtype=torch.int64, device=device)
    _pointers_kernel[(1,)](base, first, stride, results, ROWS=4, COLUMNS=16)
    expected = 2 * ((first + torch.arange(4))[:, None] * stride + torch.arange(16))
    assert torch.equal(results.cpu(), expected)
