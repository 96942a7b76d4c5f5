"""`HopperForwardOptions`: every optimisation of the Hopper forward as a named switch, and the named variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.mask import Mask
from kernels.switches import check_switch

SCHEDULES = ("none", "sorted", "zigzag", "dynamic")
SMEM_PER_CTA = 232_448  # bytes a CTA can have
SMEM_PER_SM = 233_472  # bytes an SM has; every CTA costs 1,024 more than it asks for
HEAD_DIMS = (64, 128)


@dataclass(frozen=True)
class HopperForwardOptions:
    """What one compiled forward does. A worker is one loader with ``consumer_groups`` groups of 64 query rows.

    Attributes:
        variant: the name it started from (for the record).
        consumer_groups: groups that share a tile of 64 rows each, and its K and V.
        streams: independent workers in one CTA, each with its own tiles and rings.
        ctas_per_sm: CTAs resident on an SM.
        block_n: keys a step.
        q_buffers, k_buffers, v_buffers: slots of each ring, for every worker.
        q_in_registers: Q is wgmma's register operand, so that S = Q K^T reads half as much shared memory.
        o_in_v: O is staged in the V slot that was read last, instead of a buffer of its own.
        o_in_q: O is staged in the group's Q slot, which is free again a tile later.
        apart: a group walks those blocks that its own 64 rows see and lets the others pass, so that groups of a worker
            drift apart as far as the rings allow; a tile's first rows go to the next group at every turn.
        ping_pong: two groups take turns at issuing, so that one's softmax meets the other's matmuls.
        warp_barriers: every thread arrives by itself when a slot is released, without a sync of the group.
        peel_masks: only blocks that a bound cuts are masked; off: every block is.
        prefetch_next_tile: Q's slot is free for the next tile as soon as it was read; off: after the epilogue.
        section_mb: heads of a sequence walk it together as far as their K and V fit this many MiB of L2.
        loader_warps: 4 (the loader is the default task) or 1.
        both_ends: half of the workers begin with the shortest sequences, so that items that wait for memory and items
            that compute meet on an SM all the time, instead of the latter at first and the former at last.
        stale_max: exponentials are relative to an older maximum of their row as long as they stay small enough; a warp
            in which they don't takes the new maximum and does its step again (`kernels.hopper.stale_softmax`).
        schedule: ``none``, ``sorted``, ``zigzag`` (see `kernels.tile_schedule`) or ``dynamic``: sorted items drawn
            from an atomic counter.
    """

    variant: str = "custom"
    consumer_groups: int = 1
    streams: int = 1
    ctas_per_sm: int = 2
    block_n: int = 64
    q_buffers: int = 1
    k_buffers: int = 2
    v_buffers: int = 2
    q_in_registers: bool = False
    o_in_v: bool = False
    o_in_q: bool = False
    apart: bool = False
    ping_pong: bool = False
    warp_barriers: bool = True
    peel_masks: bool = True
    prefetch_next_tile: bool = True
    section_mb: int = 8
    loader_warps: int = 1
    both_ends: bool = False
    stale_max: bool = True
    schedule: str = "zigzag"

    @property
    def block_m(self) -> int:
        """Query rows of a tile."""
        return 64 * self.consumer_groups

    @property
    def registers(self) -> int:
        """Registers a thread of every consumer group but the default task's."""
        return 160 if self.consumer_groups * self.streams == 3 else 232

    @property
    def max_registers(self) -> int | None:
        """``maxnreg`` at launch; None: what the CTA's threads allow. setmaxnreg redistributes it."""
        return {1: None, 2: 128, 3: 80}[self.ctas_per_sm]

    def shared_memory(self, head_dim: int) -> int:
        """Bytes of the buffers of a CTA, without barriers (under 1 KiB)."""
        rows = self.q_buffers * self.block_m + (self.k_buffers + self.v_buffers) * self.block_n
        if not (self.o_in_v or self.o_in_q):
            rows += self.block_m
        return self.streams * rows * head_dim * 2

    def why_not(self, head_dim: int, mask: Mask) -> str | None:
        """Why this combination can't run, in one line that names the switches; None if it can."""
        solo = self.consumer_groups == 1
        groups = self.consumer_groups * self.streams
        smem_limit = min(SMEM_PER_CTA, SMEM_PER_SM // self.ctas_per_sm - 1024)
        rules = [
            (head_dim not in HEAD_DIMS, f"head_dim {head_dim} is not one of {HEAD_DIMS}"),
            (self.schedule not in SCHEDULES, f"schedule: {self.schedule!r} is not one of {', '.join(SCHEDULES)}"),
            (self.block_n not in (64, 128), f"block_n: expected 64 or 128, got {self.block_n}"),
            (not 1 <= groups <= 3, f"consumer_groups * streams: expected 1 to 3, got {groups}"),
            (self.loader_warps not in (1, 4), f"loader_warps: expected 1 or 4, got {self.loader_warps}"),
            (self.loader_warps == 4 and (self.streams > 1 or self.ctas_per_sm > 2),
             "streams > 1 and ctas_per_sm > 2 need loader_warps 1"),
            (not 1 <= self.ctas_per_sm <= 3, f"ctas_per_sm: expected 1 to 3, got {self.ctas_per_sm}"),
            (self.ctas_per_sm > 1 and groups > 1, "ctas_per_sm > 1 needs one consumer group and one stream"),
            (min(self.q_buffers, self.k_buffers, self.v_buffers) < 1, "q_buffers, k_buffers, v_buffers: at least 1"),
            (self.ping_pong and (self.consumer_groups != 2 or self.streams != 1), "ping_pong needs consumer_groups 2"),
            (self.o_in_v and not solo, "o_in_v needs consumer_groups 1: another group may still read that V"),
            (self.o_in_v and self.block_n != 64, "o_in_v needs block_n 64, the shape of O"),
            (self.o_in_v and self.v_buffers < 2, "o_in_v needs v_buffers >= 2"),
            (self.o_in_q and self.o_in_v, "o_in_q and o_in_v exclude each other"),
            (self.o_in_q and self.q_buffers < 2, "o_in_q needs q_buffers >= 2: a slot is free a tile later"),
            (self.o_in_q and not self.prefetch_next_tile, "prefetch_next_tile off needs o_in_q off"),
            (self.apart and (solo or self.ping_pong), "apart needs consumer_groups >= 2 and ping_pong off"),
            ((self.streams == 3 or (self.apart and groups == 3)) and head_dim == 128 and mask.left is not None,
             "streams 3, and apart with three groups, spill at head_dim 128 under a left bound"),
            (self.section_mb < 0, f"section_mb: must be >= 0, got {self.section_mb}"),
            (not self.prefetch_next_tile and self.q_buffers > 1, "prefetch_next_tile off needs q_buffers 1"),
            (head_dim == 128 and self.ctas_per_sm > 2, "ctas_per_sm > 2 needs head_dim 64: too few registers"),
        ]
        for broken, reason in rules:
            if broken:
                return reason
        need = self.shared_memory(head_dim) + 1024
        if need > smem_limit + 512:
            return f"buffers need {need:,} bytes of shared memory, {smem_limit:,} are there"
        return None


VARIANTS: dict[str, HopperForwardOptions] = {
    name: replace(options, variant=name) for name, options in {
        # two CTAs an SM, each with 64-row tiles of its own
        "solo64": HopperForwardOptions(q_in_registers=True),
        # three such workers: in one CTA, or at D = 64 three CTAs
        "tri64": HopperForwardOptions(streams=3, ctas_per_sm=1, k_buffers=1, v_buffers=2, o_in_v=True),
        "tri64c": HopperForwardOptions(ctas_per_sm=3, q_in_registers=True),
        # two groups share K and V of a 128-row tile, 64 keys a step, each at its own pace
        "duo64": HopperForwardOptions(consumer_groups=2, ctas_per_sm=1, q_buffers=2, k_buffers=4, v_buffers=4,
                                      q_in_registers=True, apart=True),
        # two groups share a 128-row tile, 128 keys a step
        "pair128": HopperForwardOptions(consumer_groups=2, ctas_per_sm=1, block_n=128, q_buffers=2, ping_pong=True),
        # three groups share K and V of a 192-row tile, each at its own pace
        "trio64": HopperForwardOptions(consumer_groups=3, ctas_per_sm=1, q_buffers=2, k_buffers=4, v_buffers=4,
                                       o_in_q=True, apart=True, loader_warps=4),
    }.items()
}


@dataclass(frozen=True)
class HopperForwardRequest:
    """What a config asks for: a variant (None: the selection rule's) with single switches changed."""

    variant: str | None = None
    switches: tuple[tuple[str, object], ...] = ()

    def apply(self, options: HopperForwardOptions) -> HopperForwardOptions:
        """``options`` with the switches changed."""
        return replace(options, **dict(self.switches)) if self.switches else options  # type: ignore[arg-type]


def make_request(values: Mapping[str, object]) -> HopperForwardRequest:
    """From plain values: ``variant`` and any switch. Raises `ValueError` naming what is unknown and what is allowed."""
    switches = []
    variant = None
    for name, value in values.items():
        if name == "variant":
            if value not in VARIANTS:
                raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}, got {value!r}")
            variant = str(value)
            continue
        check_switch(name, value, HopperForwardOptions(), "Hopper forward", SCHEDULES)
        switches.append((name, value))
    return HopperForwardRequest(variant, tuple(sorted(switches)))
