"""TLX jagged flash attention, forward, for Blackwell (sm_100a): kernel and launcher.

A CTA is persistent, 16 warps, one an SM. It walks items ``(tile, head)``; a tile is 256 query rows of one sequence in
two groups of 128.

    role         warps          does                                                           in
    correction   4 (default)    rescales O between blocks, stages O, stores LSE                forward_correction.py
    softmax      4 for a group  S -> P, row maximum and sum                                    forward_softmax.py
    MMA          1              S = Q K^T, O += P V                                            forward_mma.py
    load         1              TMA loads of Q, K, V; draws the items under CLC                forward_load.py
    epilogue     1              TMA stores of O                                                forward_correction.py

    buffer       where   blocks         holds
    q_smem       SMEM    2              [128, D], a group's rows
    kv_smem      SMEM    KV_SLOTS       [BLOCK_N, D]: K(0), V(0), K(1), V(1) ... in turn
    o_smem       SMEM    2 D / 64       [128, 64], staging of the TMA store
    s, p, o ...  TMEM    2              see tmem.py

    barrier      a      completed by                                   waited for by
    q_full       group  the TMA's bytes                                MMA, first S of a tile
    q_empty      group  commit of the tile's last S                    load, Q of the next tile
    kv_full      slot   the TMA's bytes                                MMA
    kv_empty     slot   commit of the last MMA that reads it           load
    s_full       group  commit of S(i)                                 softmax
    p_full       slice  softmax: P(i) written, S(i) read               MMA, before P(i) V(i)
    alpha_full   group  softmax, from a tile's second block on         correction
    o_ready      group  correction: O rescaled, or read at the end     MMA, before P(i) V(i)
    norm_full    group  softmax, at the end of a tile                  correction
    s_empty      group  correction: norm and top read                  MMA, first S of the next tile
    o_done       group  commit of the tile's last P V                  correction
    o_full       group  correction: O staged                           epilogue
    o_empty      group  epilogue: staging read                         correction

Counters run on over tiles. A group's barriers count only the tiles and blocks in which it has rows and there are keys,
but for o_full and o_empty, which count tiles without keys too: there O = 0 is staged and nothing else happens.
KV blocks run from the last to the first: blocks that a bound cuts come first, a window's left edge last.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.forward_correction import HALF, correct, store
from kernels.blackwell.forward_load import load
from kernels.blackwell.forward_mma import multiply
from kernels.blackwell.forward_softmax import soften
from kernels.blackwell.forward_work import CLC_ROLES, ROWS, Bars, Config, Work, next_item, no_counts, read_record
from kernels.blackwell.options import BlackwellForwardOptions
from kernels.blackwell.primitives import opaque
from kernels.blackwell.tmem import allocate_forward
from kernels.hopper.forward import LOG2_E, sm_count, stream_of
from kernels.hopper.forward_schedule import device_tiles
from kernels.hopper.ragged import packed_blocks
from kernels.jagged_layout import JaggedLayout
from kernels.launch import Launcher
from kernels.problem import JaggedProblem
from kernels.tile_schedule import TileShape, heads_within

CLC_STAGES = 2  # answers of cluster launch control that the load warp may be ahead


@triton.jit(do_not_specialize=["num_heads", "group_size", "section", "row_step", "lse_stride", "left", "right"])
def jagged_forward(desc_q, desc_k, desc_v, desc_o, lse, tiles, header, num_heads, group_size, section, row_step,
                   lse_stride, scale, left, right, BLOCK_N: tl.constexpr, D: tl.constexpr,
                   KV_SLOTS: tl.constexpr, P_SLICES: tl.constexpr, ALIAS: tl.constexpr, SKIP_RESCALE: tl.constexpr,
                   EMULATED: tl.constexpr, PACKED: tl.constexpr, PEEL: tl.constexpr, EARLY_RELEASE: tl.constexpr,
                   WARP_BAR: tl.constexpr, SKIP_IDLE: tl.constexpr, SECTIONS: tl.constexpr, ZIGZAG: tl.constexpr,
                   CLC: tl.constexpr, CLC_STAGES: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
                   REGISTERS: tl.constexpr):
    """See the top of the file; `kernels.blackwell.options` says what each switch does.

    ``tiles`` int32 [T, 8] as in `kernels.tile_schedule`; ``header`` int32, T at index 2; ``scale`` is
    softmax_scale * log2(e); ``lse`` fp32 [num_heads, lse_stride], natural log; ``left`` and ``right`` as in Mask.
    """
    DTYPE: tl.constexpr = tlx.dtype_of(desc_q)
    c: tl.constexpr = Config(BLOCK_N, D, KV_SLOTS, P_SLICES, ALIAS, SKIP_RESCALE, EMULATED, PACKED, PEEL,
                             EARLY_RELEASE, SKIP_IDLE, SECTIONS, ZIGZAG, CLC, HAS_LEFT, HAS_RIGHT, DTYPE)
    q_smem = tlx.local_alloc((ROWS, D), DTYPE, 2)
    kv_smem = tlx.local_alloc((BLOCK_N, D), DTYPE, KV_SLOTS)
    o_smem = tlx.local_alloc((ROWS, HALF), DTYPE, 2 * D // HALF)
    tmem = allocate_forward(c)
    q_full = tlx.alloc_barriers(2)
    q_empty = tlx.alloc_barriers(2)
    kv_full = tlx.alloc_barriers(KV_SLOTS)
    kv_empty = tlx.alloc_barriers(KV_SLOTS)
    s_full = tlx.alloc_barriers(2)
    o_done = tlx.alloc_barriers(2)
    o_empty = tlx.alloc_barriers(2)
    if WARP_BAR:
        s_empty = tlx.alloc_warp_barrier(2, num_warps=4)
        p_full = tlx.alloc_warp_barrier(2 * P_SLICES, num_warps=4)
        alpha_full = tlx.alloc_warp_barrier(2, num_warps=4)
        norm_full = tlx.alloc_warp_barrier(2, num_warps=4)
        o_ready = tlx.alloc_warp_barrier(2, num_warps=4)
        o_full = tlx.alloc_warp_barrier(2, num_warps=4)
    else:
        s_empty = tlx.alloc_barriers(2)
        p_full = tlx.alloc_barriers(2 * P_SLICES)
        alpha_full = tlx.alloc_barriers(2)
        norm_full = tlx.alloc_barriers(2)
        o_ready = tlx.alloc_barriers(2)
        o_full = tlx.alloc_barriers(2)
    bars = Bars(q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full, alpha_full, norm_full, o_ready, o_done,
                o_full, o_empty)
    work = Work(opaque(tl.program_id(0)), opaque(tl.num_programs(0)), tiles, tl.load(header + 2) * num_heads, num_heads,
                group_size, section, row_step, left, right)
    clc = tlx.clc_create_context(CLC_ROLES, CLC_STAGES) if CLC else q_full  # else not used

    # The loops are all alike; they stand here, as an answer of cluster launch control can't be passed to a function.
    with tlx.async_tasks():
        with tlx.async_task("default"):
            item, turn, counts = work.first_item, 0, no_counts()
            tile = read_record(work, item, c)
            while item < work.num_items:
                answer = tlx.clc_consumer(clc, (turn // CLC_STAGES) & 1, k=turn % CLC_STAGES) if CLC else turn
                after = next_item(turn, answer, work, c)
                tile_after = read_record(work, after, c)
                counts = correct(tmem, o_smem, bars, scale, lse, lse_stride, work, item, tile, counts, c)
                item, turn, tile = after, turn + 1, tile_after
        with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=2):
            group: tl.constexpr = tlx.async_task_replica_id()
            item, turn, counts = work.first_item, 0, no_counts()
            tile = read_record(work, item, c)
            while item < work.num_items:
                answer = tlx.clc_consumer(clc, (turn // CLC_STAGES) & 1, k=turn % CLC_STAGES) if CLC else turn
                after = next_item(turn, answer, work, c)
                tile_after = read_record(work, after, c)
                counts = soften(tmem, bars, scale, work, item, tile, counts, group, c)
                item, turn, tile = after, turn + 1, tile_after
        with tlx.async_task(num_warps=1, registers=32):
            item, turn, counts = work.first_item, 0, no_counts()
            tile = read_record(work, item, c)
            while item < work.num_items:
                answer = tlx.clc_consumer(clc, (turn // CLC_STAGES) & 1, k=turn % CLC_STAGES) if CLC else turn
                after = next_item(turn, answer, work, c)
                tile_after = read_record(work, after, c)
                counts = multiply(q_smem, kv_smem, tmem, bars, work, item, tile, counts, c)
                item, turn, tile = after, turn + 1, tile_after
        with tlx.async_task(num_warps=1, registers=32):
            item, turn, counts = work.first_item, 0, no_counts()
            tile = read_record(work, item, c)
            while item < work.num_items:
                if CLC:
                    tlx.clc_producer(clc, ((turn // CLC_STAGES) & 1) ^ 1, k=turn % CLC_STAGES)
                answer = tlx.clc_consumer(clc, (turn // CLC_STAGES) & 1, k=turn % CLC_STAGES) if CLC else turn
                after = next_item(turn, answer, work, c)
                tile_after = read_record(work, after, c)
                counts = load(desc_q, desc_k, desc_v, q_smem, kv_smem, bars, work, item, tile, counts, c)
                item, turn, tile = after, turn + 1, tile_after
        with tlx.async_task(num_warps=1, registers=32):
            item, turn, counts = work.first_item, 0, no_counts()
            tile = read_record(work, item, c)
            while item < work.num_items:
                answer = tlx.clc_consumer(clc, (turn // CLC_STAGES) & 1, k=turn % CLC_STAGES) if CLC else turn
                after = next_item(turn, answer, work, c)
                tile_after = read_record(work, after, c)
                counts = store(desc_o, o_smem, bars, work, item, tile, counts, c)
                item, turn, tile = after, turn + 1, tile_after


def forward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
            options: BlackwellForwardOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` of a jagged attention, shapes as in `JaggedProblem`. Nothing waits for the device.

    Launches one kernel, before it another that lists the tiles where the layouts don't have the list yet. Raises
    `ValueError` for options that can't run the problem.
    """
    device = q.device
    heads, dim, mask = problem.num_heads_q, problem.head_dim, problem.mask
    layout_q, layout_k = problem.layout_q, problem.layout_k
    section = heads_within(options.section_mb, heads, problem.num_heads_kv, dim, layout_k.max_seqlen)
    launch = _launcher(options, dim, mask.left is not None, mask.right is not None, section < heads, q.dtype, device)
    out = torch.empty(problem.out_shape, device=device, dtype=q.dtype)
    lse = torch.empty((heads, layout_q.total), device=device, dtype=torch.float32)
    if layout_q.total == 0:
        return out, lse
    if layout_k.total == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    order = "none" if options.schedule == "none" else "sorted"
    tiles = device_tiles(problem, TileShape(options.block_m, options.block_n), order, stream_of(device))
    items = (_exact_tiles(layout_q, options.block_m) or tiles.at_most) * heads
    ctas = items if options.schedule == "clc" else min(sm_count(device), items)
    row_step = options.block_m if mask.right is None or order == "none" else -options.block_m
    left, right = problem.window_bounds
    launch((ctas, 1), packed_blocks(q, 128, dim), packed_blocks(k, options.block_n, dim),
           packed_blocks(v, options.block_n, dim), packed_blocks(out, 128, 64), lse, tiles.records, tiles.header,
           heads, problem.group_size, section, row_step, layout_q.total, problem.softmax_scale * LOG2_E, left, right)
    return out, lse


