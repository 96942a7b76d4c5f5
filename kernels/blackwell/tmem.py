"""Tensor memory of the forward: 512 columns of 128 lanes x 4 bytes.

    D = 128   columns    0-127  S0 fp32; once the softmax has it, P0 (0-63, 16 bits), alpha0, norm0, top0
                       128-255  the same for group 1
                       256-383  O0 fp32
                       384-511  O1 fp32
    D = 64    as above, O0 in 256-319 and O1 in 320-383
    D = 64, ALIAS off    S0 0-127, S1 128-255, P0 256-319, P1 320-383, O0 384-447, O1 448-511; alpha, norm and top
                         are in shared memory

What makes the aliases safe: S(i + 1) = Q K^T overwrites P(i) and alpha(i); the MMA role issues it after O += P(i) V(i),
tensor-core operations run in the order of their issue, and before that one it waited until the correction had used
alpha(i) (`o_ready`) and the softmax had read S(i) (`p_full`). norm and top are guarded by `s_empty`.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_work import ROWS


class ForwardTmem(NamedTuple):
    """Buffers by group: S [128, BLOCK_N] fp32, P [128, BLOCK_N] in 16 bits, O [128, D] fp32, and one fp32 a row: the
    factor alpha of a rescale, the sum ``norm`` and the maximum ``top``."""

    s: tlx.buffered_tensor
    p: tlx.buffered_tensor
    o: tlx.buffered_tensor
    alpha: tlx.buffered_tensor
    norm: tlx.buffered_tensor
    top: tlx.buffered_tensor


@triton.jit
def allocate_forward(c: tl.constexpr):
    """The buffers as in the map above."""
    if c.ALIAS:
        spec = tlx.storage_alias_spec(storage=tlx.storage_kind.tmem)
        s = tlx.local_alloc((ROWS, c.BLOCK_N), tl.float32, 2, tlx.storage_kind.tmem, reuse=spec)
        p = tlx.local_alloc((ROWS, c.BLOCK_N), c.DTYPE, 2, tlx.storage_kind.tmem, reuse=spec)
        alpha = tlx.local_alloc((ROWS, 1), tl.float32, 2, tlx.storage_kind.tmem, reuse=spec)
        norm = tlx.local_alloc((ROWS, 1), tl.float32, 2, tlx.storage_kind.tmem, reuse=spec)
        top = tlx.local_alloc((ROWS, 1), tl.float32, 2, tlx.storage_kind.tmem, reuse=spec)
        spec.set_buffer_overlap(
            tlx.reuse_group(s, tlx.reuse_group(p, alpha, norm, top, group_type=tlx.reuse_group_type.distinct),
                            group_type=tlx.reuse_group_type.shared))
    else:
        s = tlx.local_alloc((ROWS, c.BLOCK_N), tl.float32, 2, tlx.storage_kind.tmem)
        p = tlx.local_alloc((ROWS, c.BLOCK_N), c.DTYPE, 2, tlx.storage_kind.tmem)
        alpha = tlx.local_alloc((ROWS,), tl.float32, 2)
        norm = tlx.local_alloc((ROWS,), tl.float32, 2)
        top = tlx.local_alloc((ROWS,), tl.float32, 2)
    o = tlx.local_alloc((ROWS, c.D), tl.float32, 2, tlx.storage_kind.tmem)
    return ForwardTmem(s, p, o, alpha, norm, top)


@triton.jit
def put_rows(buffer, values, c: tl.constexpr):
    """One fp32 a row, to where the map has it."""
    tlx.local_store(buffer, values[:, None] if c.ALIAS else values)


@triton.jit
def get_rows(buffer, c: tl.constexpr):
    """What `put_rows` put there, ``[128, 1]``."""
    values = tlx.local_load(buffer)
    return values if c.ALIAS else values[:, None]
