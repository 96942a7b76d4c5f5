"""The forward's softmax groups: one warp group for each 128 rows, a thread for a row.

Of each S(i) it makes P(i) in 16 bits, in slices that the MMA role may use one by one; before them it passes on alpha,
the factor by which the correction rescales O. A tile's first block has no alpha: there is no O yet.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_work import ROWS, blocks_of, count_tile, place_tile
from kernels.blackwell.primitives import columns, exp2_mixed, fma
from kernels.blackwell.tmem import put_rows

KEEP = tl.constexpr(-8.0)  # log2: while the maximum rises by less than 2^8, O keeps its scale


@triton.jit
def _masked(s, low, high, column, c: tl.constexpr):
    """Scores of keys ``column ...`` with -inf where row ``i`` does not see key ``j``: unless low[i] <= j < high[i]."""
    cols = tl.arange(0, c.BLOCK_N)[None, :]
    s = tl.where(cols < (high - column)[:, None], s, -float("inf"))
    if c.HAS_LEFT:
        s = tl.where(cols >= (low - column)[:, None], s, -float("inf"))
    return s


@triton.jit
def _step(tmem, bars, count, m, norm, scale, low, high, column, FIRST: tl.constexpr, MASKED: tl.constexpr,
          GROUP: tl.constexpr, c: tl.constexpr):
    """One block, the group's ``count``-th. Returns ``(m, norm)``.

    ``m`` is the maximum of the scores before the scale. With SKIP_RESCALE it is the one that O is scaled by, up to
    2^8 below the true one. A row that has seen no key has m = -inf and norm = 0.
    """
    tlx.barrier_wait(bars.s_full[GROUP], count & 1)
    s = tlx.local_load(tmem.s[GROUP])  # [128, BLOCK_N]
    if MASKED:
        s = _masked(s, low, high, column, c)
    m_new = tl.max(s, 1)
    if not FIRST:
        m_new = tl.maximum(m, m_new)
    origin = m_new
    if MASKED:
        origin = tl.where(m_new == -float("inf"), 0.0, m_new)
    if not FIRST:
        rise = (m - origin) * scale  # <= 0; -inf for the first key that a row sees
        alpha = tl.math.exp2(rise)
        if c.SKIP_RESCALE:
            keep = rise >= KEEP
            alpha = tl.where(keep, 1.0, alpha)
            m_new = tl.where(keep, m, m_new)
            origin = tl.where(keep, m, origin)
        put_rows(tmem.alpha[GROUP], alpha, c)
        tlx.barrier_arrive(bars.alpha_full[GROUP])
        norm = norm * alpha
    s = fma(s, scale, -(origin * scale)[:, None], c.PACKED)
    SLICE: tl.constexpr = c.BLOCK_N // c.P_SLICES
    parts = columns(s, c.P_SLICES)
    for i in tl.static_range(c.P_SLICES):
        p = exp2_mixed(parts[i], 0 if MASKED else c.EMULATED, c.PACKED)  # what is emulated knows no -inf
        tlx.local_store(tlx.subslice(tmem.p[GROUP], i * SLICE, SLICE), p.to(c.DTYPE))
        tlx.barrier_arrive(bars.p_full[GROUP * c.P_SLICES + i])
        if i == 0 and FIRST:
            norm = tl.sum(p, 1)
        else:
            norm += tl.sum(p, 1)
    return m_new, norm


@triton.jit
def soften(tmem, bars, scale, work, item, tile, counts, GROUP: tl.constexpr, c: tl.constexpr):
    """One group's softmax of one tile. Returns the counts after it."""
    row, _, both = place_tile(work, item, tile, c)
    first, n, head, tail = blocks_of(work, tile, row, c)
    count = counts.steps0
    steps = n
    if GROUP == 1:
        count = counts.steps1
        steps = tl.where(both, n, 0)
    if steps > 0:
        at = row + GROUP * ROWS + tl.arange(0, ROWS) + (tile.k_len - tile.q_len)  # the key where a row stands
        high = at * 0 + tile.k_len
        low = at
        if c.HAS_RIGHT:
            high = tl.minimum(high, at + work.right + 1)
        if c.HAS_LEFT:
            low = at - work.left
        top = (first + n - 1) * c.BLOCK_N
        zero = tl.zeros([ROWS], tl.float32)
        m, norm = _step(tmem, bars, count, zero, zero, scale, low, high, top, True, True, GROUP, c)
        if not c.PEEL:
            for i in tl.range(1, n, num_stages=1):
                m, norm = _step(tmem, bars, count + i, m, norm, scale, low, high, top - i * c.BLOCK_N, False, True,
                                GROUP, c)
        else:
            if c.HAS_RIGHT:
                for i in tl.range(1, head, num_stages=1):
                    m, norm = _step(tmem, bars, count + i, m, norm, scale, low, high, top - i * c.BLOCK_N, False, True,
                                    GROUP, c)
            for i in tl.range(head, n - tail, num_stages=1):
                m, norm = _step(tmem, bars, count + i, m, norm, scale, low, high, 0, False, False, GROUP, c)
            if c.HAS_LEFT:
                for i in tl.range(n - tail, n, num_stages=1):
                    m, norm = _step(tmem, bars, count + i, m, norm, scale, low, high, top - i * c.BLOCK_N, False, True,
                                    GROUP, c)
        put_rows(tmem.norm[GROUP], norm, c)
        put_rows(tmem.top[GROUP], m, c)
        tlx.barrier_arrive(bars.norm_full[GROUP])
    return count_tile(counts, n, both)
