"""TMA access to one sequence of a packed tensor, with the sequence's own bounds.

A ragged descriptor (`triton.tools.ragged_tma`) describes a packed ``[rows, columns]`` tensor once. The three leading
coordinates of an access place a window that ends where the sequence ends: rows past it load as zero and are not
stored. So a neighbour's values, NaN included, never enter a block, and nothing is written outside a sequence.
"""

import functools

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from triton.tools.ragged_tma import create_ragged_descriptor

from kernels.launch import Blocks

_BILLION = tl.constexpr(1 << 30)
_NORMAL = tl.constexpr("")


def packed_blocks(x: torch.Tensor, block_rows: int, block_columns: int) -> Blocks:
    """Blocks ``[block_rows, block_columns]`` of packed, contiguous ``x [rows, H, D]``; column = head * D + d."""
    return Blocks(x, *_window(x.shape[1] * x.shape[2], x.dtype, block_rows, block_columns))


@functools.cache
def _window(columns: int, dtype: torch.dtype, block_rows: int,
            block_columns: int) -> tuple[list[int], list[int], list[int]]:
    """Shape, strides and block of a ragged descriptor. They don't depend on how many rows there are."""
    made = create_ragged_descriptor(torch.zeros((1, columns), dtype=dtype), [block_rows, block_columns])
    return made.shape, made.strides, made.block_shape


@triton.jit
def load_rows(desc, buffer, start, length, row, column, barrier, POLICY: tl.constexpr = _NORMAL):
    """TMA load of rows ``row ...`` of the sequence ``[start, start + length)``; completes on ``barrier``.

    ``POLICY``: which of L2's lines go first, ``evict_first`` or ``evict_last``; here and in `store_rows`.
    """
    tlx.async_descriptor_load(desc, buffer, [_BILLION, start + length, _BILLION - length + row, column], barrier,
                              eviction_policy=POLICY)


@triton.jit
def store_rows(desc, buffer, start, length, row, column, POLICY: tl.constexpr = _NORMAL):
    """TMA store to rows ``row ...`` of the sequence ``[start, start + length)``; rows past its end are dropped."""
    tlx.async_descriptor_store(desc, buffer, [_BILLION, start + length, _BILLION - length + row, column],
                               eviction_policy=POLICY)
