"""The forward's softmax groups: one warp group for each 128 rows, a thread for a row.

Of each S(i) it makes P(i) in 16 bits, in slices that the MMA role may use one by one; before them it passes on alpha,
the factor by which the correction rescales O. A tile's first block has no alpha: there is no O yet.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_work import ROWS, blocks_of, next_item, place_tile, read_record
from kernels.blackwell.primitives import columns, exp2_on_fma, fma, joined
from kernels.blackwell.tmem import put_rows
from kernels.hopper.softmax import mask_scores

KEEP = tl.constexpr(-8.0)  # log2: while the maximum rises by less than 2^8, O keeps its scale


@triton.jit
def _exp2(x, MASKED: tl.constexpr, c: tl.constexpr):
    """``2^x``. EMULATED of every 16 columns go to the FMA units, but not behind a mask: they know no -inf."""
    if MASKED or c.EMULATED == 0:
        return tl.math.exp2(x)
    else:
        parts = columns(x, x.shape[1] // c.EMULATED)
        done = ()
        for i in tl.static_range(len(parts)):
            if i % (16 // c.EMULATED) == 0:
                done = done + (exp2_on_fma(parts[i], c.PACKED),)  # noqa: RUF005 (Triton knows no star)
            else:
                done = done + (tl.math.exp2(parts[i]),)  # noqa: RUF005 (Triton knows no star)
        return joined(done)


@triton.jit
def _step(tmem, bars, count, m, norm, scale, row, column, shift, k_len, work, FIRST: tl.constexpr,
          MASKED: tl.constexpr, GROUP: tl.constexpr, c: tl.constexpr):
    """One block, the group's ``count``-th. Returns ``(m, norm)``.

    ``m`` is the maximum of the scores before the scale. With SKIP_RESCALE it is the one that O is scaled by, up to
    2^8 below the true one. A row that has seen no key has m = -inf and norm = 0.
    """
    tlx.barrier_wait(bars.s_full[GROUP], count & 1)
    s = tlx.local_load(tmem.s[GROUP])  # [128, BLOCK_N]
    if MASKED:
        s = mask_scores(s, row, column, shift, k_len, work.left, work.right, c.HAS_LEFT, c.HAS_RIGHT)
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
    parts = columns(s, c.P_SLICES)
    done = ()
    for i in tl.static_range(c.P_SLICES):
        p = _exp2(parts[i], MASKED, c)
        tlx.local_store(tmem.p[GROUP * c.P_SLICES + i], p.to(c.DTYPE))
        tlx.barrier_arrive(bars.p_full[GROUP * c.P_SLICES + i])
        done = done + (p,)  # noqa: RUF005 (Triton knows no star)
    total = tl.sum(joined(done), 1)
    return m_new, total if FIRST else norm + total


@triton.jit
def soften(tmem, bars, scale, work, clc, GROUP: tl.constexpr, c: tl.constexpr):
    """One group's walk over the items."""
    rows = tl.arange(0, ROWS) + GROUP * ROWS
    cols = tl.arange(0, c.BLOCK_N)
    item = tl.program_id(0)
    tile = read_record(work, item, c)
    turn = 0
    count = 0  # KV blocks of earlier tiles
    while item < work.num_items:
        next_one = next_item(turn, work, clc, c)
        next_tile = read_record(work, next_one, c)
        row, _, both = place_tile(work, item, tile, c)
        low, n, head, tail = blocks_of(work, tile, row, c)
        if GROUP == 1:
            n = tl.where(both, n, 0)
        if n > 0:
            shift = tile.k_len - tile.q_len
            r = row + rows
            top = low + n - 1
            zero = tl.zeros([ROWS], tl.float32)
            m, norm = _step(tmem, bars, count, zero, zero, scale, r, top * c.BLOCK_N + cols, shift, tile.k_len, work,
                            True, True, GROUP, c)
            if not c.PEEL:
                for i in tl.range(1, n, num_stages=1):
                    m, norm = _step(tmem, bars, count + i, m, norm, scale, r, (top - i) * c.BLOCK_N + cols, shift,
                                    tile.k_len, work, False, True, GROUP, c)
            else:
                if c.HAS_RIGHT:
                    for i in tl.range(1, head, num_stages=1):
                        m, norm = _step(tmem, bars, count + i, m, norm, scale, r, (top - i) * c.BLOCK_N + cols, shift,
                                        tile.k_len, work, False, True, GROUP, c)
                for i in tl.range(head, n - tail, num_stages=1):
                    m, norm = _step(tmem, bars, count + i, m, norm, scale, r, cols, shift, tile.k_len, work, False,
                                    False, GROUP, c)
                if c.HAS_LEFT:
                    for i in tl.range(n - tail, n, num_stages=1):
                        m, norm = _step(tmem, bars, count + i, m, norm, scale, r, (top - i) * c.BLOCK_N + cols, shift,
                                        tile.k_len, work, False, True, GROUP, c)
            put_rows(tmem.norm[GROUP], norm, c)
            put_rows(tmem.top[GROUP], m, c)
            tlx.barrier_arrive(bars.norm_full[GROUP])
            count += n
        item = next_one
        tile = next_tile
        turn += 1
