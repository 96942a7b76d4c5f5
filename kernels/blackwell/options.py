"""`BlackwellForwardOptions`: every optimisation of the Blackwell forward as a named switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.problem import JaggedProblem
from kernels.switches import check_switch

SCHEDULES = ("none", "sorted", "zigzag", "clc")
HEAD_DIMS = (64, 128)
SMEM_PER_CTA = 232_448  # bytes a CTA can have
TMEM_COLUMNS = 512


@dataclass(frozen=True)
class BlackwellForwardOptions:
    """What one compiled forward does: tiles of 256 query rows in two groups, blocks of 128 keys.

    Attributes:
        schedule: ``none``, ``sorted``, ``zigzag`` (see `kernels.tile_schedule`), dealt to persistent CTAs; or
            ``clc``: a CTA for each sorted item, of which running CTAs take over the next (cluster launch control).
        kv_slots: slots of 128 rows in the ring that K and V share; 0: as many as the head dimension leaves room for.
        p_slices: parts in which P is handed over, so that P V begins before the block's softmax ends.
        alias_tmem: P and the softmax's statistics live in the columns of S (see `tmem.py`).
        skip_rescale: O is rescaled only when a row's maximum has risen by more than 2^8.
        emulated_exp2: of every 16 columns of an unmasked block, those whose exp2 goes to the FMA units.
        packed_math: fp32 arithmetic on two elements an instruction.
        peel_masks: only blocks that a bound cuts are masked; off: every block is.
        early_release: O's columns are free for the next tile as soon as they were read; off: once O is staged.
        warp_barriers: every thread of the softmax and correction roles arrives by itself, without a sync of its group.
        skip_idle_group: the second group sits out tiles of 128 rows or less.
        section_mb: heads of a sequence walk it together as far as their K and V fit this many MiB of L2.
    """

    schedule: str = "zigzag"
    kv_slots: int = 0
    p_slices: int = 2
    alias_tmem: bool = True
    skip_rescale: bool = True
    emulated_exp2: int = 4
    packed_math: bool = True
    peel_masks: bool = True
    early_release: bool = True
    warp_barriers: bool = True
    skip_idle_group: bool = True
    section_mb: int = 16

    block_m = 256  # query rows of a tile
    block_n = 128  # keys of a step

    @property
    def registers(self) -> int:
        """Registers a thread of the softmax groups. The correction gets what these and 32 a thread of one-warp roles
        leave of 512: drawing items takes it some more."""
        return 184 if self.schedule == "clc" else 192

    def slots(self, head_dim: int) -> int:
        """Slots of the K/V ring: three at 128, six at 64, unless ``kv_slots`` says otherwise."""
        return self.kv_slots or 384 // head_dim

    def shared_memory(self, head_dim: int) -> int:
        """Bytes of the buffers of a CTA, without barriers and what the compiler adds (under 1 KiB)."""
        rows = 2 * self.block_m + self.slots(head_dim) * self.block_n  # Q and staged O
        return rows * head_dim * 2 + (0 if self.alias_tmem else 3 * self.block_m * 4)

    def tmem_columns(self, head_dim: int) -> int:
        """Columns of tensor memory in use."""
        return 2 * (self.block_n + head_dim) + (0 if self.alias_tmem else self.block_n)

    def why_not(self, head_dim: int) -> str | None:
        """Why this combination can't run, in one line that names the switches; None if it can."""
        rules = [
            (head_dim not in HEAD_DIMS, f"head_dim {head_dim} is not one of {HEAD_DIMS}"),
            (self.schedule not in SCHEDULES, f"schedule: {self.schedule!r} is not one of {', '.join(SCHEDULES)}"),
            (self.kv_slots != 0 and self.kv_slots < 3, f"kv_slots: expected 0 or at least 3, got {self.kv_slots}: with "
             "fewer the next K would wait for the V before it"),
            (self.p_slices not in (1, 2, 4), f"p_slices: expected 1, 2 or 4, got {self.p_slices}"),
            (self.emulated_exp2 not in range(0, 17, 2),
             f"emulated_exp2: expected an even number from 0 to 16, got {self.emulated_exp2}"),
            (self.section_mb < 0, f"section_mb: must be >= 0, got {self.section_mb}"),
        ]
        for broken, reason in rules:
            if broken:
                return reason
        columns, smem = self.tmem_columns(head_dim), self.shared_memory(head_dim) + 1024
        if columns > TMEM_COLUMNS:
            return f"alias_tmem off needs {columns} columns of tensor memory at head_dim {head_dim}, there are 512"
        if smem > SMEM_PER_CTA:
            return f"kv_slots {self.slots(head_dim)} needs {smem:,} bytes of shared memory, {SMEM_PER_CTA:,} are there"
        return None


@dataclass(frozen=True)
class BlackwellForwardRequest:
    """What a config asks for: single switches of the rule's choice changed."""

    switches: tuple[tuple[str, object], ...] = ()

    def apply(self, options: BlackwellForwardOptions) -> BlackwellForwardOptions:
        """``options`` with the switches changed."""
        return replace(options, **dict(self.switches))  # type: ignore[arg-type]


def make_request(values: Mapping[str, object]) -> BlackwellForwardRequest:
    """From plain values, by switch. Raises `ValueError` naming what is unknown and what is allowed."""
    for name, value in values.items():
        check_switch(name, value, BlackwellForwardOptions(), "Blackwell forward", SCHEDULES)
    return BlackwellForwardRequest(tuple(sorted(values.items())))


def resolve_forward(problem: JaggedProblem, schedule: str | None = None,
                    options: object | None = None) -> BlackwellForwardOptions:
    """The options that run: the rule's, the request's switches, then ``schedule``.

    The rule: a mask makes tiles of one sequence unequal, so they are drawn (``clc``); else dealt in zigzag.
    """
    if isinstance(options, BlackwellForwardOptions):
        resolved = options
    else:
        request = options if isinstance(options, BlackwellForwardRequest) else BlackwellForwardRequest()
        resolved = request.apply(BlackwellForwardOptions(schedule="zigzag" if problem.mask.is_full else "clc"))
    if schedule is not None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule: expected one of {', '.join(SCHEDULES)}, got {schedule!r}")
        resolved = replace(resolved, schedule=schedule)
    return resolved
