"""TMA access to one sequence of a packed tensor, with the sequence's own bounds.

A ragged descriptor (`triton.tools.ragged_tma`) describes a packed ``[rows, columns]`` tensor once. The three leading
coordinates of an access place a window that ends where the sequence ends: rows past it load as zero and are not
stored. So a neighbour's values, NaN included, never enter a block, and nothing is written outside a sequence.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from triton.tools.ragged_tma import create_ragged_descriptor
from triton.tools.tensor_descriptor import TensorDescriptor

_BILLION = tl.constexpr(1 << 30)


def packed_descriptor(x: torch.Tensor, block_rows: int, block_columns: int) -> TensorDescriptor:
    """Descriptor of packed ``x [rows, H, D]`` for ``[block_rows, block_columns]`` blocks; column = head * D + d.

    Rows may be strided; a tensor whose heads are not contiguous, or not aligned for TMA, is copied.
    """
    rows, heads, dim = x.shape
    if x.stride()[1:] != (dim, 1) or x.stride(0) < heads * dim or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
    return create_ragged_descriptor(x.as_strided((rows, heads * dim), (x.stride(0), 1)), [block_rows, block_columns])


@triton.jit
def load_rows(desc, buffer, start, length, row, column, barrier):
    """TMA load of rows ``row ...`` of the sequence ``[start, start + length)``; completes on ``barrier``."""
    tlx.async_descriptor_load(desc, buffer, [_BILLION, start + length, _BILLION - length + row, column], barrier)


@triton.jit
def store_rows(desc, buffer, start, length, row, column):
    """TMA store to rows ``row ...`` of the sequence ``[start, start + length)``; rows past its end are dropped."""
    tlx.async_descriptor_store(desc, buffer, [_BILLION, start + length, _BILLION - length + row, column])
