"""Online softmax on one ``[BLOCK_M, BLOCK_N]`` block of scores held in registers, and the mask that precedes it.

The running maximum ``m`` is kept already multiplied by ``scale = softmax_scale * log2(e)``, so that a probability is
one fused multiply-add and one ``exp2``. A row that has seen no key yet has ``m == -inf`` and ``norm == 0``.
"""

import triton
import triton.language as tl


@triton.jit
def mask_scores(s, row, column, shift, len_k, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Scores with -inf where query ``row[i]`` does not see key ``column[j]``; ``shift`` is ``len_k - len_q``."""
    visible = column[None, :] < len_k
    if HAS_RIGHT:
        visible &= column[None, :] <= row[:, None] + (shift + right)
    if HAS_LEFT:
        visible &= column[None, :] >= row[:, None] + (shift - left)
    return tl.where(visible, s, -float("inf"))


@triton.jit
def first_softmax(s, scale):
    """``(p, m, norm)`` of a tile's first block, with ``p`` in fp32; a row without a visible key has p = 0, m = -inf."""
    m = tl.max(s, 1) * scale
    p = tl.math.exp2(s * scale - tl.where(m == -float("inf"), 0.0, m)[:, None])
    return p, m, tl.sum(p, 1)


@triton.jit
def next_softmax(s, m, norm, scale, MAY_BE_EMPTY: tl.constexpr):
    """``(p, m, norm, alpha)`` after one more block; ``alpha`` rescales what was accumulated before.

    ``MAY_BE_EMPTY``: rows may still have seen no key (masked blocks only); without it every row sees one here.
    """
    m_new = tl.maximum(m, tl.max(s, 1) * scale)
    origin = m_new
    if MAY_BE_EMPTY:
        origin = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.math.exp2(s * scale - origin[:, None])
    alpha = tl.math.exp2(m - origin)
    return p, m_new, norm * alpha + tl.sum(p, 1), alpha


@triton.jit
def log2(x):
    """log2 by the special function unit: of 0 it is -inf, and 2^-22 off at most elsewhere."""
    return tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def reciprocal(x):
    """1 / x by the special function unit, an ulp off at most."""
    return tl.inline_asm_elementwise("rcp.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
