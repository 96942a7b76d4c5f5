"""The forward's MMA warp: S = Q K^T and O += P V for both groups, all of them asynchronous and in issue order.

With two groups: QK0(0), QK1(0), PV0(0), then for each further block QK0(i), PV1(i - 1), QK1(i), PV0(i), and at the end
PV1(n - 1): while one group's softmax runs, the tensor cores work for the other. With one group: QK0(i), PV0(i) in turn.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_work import blocks_of, count_tile, place_tile


@triton.jit
def _wait_kv(bars, count, c: tl.constexpr):
    """The slot of the ring's ``count``-th block, once it is there."""
    slot = count % c.KV_SLOTS
    tlx.barrier_wait(bars.kv_full[slot], (count // c.KV_SLOTS) & 1)
    return slot


@triton.jit
def _qk(q_smem, kv_smem, tmem, bars, slot, GROUP: tl.constexpr, RELEASE: tl.constexpr):
    """S of one group; RELEASE: it is the last to read this K."""
    k = tlx.local_trans(kv_smem[slot])
    if RELEASE:
        tlx.async_dot(q_smem[GROUP], k, tmem.s[GROUP], use_acc=False,
                      mBarriers=[bars.s_full[GROUP], bars.kv_empty[slot]])
    else:
        tlx.async_dot(q_smem[GROUP], k, tmem.s[GROUP], use_acc=False, mBarriers=[bars.s_full[GROUP]])


@triton.jit
def _pv(kv_smem, tmem, bars, slot, step, more, GROUP: tl.constexpr, RELEASE: tl.constexpr, c: tl.constexpr):
    """O += P V of one group's ``step``-th block; not ``more``: O = P V. RELEASE: it is the last to read this V."""
    SLICE: tl.constexpr = c.BLOCK_N // c.P_SLICES
    tlx.barrier_wait(bars.o_ready[GROUP], (step & 1) ^ 1)
    for i in tl.static_range(c.P_SLICES):
        tlx.barrier_wait(bars.p_full[GROUP * c.P_SLICES + i], step & 1)
        p = tlx.subslice(tmem.p[GROUP], i * SLICE, SLICE)
        v = tlx.local_slice(kv_smem[slot], [i * SLICE, 0], [SLICE, c.D])
        if RELEASE and i == c.P_SLICES - 1:
            tlx.async_dot(p, v, tmem.o[GROUP], use_acc=more if i == 0 else True, mBarriers=[bars.kv_empty[slot]])
        else:
            tlx.async_dot(p, v, tmem.o[GROUP], use_acc=more if i == 0 else True, force_async=True)


@triton.jit
def _begin(bars, busy, GROUP: tl.constexpr):
    """Wait for a tile's Q, and until the last tile's norm and top have left the columns of S."""
    tlx.barrier_wait(bars.q_full[GROUP], busy & 1)
    tlx.barrier_wait(bars.s_empty[GROUP], (busy & 1) ^ 1)


@triton.jit
def _both_groups(q_smem, kv_smem, tmem, bars, n, counts, c: tl.constexpr):
    count = 2 * counts.steps0
    k = _wait_kv(bars, count, c)
    _begin(bars, counts.busy0, 0)
    _qk(q_smem, kv_smem, tmem, bars, k, 0, False)
    _begin(bars, counts.busy1, 1)
    _qk(q_smem, kv_smem, tmem, bars, k, 1, True)
    v = _wait_kv(bars, count + 1, c)
    _pv(kv_smem, tmem, bars, v, counts.steps0, False, 0, False, c)
    for i in tl.range(1, n, num_stages=1):
        k = _wait_kv(bars, count + 2 * i, c)
        _qk(q_smem, kv_smem, tmem, bars, k, 0, False)
        _pv(kv_smem, tmem, bars, v, counts.steps1 + i - 1, i > 1, 1, True, c)
        _qk(q_smem, kv_smem, tmem, bars, k, 1, True)
        v = _wait_kv(bars, count + 2 * i + 1, c)
        _pv(kv_smem, tmem, bars, v, counts.steps0 + i, True, 0, False, c)
    tlx.tcgen05_commit(bars.q_empty[0])
    tlx.tcgen05_commit(bars.q_empty[1])
    tlx.tcgen05_commit(bars.o_done[0])
    _pv(kv_smem, tmem, bars, v, counts.steps1 + n - 1, n > 1, 1, True, c)
    tlx.tcgen05_commit(bars.o_done[1])


@triton.jit
def _one_group(q_smem, kv_smem, tmem, bars, n, counts, c: tl.constexpr):
    count = 2 * counts.steps0
    k = _wait_kv(bars, count, c)
    _begin(bars, counts.busy0, 0)
    _qk(q_smem, kv_smem, tmem, bars, k, 0, True)
    for i in tl.range(1, n, num_stages=1):
        v = _wait_kv(bars, count + 2 * i - 1, c)
        _pv(kv_smem, tmem, bars, v, counts.steps0 + i - 1, i > 1, 0, True, c)
        k = _wait_kv(bars, count + 2 * i, c)
        _qk(q_smem, kv_smem, tmem, bars, k, 0, True)
    tlx.tcgen05_commit(bars.q_empty[0])
    v = _wait_kv(bars, count + 2 * n - 1, c)
    _pv(kv_smem, tmem, bars, v, counts.steps0 + n - 1, n > 1, 0, True, c)
    tlx.tcgen05_commit(bars.o_done[0])


@triton.jit
def multiply(q_smem, kv_smem, tmem, bars, work, item, tile, counts, c: tl.constexpr):
    """The matmuls of one tile. Returns the counts after it."""
    row, _, both = place_tile(work, item, tile, c)
    _, n, _, _ = blocks_of(work, tile, row, c)
    if n > 0:
        if c.SKIP_IDLE:
            if both:
                _both_groups(q_smem, kv_smem, tmem, bars, n, counts, c)
            else:
                _one_group(q_smem, kv_smem, tmem, bars, n, counts, c)
        else:
            _both_groups(q_smem, kv_smem, tmem, bars, n, counts, c)
    return count_tile(counts, n, both)
