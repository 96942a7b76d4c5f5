"""bf16 as the hardware computes it, in Triton's interpreter.

The interpreter (fbtriton 3.7, and stock Triton alike but for the last point) keeps bf16 as raw 16-bit integers. It
multiplies those integers in ``tl.dot``, truncates where a GPU rounds to nearest even, and its ``tl.dot`` doesn't take
the argument that fbtriton's front end passes. `hardware_bf16` replaces both operations while a kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle


def is_interpreted(kernel: object) -> bool:
    """Was the kernel decorated with TRITON_INTERPRET=1 set, so that it runs on CPU tensors?"""
    return isinstance(kernel, InterpretedFunction)


@contextmanager
def hardware_bf16() -> Iterator[None]:
    """Casts between fp32 and bf16 round to nearest even, and dot multiplies values, inside the block.

    inf and NaN arise without a warning, as on a GPU.
    """
    with (np.errstate(all="ignore"), mock.patch.object(InterpreterBuilder, "cast_impl", _cast),
          mock.patch.object(InterpreterBuilder, "create_dot", _dot)):
        yield


_builtin_cast = InterpreterBuilder.cast_impl


def _to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _cast(self: InterpreterBuilder, source: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
    types = (source.dtype.scalar, dst_type.scalar)
    if types == (tl.bfloat16, tl.float32):
        return TensorHandle(_to_float32(source.data), tl.float32)
    if types == (tl.float32, tl.bfloat16):
        return TensorHandle(_to_bfloat16(np.ascontiguousarray(source.data)), tl.bfloat16)
    return _builtin_cast(self, source, dst_type)


def _dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, accumulator: TensorHandle,
         *_: object) -> TensorHandle:
    left, right = (_to_float32(operand.data) if operand.dtype.scalar == tl.bfloat16 else
                   operand.data.astype(np.float32) for operand in (a, b))
    return TensorHandle(np.matmul(left, right) + accumulator.data, accumulator.dtype.scalar)
