"""What the roles of the Blackwell backward share: switches, buffers, barriers, and which tile comes next.

Every role derives its trip counts from the same tile record, so none of them is told how many steps there are.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

BILLION = tl.constexpr(1 << 30)  # see `kernels.hopper.ragged`
BLOCK_N = tl.constexpr(128)  # KV rows of a CTA's tile
HALF = tl.constexpr(64)  # Q rows that are computed at a time, and those of a pair's CTA
THREADS = tl.constexpr(256)  # of the compute role
S_READ = tl.constexpr(10)  # named barriers: every compute warp has read S, or dP
DP_READ = tl.constexpr(11)
DS_WRITTEN = tl.constexpr(13)  # a pair's compute role: every warp has written dS
FETCHED = tl.constexpr(12)  # the reduction role's: every warp has read what was fetched


class Config(NamedTuple):
    """Compile-time switches of one kernel; `kernels.blackwell.backward_options` says what each does."""

    GROUP: tl.constexpr
    BLOCK_M: tl.constexpr
    D: tl.constexpr
    NUM_Q: tl.constexpr
    NUM_DO: tl.constexpr
    NUM_KV: tl.constexpr
    STAGES: tl.constexpr
    COLUMNS: tl.constexpr
    RELEASE: tl.constexpr
    PEEL: tl.constexpr
    PACKED: tl.constexpr
    CLC: tl.constexpr
    PAIR: tl.constexpr
    ALIAS_DQ: tl.constexpr
    HAS_LEFT: tl.constexpr
    HAS_RIGHT: tl.constexpr
    DTYPE: tl.constexpr


class Work(NamedTuple):
    """Runtime arguments that describe the tiles, see `kernels.blackwell.backward_kernel`."""

    tiles: tl.tensor
    bounds: tl.tensor
    rows: tl.tensor
    num_blocks: tl.tensor
    scale_log2: tl.tensor
    scale: tl.tensor
    left: tl.tensor
    right: tl.tensor


class Buffers(NamedTuple):
    """Shared and tensor memory."""

    k: tlx.buffered_tensor
    v: tlx.buffered_tensor
    q: tlx.buffered_tensor
    do: tlx.buffered_tensor
    ds: tlx.buffered_tensor
    staging: tlx.buffered_tensor
    final: tlx.buffered_tensor
    staging_part: tlx.buffered_tensor
    final_part: tlx.buffered_tensor
    lse: tlx.buffered_tensor
    delta: tlx.buffered_tensor
    s_tmem: tlx.buffered_tensor
    p_tmem: tlx.buffered_tensor
    dp_tmem: tlx.buffered_tensor
    ds_tmem: tlx.buffered_tensor
    dq_tmem: tlx.buffered_tensor
    dq_lanes: tlx.buffered_tensor
    dk_tmem: tlx.buffered_tensor
    dv_tmem: tlx.buffered_tensor


class Barriers(NamedTuple):
    """mbarriers; the table in `kernels.blackwell.backward_kernel` says who completes and who waits."""

    k_full: tlx.mbarrier
    v_full: tlx.mbarrier
    kv_empty: tlx.mbarrier
    q_full: tlx.mbarrier
    q_empty: tlx.mbarrier
    do_full: tlx.mbarrier
    do_empty: tlx.mbarrier
    lse_full: tlx.mbarrier
    lse_empty: tlx.mbarrier
    delta_full: tlx.mbarrier
    delta_empty: tlx.mbarrier
    s_full: tlx.mbarrier
    p_full: tlx.mbarrier
    dp_full: tlx.mbarrier
    ds_tmem_full: tlx.mbarrier
    ds_full: tlx.mbarrier
    dq_full: tlx.mbarrier
    dq_empty: tlx.mbarrier
    partial_full: tlx.mbarrier
    dv_full: tlx.mbarrier
    dk_full: tlx.mbarrier


@triton.jit
def first_tile(bounds, c: tl.constexpr):
    """``(tile, end)``: the first tile of this CTA (or pair), -1 if it has none, and where its tiles end."""
    tile = tl.program_id(0)
    if c.PAIR:
        tile = tile // 2
    end = tile
    if not c.CLC:
        end = tl.load(bounds + tile + 1)
        tile = tl.load(bounds + tile)
        tile = tl.where(tile < end, tile, -1)
    return tile, end


@triton.jit
def next_tile(tile, end):
    """The tile after ``tile``, -1 at the end."""
    return tl.where(tile + 1 < end, tile + 1, -1)
