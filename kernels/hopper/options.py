"""`HopperForwardOptions`: every optimisation of the Hopper forward as a named switch, and the named variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from kernels.mask import Mask

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
        ping_pong: two groups take turns at issuing, so that one's softmax meets the other's matmuls.
        warp_barriers: every thread arrives by itself when a slot is released, without a sync of the group.
        skip_inactive: a group whose rows lie past the sequence's end computes nothing.
        kv_resident_reps: where all of K and V fits the rings they stay for up to this many Q sub-tiles.
        peel_masks: full blocks run in a loop without mask; off: every block is masked.
        overlap_tiles: the next tile's first S = Q K^T is issued before this tile's last O += P V.
        prefetch_next_tile: Q's slot is free for the next tile as soon as it was read; off: after the epilogue.
        carry_p_fp32: P crosses the loop in fp32 rather than in 16 bits (affects only ptxas's scheduling).
        loader_warps: 4 (the loader is the default task) or 1.
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
    ping_pong: bool = False
    warp_barriers: bool = True
    skip_inactive: bool = False
    kv_resident_reps: int = 1
    peel_masks: bool = True
    overlap_tiles: bool = False
    prefetch_next_tile: bool = True
    carry_p_fp32: bool = False
    loader_warps: int = 1
    schedule: str = "zigzag"

    @property
    def block_m(self) -> int:
        """Query rows of a tile (of one sub-tile where K and V are resident)."""
        return 64 * self.consumer_groups

    @property
    def resident_blocks(self) -> int:
        """KV blocks that may stay on chip for several sub-tiles."""
        return min(self.k_buffers, self.v_buffers) if self.kv_resident_reps > 1 else 0

    @property
    def registers(self) -> int:
        """Registers a thread of every consumer group but the default task's."""
        groups = self.consumer_groups * self.streams
        return {1: 232, 2: 232, 3: 160, 4: 112}[groups]

    @property
    def max_registers(self) -> int | None:
        """``maxnreg`` at launch; None: what the CTA's threads allow. setmaxnreg redistributes it."""
        warpgroups = self.consumer_groups * self.streams + 1
        if self.ctas_per_sm * warpgroups == 2:
            return None
        return {2: {2: 128, 3: 80, 4: 64}, 3: {1: None}, 4: {1: None}, 5: {1: 96}}[warpgroups].get(self.ctas_per_sm)

    def shared_memory(self, head_dim: int) -> int:
        """Bytes of the buffers of a CTA, without barriers (under 1 KiB)."""
        rows = self.q_buffers * self.block_m + (self.k_buffers + self.v_buffers) * self.block_n
        if not self.o_in_v:
            rows += self.block_m
        return self.streams * rows * head_dim * 2

    def why_not(self, head_dim: int, mask: Mask) -> str | None:
        """Why this combination can't run, in one line that names the switches; None if it can."""
        solo = self.consumer_groups == 1
        groups = self.consumer_groups * self.streams
        smem_limit = min(SMEM_PER_CTA, SMEM_PER_SM // self.ctas_per_sm - 1024)
        rules = [
            (head_dim not in HEAD_DIMS, f"head_dim {head_dim} is not one of {HEAD_DIMS}"),
            (self.schedule not in SCHEDULES, f"schedule: expected one of {', '.join(SCHEDULES)}, got {self.schedule!r}"),
            (self.block_n not in (64, 128), f"block_n: expected 64 or 128, got {self.block_n}"),
            (not 1 <= groups <= 4, f"consumer_groups * streams: expected 1 to 4, got {groups}"),
            (self.loader_warps not in (1, 4), f"loader_warps: expected 1 or 4, got {self.loader_warps}"),
            (self.loader_warps == 4 and self.streams > 1, "streams > 1 needs loader_warps 1"),
            (not 1 <= self.ctas_per_sm <= 4, f"ctas_per_sm: expected 1 to 4, got {self.ctas_per_sm}"),
            (self.ctas_per_sm > 1 and groups > 1, "ctas_per_sm > 1 needs one consumer group and one stream"),
            (min(self.q_buffers, self.k_buffers, self.v_buffers) < 1, "q_buffers, k_buffers, v_buffers: at least 1"),
            (self.ping_pong and (self.consumer_groups != 2 or self.streams != 1), "ping_pong needs consumer_groups 2"),
            (self.o_in_v and not solo, "o_in_v needs consumer_groups 1: another group may still read that V"),
            (self.o_in_v and self.block_n != 64, "o_in_v needs block_n 64, the shape of O"),
            (self.o_in_v and self.v_buffers < 2, "o_in_v needs v_buffers >= 2"),
            (self.o_in_v and (self.kv_resident_reps > 1 or self.overlap_tiles), "o_in_v excludes kv_resident_reps and "
             "overlap_tiles, which need that V slot back at once"),
            (self.skip_inactive and solo, "skip_inactive needs consumer_groups > 1: a lone group always has a row"),
            (self.kv_resident_reps > 1 and not mask.is_full, "kv_resident_reps > 1 needs a full mask"),
            (self.overlap_tiles and (self.kv_resident_reps > 1 or self.skip_inactive),
             "overlap_tiles excludes kv_resident_reps and skip_inactive"),
            (self.overlap_tiles and self.q_buffers < 2, "overlap_tiles needs q_buffers >= 2"),
            (self.overlap_tiles and not self.prefetch_next_tile, "overlap_tiles needs prefetch_next_tile"),
            (not self.prefetch_next_tile and self.q_buffers > 1, "prefetch_next_tile off needs q_buffers 1"),
            (self.overlap_tiles and self.block_n == 128 and head_dim == 128, "overlap_tiles with block_n 128 spills"),
            (head_dim == 128 and self.ctas_per_sm > 2, "ctas_per_sm > 2 needs head_dim 64: too few registers"),
            (head_dim == 128 and groups == 4, "four consumer groups need head_dim 64: too few registers"),
        ]
        for broken, reason in rules:
            if broken:
                return reason
        need = self.shared_memory(head_dim) + 1024
        if need > smem_limit + 512:
            return f"buffers need {need:,} bytes of shared memory, {smem_limit:,} are there"
        return None


_SOLO = HopperForwardOptions(q_in_registers=True)
_PAIR = HopperForwardOptions(consumer_groups=2, ctas_per_sm=1, block_n=128, q_buffers=2, warp_barriers=False,
                             loader_warps=4)
VARIANTS: dict[str, HopperForwardOptions] = {
    name: replace(options, variant=name) for name, options in {
        # two CTAs an SM, each with 64-row tiles of its own
        "solo64": _SOLO,
        "solo64w4": replace(_SOLO, loader_warps=4),
        "solo64o": replace(_SOLO, q_buffers=2, overlap_tiles=True),
        "solo128": replace(_SOLO, block_n=128, k_buffers=1, v_buffers=1),
        "solo128d2": replace(_SOLO, block_n=128),
        # three or four such workers in one CTA: while one is between tiles, the others keep the tensor cores busy
        "tri64": HopperForwardOptions(streams=3, ctas_per_sm=1, k_buffers=1, v_buffers=2, o_in_v=True),
        "tri128": HopperForwardOptions(streams=3, ctas_per_sm=1, block_n=128, k_buffers=1, v_buffers=2),
        "quad64": HopperForwardOptions(streams=4, ctas_per_sm=1),
        "tri64c": HopperForwardOptions(ctas_per_sm=3, q_in_registers=True),
        # two groups share a 128-row tile
        "pair128": replace(_PAIR, ping_pong=True),
        "pair128np": _PAIR,
        "pair128w1": replace(_PAIR, ping_pong=True, loader_warps=1),
        "pair128r": replace(_PAIR, skip_inactive=True, kv_resident_reps=4),
        "pair64": replace(_PAIR, block_n=64, q_buffers=1, k_buffers=4, v_buffers=4, skip_inactive=True,
                          q_in_registers=True, warp_barriers=True, loader_warps=1),
        # three groups share a 192-row tile
        "trio64": HopperForwardOptions(consumer_groups=3, ctas_per_sm=1, k_buffers=4, v_buffers=4, skip_inactive=True,
                                       loader_warps=4),
    }.items()
}


@dataclass(frozen=True)
class HopperForwardRequest:
    """What a config asks for: a variant (None: the selection rule's) with single switches changed."""

    variant: str | None = None
    switches: tuple[tuple[str, object], ...] = ()

    def apply(self, options: HopperForwardOptions) -> HopperForwardOptions:
        """``options`` with the switches changed."""
        return replace(options, **dict(self.switches))  # type: ignore[arg-type]


def make_request(values: Mapping[str, object]) -> HopperForwardRequest:
    """From plain values: ``variant`` and any switch. Raises `ValueError` naming what is unknown and what is allowed."""
    kinds = {f.name: type(getattr(HopperForwardOptions(), f.name)) for f in fields(HopperForwardOptions)}
    switches = []
    variant = None
    for name, value in values.items():
        if name == "variant":
            if value not in VARIANTS:
                raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}, got {value!r}")
            variant = str(value)
            continue
        if name not in kinds:
            raise ValueError(f"{name}: no such switch of the Hopper forward; there are {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise ValueError(f"{name}: expected {kinds[name].__name__}, got {value!r}")
        if name == "schedule" and value not in SCHEDULES:
            raise ValueError(f"schedule: expected one of {', '.join(SCHEDULES)}, got {value!r}")
        switches.append((name, value))
    return HopperForwardRequest(variant, tuple(sorted(switches)))
