"""Building blocks that the Blackwell kernels share: packed fp32 arithmetic, exp2 without the special function unit,
and register tensors cut into columns."""

import triton
import triton.language as tl
from triton.language.extra.cuda.inline_ptx_lib import _fma_f32x2, _mul_f32x2

_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds an fp32 to an integer, held in the low bits


@triton.jit
def opaque(x):
    """An int32 scalar as a value of its own, which the compiler can neither compute again nor share."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def fma(a, b, c, PACKED: tl.constexpr):
    """``a * b + c`` elementwise on fp32; PACKED: two elements an instruction (FFMA2)."""
    if PACKED:
        return _fma_f32x2(a, b, c)
    else:
        return a * b + c


@triton.jit
def multiply(a, b, PACKED: tl.constexpr):
    """``a * b`` elementwise on fp32; PACKED: two elements an instruction (FMUL2)."""
    if PACKED:
        return _mul_f32x2(a, b)
    else:
        return a * b


@triton.jit
def columns(x, PARTS: tl.constexpr):
    """``x [M, N]`` as a tuple of PARTS tensors ``[M, N / PARTS]``, PARTS a power of two; a row stays in its thread."""
    if PARTS == 1:
        return (x,)
    else:
        a, b = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()
        return columns(a, PARTS // 2) + columns(b, PARTS // 2)


@triton.jit
def joined(parts):
    """The inverse of `columns`."""
    if len(parts) == 1:
        return parts[0]
    else:
        a = joined(parts[:len(parts) // 2])
        b = joined(parts[len(parts) // 2:])
        return tl.join(a, b).permute(0, 2, 1).reshape([a.shape[0], 2 * a.shape[1]])


@triton.jit
def exp2_on_fma(x, PACKED: tl.constexpr):
    """``2^x`` for ``x < 127`` on FMA and integer units, relatively 7.5e-5 off at most; below -126 less than 2^-125.

    x is an integer plus a rest in [-1/2, 1/2]: a cubic of the rest (minimax), the integer added to its exponent.
    """
    x = tl.maximum(x, -126.0)
    shifted = x + _ROUND
    rest = x - (shifted - _ROUND)
    y = fma(rest, 0.05517166, 0.24261112, PACKED)
    y = fma(rest, y, 0.69326099, PACKED)
    y = fma(rest, y, 0.99992807, PACKED)
    bits = y.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def exp2_mixed(x, EMULATED: tl.constexpr, PACKED: tl.constexpr):
    """``2^x`` of ``[M, N]``: of every 16 columns the first EMULATED (even) by `exp2_on_fma`, the others by MUFU."""
    if EMULATED == 0:
        return tl.math.exp2(x)
    elif x.shape[1] <= EMULATED:
        return exp2_on_fma(x, PACKED)
    else:
        a, b = columns(x, 2)
        if x.shape[1] > 16:
            return joined((exp2_mixed(a, EMULATED, PACKED), exp2_mixed(b, EMULATED, PACKED)))
        else:
            return joined((exp2_mixed(a, EMULATED, PACKED),
                           exp2_mixed(b, max(EMULATED - x.shape[1] // 2, 0), PACKED)))
