"""The backward's schedule on the device: what the host knows of it, and the launches that make the rest."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from kernels.hopper.backward_listing import deal_kernel, measure_kernel, order_kernel
from kernels.hopper.backward_options import HopperBackwardOptions
from kernels.hopper.backward_schedule import FIELDS, all_seen, counted, holds, ownership, takes_pairs, takes_turns
from kernels.hopper.forward_schedule import most_tiles
from kernels.launch import Launcher
from kernels.problem import JaggedProblem

BLOCK_FIELDS = 6
SEQUENCES = 16  # of one program


class Bounds(NamedTuple):
    """What the host knows of a schedule: from totals and longest lengths, or from all lengths where it has them.

    Attributes:
        programs: CTAs of the main kernel; with broadcast-Q ``copies`` of them to each KV head.
        copies: see there; 0 without broadcast-Q.
        owned_blocks, owned_steps: see `kernels.hopper.backward_schedule.ownership`.
        num_blocks: at least the blocks of Q of all sequences: rows of the table of blocks.
        num_tiles: at least the tiles.
        scratch: blocks of the accumulator that a CTA has for its owned sequences, as many as the longest that has
            several KV blocks needs, or may need.
        shared_at, shared_blocks: see `BackwardSchedule`; no sequence can be shared if ``shared_blocks`` is 0.
        acc_group: broadcast-Q: blocks of Q.
        acc_blocks: blocks of BLOCK_M rows in the accumulator.
        turns: see `kernels.hopper.backward_schedule.takes_turns`.
        pairs: see `kernels.hopper.backward_schedule.takes_pairs`; ``programs`` is then even.
        holds, all_seen: see `kernels.hopper.backward_schedule`.
    """

    programs: int
    copies: int
    owned_blocks: int
    owned_steps: int
    num_blocks: int
    num_tiles: int
    scratch: int
    shared_at: int
    shared_blocks: int
    acc_group: int
    acc_blocks: int
    turns: bool
    pairs: bool
    holds: bool
    all_seen: bool


class DevicePlan(NamedTuple):
    """`Bounds` and tables on the device: int32 ``tiles [.., 24]``, ``bounds [programs + 1]``, ``blocks [.., 6]``.

    ``counters [batch * heads_kv]`` of tiles that take turns are zeros, and again after each launch of the main kernel,
    so that two launches with one plan must not run at once (those on one stream don't; replays of one graph on two
    streams would); without turns it is one number that means nothing. Of the fields of ``tiles``, those from `STORES`
    to `WANTED` are written where tiles are counted, `WANTED` and `COUNTER` where they take turns, `ROLE` and `BACK`
    where they are done by pairs, `HOLDS` where blocks are held.
    """

    known: Bounds
    tiles: torch.Tensor
    bounds: torch.Tensor
    blocks: torch.Tensor
    counters: torch.Tensor


def bounds(problem: JaggedProblem, options: HopperBackwardOptions, sms: int, block_m: int, block_n: int) -> Bounds:
    """What is known of the schedule of a problem with at least one query and one key, for ``sms`` SMs."""
    layout_q, layout_k = problem.layout_q, problem.layout_k
    heads, group = problem.num_heads_kv, problem.group_size
    longest_q, longest_k = -(-layout_q.max_seqlen // block_m), -(-layout_k.max_seqlen // block_n)
    num_blocks = most_tiles(layout_q, block_m)
    num_tiles = heads * most_tiles(layout_k, block_n)
    if problem.broadcast_q:
        copies = max(1, min(sms // heads, -(-layout_k.total // block_n)))  # every copy has a tile
        acc_blocks = heads * copies * group * longest_q
        return Bounds(heads * copies, copies, 0, 0, num_blocks, num_tiles, 0, 0, 0, longest_q, acc_blocks,
                      False, False, False, all_seen(problem))
    programs = min(sms, num_tiles)
    owned_blocks, owned_steps = ownership(problem, options, programs, block_m, block_n)
    if layout_q.on_host and layout_k.on_host:
        q_blocks, k_blocks = -(-layout_q.lengths // block_m), -(-layout_k.lengths // block_n)
        several = (k_blocks > 1) & (k_blocks <= owned_blocks) & (q_blocks * k_blocks <= owned_steps)
        partial = int(q_blocks[several].max(initial=0))
        all_owned = owned_blocks > 0 and bool((several | (k_blocks <= 1)).all())
    else:
        partial = 0
        equal = layout_k.total == layout_k.batch * layout_k.max_seqlen
        if owned_blocks > 1 and longest_k > 1 and not (equal and longest_k > owned_blocks):
            partial = min(longest_q, owned_steps // 2)
            if layout_q is layout_k:
                partial = min(partial, -(-owned_blocks * block_n // block_m))
        most_steps = longest_q * min(longest_k, owned_blocks)
        all_owned = longest_k <= owned_blocks and (longest_k <= 1 or most_steps <= owned_steps)
    shared_blocks = 0 if all_owned else num_blocks
    turns = takes_turns(problem, options, programs)
    pairs = takes_pairs(problem, options, programs, block_m, block_n)
    programs -= programs % 2 if pairs else 0
    return Bounds(programs, 0, owned_blocks, owned_steps, num_blocks, num_tiles, partial * group,
                  programs * partial * group, shared_blocks, 0,
                  programs * partial * group + problem.num_heads_q * shared_blocks,
                  turns, pairs, holds(problem, options, pairs), all_seen(problem))


def device_plan(problem: JaggedProblem, options: HopperBackwardOptions, order: str, sms: int, block_m: int,
                block_n: int, stream: int) -> DevicePlan:
    """The schedule of a problem as for `bounds`, cached on the K layout for launches on the same stream.

    Launches three small kernels on the current stream, whose handle is ``stream``; nothing waits.
    """
    layout_q, layout_k, mask = problem.layout_q, problem.layout_k, problem.mask
    partner = layout_q.max_seqlen if problem.broadcast_q else None if layout_q is layout_k else layout_q
    counting = counted(problem, options)
    rotating = options.rotate and not problem.broadcast_q
    pairing = options.pairs and (options.serpentine, options.kv_stages, options.dq_stages, problem.head_dim)
    holding = options.hold and options.serpentine and (options.kv_stages, options.dq_stages)
    key = ("hopper backward", partner, problem.broadcast_q, problem.num_heads_q, problem.num_heads_kv, mask,
           options.direct_dq, options.owned_blocks, options.deterministic, counting, options.turns, rotating, pairing,
           holding, order, sms, block_m, block_n, stream)

    def build() -> DevicePlan:
        known = bounds(problem, options, sms, block_m, block_n)
        batch, device, heads = layout_k.batch, layout_k.device, problem.num_heads_kv
        opening, turning = (batch, batch * heads) if known.turns else (1, 1)
        sizes = [4 * -(-size // 4) for size in (  # 16-byte aligned each
            batch, batch, batch, batch, opening, batch, known.num_tiles, known.num_tiles, 2, known.programs + 1,
            known.num_blocks * BLOCK_FIELDS, (known.num_tiles + 1) * FIELDS, turning)]
        memory = torch.empty((sum(sizes),), dtype=torch.int32, device=device)
        (ranks, items, blocks_of, first_items, first_opens, first_blocks, sequences, tiles_of, counts, ends, blocks,
         tiles, counters) = torch.split_with_sizes(memory, sizes)
        left, right = problem.window_bounds
        limits = layout_q.max_seqlen, layout_k.max_seqlen, known.owned_blocks, known.owned_steps
        launch = _launchers(block_m, block_n, mask.left is not None, mask.right is not None, order,
                            problem.broadcast_q, counting, options.deterministic, known.turns, known.pairs,
                            rotating, known.pairs and options.serpentine, known.holds, device)
        launch.measure((-(-batch // 128), 1), layout_q.cu_seqlens, layout_k.cu_seqlens, ranks, items, blocks_of, batch,
                       *limits, left, right, problem.group_size, 1 if problem.broadcast_q else heads)
        launch.order((-(-batch // SEQUENCES), 1), layout_q.cu_seqlens, layout_k.cu_seqlens, ranks, items, blocks_of,
                     first_items, first_opens, first_blocks, sequences, tiles_of, counts, blocks, counters, batch,
                     *limits, right, known.num_blocks, heads)
        launch.deal((known.programs, 1), layout_q.cu_seqlens, layout_k.cu_seqlens, first_items, first_opens,
                    first_blocks, sequences, tiles_of, counts, ends, tiles,
                    known.copies or known.programs // (2 if known.pairs else 1), *limits, left, right,
                    problem.group_size, known.scratch, known.shared_at, known.shared_blocks, known.acc_group, heads)
        return DevicePlan(known, tiles, ends, blocks, counters[:turning])

    return layout_k.cached(key, build)


class _Launchers(NamedTuple):
    measure: Launcher
    order: Launcher
    deal: Launcher


@functools.cache
def _launchers(block_m: int, block_n: int, has_left: bool, has_right: bool, order: str, broadcast: bool, counting: bool,
               deterministic: bool, turns: bool, pairs: bool, rotate: bool, serpentine: bool, hold: bool,
               device: torch.device) -> _Launchers:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n}
    return _Launchers(
        Launcher(measure_kernel, {**blocks, "HAS_LEFT": has_left, "HAS_RIGHT": has_right, "SORTED": order != "none",
                                  "SEQUENCES": 128}, {"num_warps": 4}),
        Launcher(order_kernel, {**blocks, "HAS_RIGHT": has_right, "BROADCAST": broadcast, "COUNTED": counting,
                                "TURNS": turns, "SEQUENCES": SEQUENCES, "CHUNK": 256, "WIDTH": 8}, {"num_warps": 4}),
        Launcher(deal_kernel, {**blocks, "HAS_LEFT": has_left, "HAS_RIGHT": has_right, "ZIGZAG": order == "zigzag",
                               "BROADCAST": broadcast, "COUNTED": counting, "ORDERED": counting and deterministic,
                               "TURNS": turns, "PAIRS": pairs, "ROTATE": rotate, "SERPENTINE": serpentine, "HOLD": hold,
                               "CHUNK": 2048, "ROUNDS": 64}, {"num_warps": 4}))