@functools.cache
def _launcher(options: BlackwellForwardOptions, head_dim: int, has_left: bool, has_right: bool, sections: bool,
              dtype: torch.dtype, device: torch.device) -> Launcher:
    """The launcher of one set of switches for one kind of problem. Raises `ValueError` where they can't run it."""
    reason = options.why_not(head_dim)
    if reason:
        raise ValueError(f"Blackwell forward: {reason}")
    constants = kernel_constants(options, head_dim, has_left, has_right, sections)
    return Launcher(jagged_forward, constants, {"num_warps": 4, "num_stages": 1})


def kernel_constants(options: BlackwellForwardOptions, head_dim: int, has_left: bool, has_right: bool,
                     sections: bool) -> dict[str, int | bool]:
    """The kernel's compile-time arguments; ``sections``: not all heads of a sequence go together."""
    return {
        "BLOCK_N": options.block_n, "D": head_dim, "KV_SLOTS": options.slots(head_dim), "P_SLICES": options.p_slices,
        "ALIAS": options.alias_tmem, "SKIP_RESCALE": options.skip_rescale, "EMULATED": options.emulated_exp2,
        "PACKED": options.packed_math, "PEEL": options.peel_masks, "EARLY_RELEASE": options.early_release,
        "WARP_BAR": options.warp_barriers, "SKIP_IDLE": options.skip_idle_group, "SECTIONS": sections,
        "ZIGZAG": options.schedule == "zigzag", "CLC": options.schedule == "clc", "CLC_STAGES": CLC_STAGES,
        "HAS_LEFT": has_left, "HAS_RIGHT": has_right, "REGISTERS": options.registers,
    }


def _exact_tiles(layout: JaggedLayout, rows: int) -> int | None:
    """Tiles of ``rows`` rows, where the host knows the lengths: cluster launch control starts no CTA in vain then."""
    return layout.cached(("tiles", rows), lambda: int((-(-layout.lengths // rows)).sum())) if layout.on_host else None
