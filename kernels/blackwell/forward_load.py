"""The forward's load warp: TMA loads of Q, K and V, as far ahead as the buffers allow."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_work import ROWS, blocks_of, count_tile, place_tile
from kernels.hopper.ragged import load_rows


@triton.jit
def _load_q(desc_q, q_smem, bars, busy, start, length, row, column, GROUP: tl.constexpr, c: tl.constexpr):
    """Rows of one group for the ``busy``-th tile that has work for it."""
    tlx.barrier_wait(bars.q_empty[GROUP], (busy & 1) ^ 1)
    tlx.barrier_expect_bytes(bars.q_full[GROUP], ROWS * c.D * 2)
    load_rows(desc_q, q_smem[GROUP], start, length, row + GROUP * ROWS, column, bars.q_full[GROUP])


@triton.jit
def _load_kv(desc, kv_smem, bars, count, start, length, row, column, c: tl.constexpr):
    """The ring's ``count``-th block."""
    slot = count % c.KV_SLOTS
    tlx.barrier_wait(bars.kv_empty[slot], ((count // c.KV_SLOTS) & 1) ^ 1)
    tlx.barrier_expect_bytes(bars.kv_full[slot], c.BLOCK_N * c.D * 2)
    load_rows(desc, kv_smem[slot], start, length, row, column, bars.kv_full[slot])


@triton.jit
def load(desc_q, desc_k, desc_v, q_smem, kv_smem, bars, work, item, tile, counts, c: tl.constexpr):
    """Q0, K(0), Q1, V(0), K(1), V(1) ... of one tile. Returns the counts after it."""
    row, head, both = place_tile(work, item, tile, c)
    low, n, _, _ = blocks_of(work, tile, row, c)
    if n > 0:
        q_column = head * c.D
        k_column = (head // work.group_size) * c.D
        at = (low + n - 1) * c.BLOCK_N
        count = 2 * counts.steps0
        _load_q(desc_q, q_smem, bars, counts.busy0, tile.q_start, tile.q_len, row, q_column, 0, c)
        _load_kv(desc_k, kv_smem, bars, count, tile.k_start, tile.k_len, at, k_column, c)
        if both:
            _load_q(desc_q, q_smem, bars, counts.busy1, tile.q_start, tile.q_len, row, q_column, 1, c)
        _load_kv(desc_v, kv_smem, bars, count + 1, tile.k_start, tile.k_len, at, k_column, c)
        for i in tl.range(1, n, num_stages=1):
            at -= c.BLOCK_N
            _load_kv(desc_k, kv_smem, bars, count + 2 * i, tile.k_start, tile.k_len, at, k_column, c)
            _load_kv(desc_v, kv_smem, bars, count + 2 * i + 1, tile.k_start, tile.k_len, at, k_column, c)
    return count_tile(counts, n, both)
