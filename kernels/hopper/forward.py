"""TLX jagged flash attention, forward, for Hopper (sm_90a): kernel and launcher.

CTAs are persistent. A worker (STREAMS of them in a CTA) is one loader and GROUPS consumer groups; it walks items
``(tile, head)``, and a tile is 64 * GROUPS query rows of one sequence.

    role       warps                          does
    loader     4 (default task) or 1          TMA loads of Q, K, V; draws the items when DYNAMIC   forward_loader.py
    consumer   4 each, GROUPS a worker        64 rows each: S, softmax, O; stores O and LSE        forward_consumer.py

    buffer     blocks a worker   holds
    q_smem     NUM_Q * GROUPS    [64, D], the rows of one group
    k_smem     NUM_K             [BLOCK_N, D]
    v_smem     NUM_V             [BLOCK_N, D]
    o_smem     GROUPS            [64, D], staging of the TMA store; with O_IN_V or O_IN_Q a V's or Q's slot
                                  serves instead
    item_smem  ITEM_SLOTS        [32] copies of the next item's number (DYNAMIC only)

    barrier          completed by                        waited for by
    q/k/v_full       the TMA's bytes                     the worker's consumers
    q/k/v_empty      every group, wgmma awaited          loader, before it fills the slot again (with O_IN_Q, Q's slot
                                                         is released a tile later, O's store awaited)
    item_full/empty  loader / every group                consumers / loader (DYNAMIC only)
    named 9, 10      the other group, having issued      groups 0, 1, before they issue (PINGPONG only)

KV blocks run from the last to the first: blocks that a bound cuts come first, full ones follow without any mask, and
a window's left edge comes last. With APART each group has a range of its own within the tile's, and lets the rest pass:
it releases those blocks unread, in their turn. A tile that sees no key runs one block that is masked out: O = 0 and
LSE = -inf.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from triton.runtime import driver

from kernels.hopper.forward_consumer import consume
from kernels.hopper.forward_loader import load
from kernels.hopper.forward_schedule import device_tiles
from kernels.hopper.options import HopperForwardOptions
from kernels.hopper.ragged import packed_blocks
from kernels.hopper.work import ITEM_SLOTS, Config, Ring, Work
from kernels.launch import Launcher
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.tile_schedule import TileShape, heads_within

LOG2_E = math.log2(math.e)
ROWS = tl.constexpr(64)  # query rows of one consumer group: wgmma's M


@triton.jit(do_not_specialize=["num_heads", "group_size", "section", "row_step", "lse_stride", "left", "right"])
def jagged_forward(desc_q, desc_k, desc_v, desc_o, lse, tiles, header, num_heads, group_size, section, row_step,
                   lse_stride, scale, left, right, LOADER_WARPS: tl.constexpr, STREAMS: tl.constexpr,
                   GROUPS: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, NUM_Q: tl.constexpr,
                   NUM_K: tl.constexpr, NUM_V: tl.constexpr, Q_REG: tl.constexpr, O_IN_V: tl.constexpr,
                   O_IN_Q: tl.constexpr, APART: tl.constexpr, PINGPONG: tl.constexpr, WARP_BAR: tl.constexpr,
                   PEEL: tl.constexpr, PREFETCH: tl.constexpr, SECTIONS: tl.constexpr, ZIGZAG: tl.constexpr,
                   DYNAMIC: tl.constexpr, BOTH_ENDS: tl.constexpr, STALE: tl.constexpr, HAS_LEFT: tl.constexpr,
                   HAS_RIGHT: tl.constexpr, REGISTERS: tl.constexpr):
    """See the top of the file; `kernels.hopper.options` says what each switch does.

    ``tiles`` int32 [T, 8] as in `kernels.tile_schedule`; ``header`` int32 [3]: two counters, zero at start and at exit,
    and T, at least 1; ``scale`` is softmax_scale * log2(e); ``lse`` fp32 [num_heads, lse_stride], natural log; ``left``
    and ``right`` as in Mask.
    """
    DTYPE: tl.constexpr = tlx.dtype_of(desc_q)
    c: tl.constexpr = Config(STREAMS, GROUPS, BLOCK_N, D, NUM_Q, NUM_K, NUM_V, Q_REG, O_IN_V, O_IN_Q, APART,
                             PINGPONG, PEEL, PREFETCH, SECTIONS, ZIGZAG, DYNAMIC, BOTH_ENDS, STALE, HAS_LEFT,
                             HAS_RIGHT, DTYPE)
    q_smem = tlx.local_alloc((ROWS, D), DTYPE, STREAMS * NUM_Q * GROUPS)
    k_smem = tlx.local_alloc((BLOCK_N, D), DTYPE, STREAMS * NUM_K)
    v_smem = tlx.local_alloc((BLOCK_N, D), DTYPE, STREAMS * NUM_V)
    o_smem = q_smem if O_IN_Q else v_smem if O_IN_V else tlx.local_alloc((ROWS, D), DTYPE, STREAMS * GROUPS)
    q_full = tlx.alloc_barriers(STREAMS * NUM_Q)
    k_full = tlx.alloc_barriers(STREAMS * NUM_K)
    v_full = tlx.alloc_barriers(STREAMS * NUM_V)
    if WARP_BAR:
        q_empty = tlx.alloc_warp_barrier(STREAMS * NUM_Q, num_warps=4 * GROUPS)
        k_empty = tlx.alloc_warp_barrier(STREAMS * NUM_K, num_warps=4 * GROUPS)
        v_empty = tlx.alloc_warp_barrier(STREAMS * NUM_V, num_warps=4 * GROUPS)
    else:
        q_empty = tlx.alloc_barriers(STREAMS * NUM_Q, arrive_count=GROUPS)
        k_empty = tlx.alloc_barriers(STREAMS * NUM_K, arrive_count=GROUPS)
        v_empty = tlx.alloc_barriers(STREAMS * NUM_V, arrive_count=GROUPS)
    q_ring = Ring(q_smem, q_full, q_empty)
    k_ring = Ring(k_smem, k_full, k_empty)
    v_ring = Ring(v_smem, v_full, v_empty)
    if DYNAMIC:
        item_smem = tlx.local_alloc((32,), tl.int32, STREAMS * ITEM_SLOTS)
        item_full = tlx.alloc_barriers(STREAMS * ITEM_SLOTS)
        item_empty = tlx.alloc_barriers(STREAMS * ITEM_SLOTS, arrive_count=GROUPS)
        items = Ring(item_smem, item_full, item_empty)
    else:
        items = q_ring  # not used
    num_items = tl.load(header + 2) * num_heads
    work = Work(tiles, header, num_items, num_heads, group_size, section, row_step, left, right)

    with tlx.async_tasks():
        if LOADER_WARPS == 4:
            with tlx.async_task("default"):
                load(desc_q, desc_k, desc_v, q_ring, k_ring, v_ring, items, work, 0, c)
            with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=GROUPS):
                cid: tl.constexpr = tlx.async_task_replica_id()
                consume(desc_o, lse, lse_stride, scale, q_ring, k_ring, v_ring, items, o_smem, work, 0, cid, c)
        else:
            with tlx.async_task("default"):
                consume(desc_o, lse, lse_stride, scale, q_ring, k_ring, v_ring, items, o_smem, work, 0, 0, c)
            with tlx.async_task(num_warps=1, registers=24, replicate=STREAMS):
                stream: tl.constexpr = tlx.async_task_replica_id()
                load(desc_q, desc_k, desc_v, q_ring, k_ring, v_ring, items, work, stream, c)
        if LOADER_WARPS == 1 and STREAMS * GROUPS > 1:
            with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=STREAMS * GROUPS - 1):
                group: tl.constexpr = tlx.async_task_replica_id() + 1
                consume(desc_o, lse, lse_stride, scale, q_ring, k_ring, v_ring, items, o_smem, work,
                        group // GROUPS, group % GROUPS, c)


def forward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
            options: HopperForwardOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` of a jagged attention, shapes as in `JaggedProblem`. Nothing waits for the device.

    Launches one kernel, before it another that lists the tiles where the layouts don't have the list yet. Raises
    `ValueError` for options that can't run the problem.
    """
    device = q.device
    heads, dim, mask = problem.num_heads_q, problem.head_dim, problem.mask
    layout_q, layout_k = problem.layout_q, problem.layout_k
    section = heads_a_section(options, heads, problem.num_heads_kv, dim, layout_k.max_seqlen)
    launch = _launcher(options, dim, mask.left is not None, mask.right is not None, section < heads, q.dtype, device)
    out = torch.empty(problem.out_shape, device=device, dtype=q.dtype)
    lse = torch.empty((heads, layout_q.total), device=device, dtype=torch.float32)
    if layout_q.total == 0:
        return out, lse
    if layout_k.total == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    order = "none" if options.schedule == "none" else "sorted"
    tiles = device_tiles(problem, TileShape(options.block_m, options.block_n), order, stream_of(device))
    ctas = min(sm_count(device) * options.ctas_per_sm, -(-tiles.at_most * heads // options.streams))
    row_step = options.block_m if mask.right is None or order == "none" else -options.block_m
    left, right = problem.window_bounds
    launch((ctas, 1), packed_blocks(q, 64, dim), packed_blocks(k, options.block_n, dim),
           packed_blocks(v, options.block_n, dim), packed_blocks(out, 64, dim), lse, tiles.records, tiles.header, heads,
           problem.group_size, section, row_step, layout_q.total, problem.softmax_scale * LOG2_E, left, right)
    return out, lse


@functools.cache
def _launcher(options: HopperForwardOptions, head_dim: int, has_left: bool, has_right: bool, sections: bool,
              dtype: torch.dtype, device: torch.device) -> Launcher:
    """The launcher of a variant for one kind of problem. Raises `ValueError` where it can't run it."""
    reason = options.why_not(head_dim, Mask(0 if has_left else None, 0 if has_right else None))
    if reason:
        raise ValueError(f"Hopper forward, variant {options.variant}: {reason}")
    constants = kernel_constants(options, head_dim, has_left, has_right, sections)
    return Launcher(jagged_forward, constants, {"num_warps": 4, "num_stages": 1, **launch_options(options)})


def kernel_constants(options: HopperForwardOptions, head_dim: int, has_left: bool, has_right: bool,
                     sections: bool) -> dict[str, int | bool]:
    """The kernel's compile-time arguments; ``sections``: not all heads of a sequence go together."""
    return {
        "LOADER_WARPS": options.loader_warps, "STREAMS": options.streams, "GROUPS": options.consumer_groups,
        "BLOCK_N": options.block_n, "D": head_dim, "NUM_Q": options.q_buffers, "NUM_K": options.k_buffers,
        "NUM_V": options.v_buffers, "Q_REG": options.q_in_registers, "O_IN_V": options.o_in_v,
        "O_IN_Q": options.o_in_q, "APART": options.apart,
        "PINGPONG": options.ping_pong, "WARP_BAR": options.warp_barriers, "PEEL": options.peel_masks,
        "PREFETCH": options.prefetch_next_tile, "SECTIONS": sections,
        "ZIGZAG": options.schedule == "zigzag", "DYNAMIC": options.schedule == "dynamic",
        "BOTH_ENDS": options.both_ends, "STALE": options.stale_max,
        "HAS_LEFT": has_left, "HAS_RIGHT": has_right, "REGISTERS": options.registers,
    }


def launch_options(options: HopperForwardOptions) -> dict[str, int]:
    """Compiler options beside the number of warps and stages."""
    return {} if options.max_registers is None else {"maxnreg": options.max_registers}


def heads_a_section(options: HopperForwardOptions, heads_q: int, heads_kv: int, head_dim: int, longest: int) -> int:
    """Query heads that walk a sequence together: as many as `section_mb` allows for ``longest`` keys.

    All of them where three groups leave no registers for the arithmetic.
    """
    if options.consumer_groups * options.streams == 3:
        return heads_q
    return heads_within(options.section_mb, heads_q, heads_kv, head_dim, longest)


def sm_count(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; without one, of what is simulated."""
    return _sm_count(device) if device.type == "cuda" else _sm_count.__wrapped__(device)


@functools.cache
def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def stream_of(device: torch.device) -> int:
    """The handle of a CUDA device's current stream; 0 without one."""
    return driver.active.get_current_stream(device.index) if device.type == "cuda" else 0
