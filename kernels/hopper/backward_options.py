"""Switches of the Hopper backward, and the rule that picks them for a problem."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.hopper.options import SMEM_PER_CTA
from kernels.problem import JaggedProblem
from kernels.switches import check_switches, from_values

ORDERS = ("none", "sorted", "zigzag")
BARRIER_BYTES = 1024  # of shared memory, at most
_ALLOWED: dict[str, tuple[int, ...]] = {
    "q_stages": (1, 2), "do_stages": (1, 2), "kv_stages": (1, 2), "dq_stages": (1, 2), "ds_stages": (1, 2),
    "owned_blocks": tuple(range(0, 65)),
}


@dataclass(frozen=True)
class HopperBackwardOptions:
    """One variant. Raises `ValueError` for a value that is not allowed.

    The defaults fill shared memory: `SHORT_GAP` says what ``kv_stages=2`` leaves no room for.

    Attributes:
        q_stages, do_stages: blocks of Q and dO in shared memory.
        kv_stages: tiles of K and V; 2 hides the loads of the next tile behind this one. Like the next two it has its
            default at D = 64: no other fits.
        dq_stages: blocks of fp32 dQ on their way to memory; with 2 a partial dQ is fetched a step ahead.
        ds_stages: steps whose dS is in shared memory; with 2 a consumer need not wait for the other's last dQ.
        alternate: one consumer computes a step's whole dQ, the other the next's, see
            `kernels.hopper.backward_alternate`. `alternates` says where it does nothing; at D = 64 it is always so.
        skip_half: in a step in which no key of a consumer is visible, as its sequence has ended or by the mask, it does
            its part of dQ alone. Not with ``keep_dq``.
        l2_hints: L2 is told to keep partial dQ, and not what passes once.
        serpentine: every second tile of an owned sequence walks Q backwards, so that L2 still has what comes first.
        hold: where a serpentine walk turns, the block of Q stays in shared memory for the CTA's next tile, with its dO
            and dQ, see `kernels.hopper.backward_hold`. It does nothing where `holds` in
            `kernels.hopper.backward_schedule` says no.
        rotate: CTAs begin their rounds at different places, so that not all are at their longest sequences at once.
        keep_dq: broadcast-Q of at most 64 rows: dQ stays in shared memory for all tiles of a CTA. Without a
            mask or groups, D = 128; elsewhere it does nothing.
        direct_dq: a sequence with one KV block (or an owned one) writes dq itself; else all dQ is summed in fp32.
        owned_blocks: a sequence of at most so many KV blocks (of 128 keys, at D = 64 of 256) is left to one CTA, which
            sums its dQ in a buffer of its own: no zeroing, no cast, a fixed order of the sum. 0 and 1: only sequences
            of one block.
        counted: sequences that are not owned are summed as `kernels.hopper.backward_counted` says: no zeroing, no cast
            pass. Without ``rotate``; with a left window or broadcast-Q it does nothing.
        turns: the tiles of a sequence that is not owned take turns, see `kernels.hopper.backward_schedule`: no zeroing,
            no cast pass. Without ``counted`` and ``rotate``; it does nothing where `takes_turns` there says no.
        pairs: two CTAs of a cluster do two KV blocks of an owned sequence at a time, and the dQ of both goes through
            memory once, see `kernels.hopper.backward_schedule`. Without ``counted`` and ``turns``; it does nothing
            where `takes_pairs` there says no.
        deterministic: equal calls give equal bits: every sequence is left to one CTA, or with ``counted``, where there
            is no mask, those that are not owned add in a fixed order.
    """

    q_stages: int = 2
    do_stages: int = 2
    kv_stages: int = 1
    dq_stages: int = 2
    ds_stages: int = 2
    alternate: bool = False
    skip_half: bool = False
    l2_hints: bool = False
    serpentine: bool = False
    hold: bool = False
    rotate: bool = False
    keep_dq: bool = False
    direct_dq: bool = True
    owned_blocks: int = 4
    counted: bool = False
    turns: bool = False
    pairs: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_switches(self, _ALLOWED, lambda allowed: f"{allowed[0]} to {allowed[-1]}")
        if self.counted and self.rotate:
            raise ValueError("counted: not with rotate")
        if self.turns and (self.counted or self.rotate):
            raise ValueError(f"turns: not with {'counted' if self.counted else 'rotate'}")
        if self.pairs and (self.counted or self.turns):
            raise ValueError(f"pairs: not with {'counted' if self.counted else 'turns'}")

    @classmethod
    def make(cls, values: Mapping[str, object]) -> HopperBackwardOptions:
        """From plain values; those left out keep their defaults. Raises `ValueError` naming key or value."""
        return from_values(cls, values)

    @property
    def token(self) -> str:
        """The variant in one word, such as ``q2o2k1s2d2-own4``."""
        stages = f"q{self.q_stages}o{self.do_stages}k{self.kv_stages}s{self.dq_stages}d{self.ds_stages}"
        parts = [stages, "alt" * self.alternate, "skip" * self.skip_half, "l2" * self.l2_hints,
                 "serp" * self.serpentine, "hold" * self.hold, "pair" * self.pairs, "rot" * self.rotate,
                 "keep" * self.keep_dq,
                 f"own{self.owned_blocks}" if self.direct_dq else "add", "count" * self.counted,
                 "turn" * self.turns, "det" * self.deterministic]
        return "-".join(part for part in parts if part)


DEFAULT = HopperBackwardOptions()
#: What the rule begins with.
BASE = HopperBackwardOptions(alternate=True)
#: K and V twice, for tiles of few steps: the loads of the next tile matter more than the pace of the steps.
SHORT_GAP = HopperBackwardOptions(do_stages=1, kv_stages=2, dq_stages=1, ds_stages=1)


@functools.cache
def _with(options: HopperBackwardOptions, **changes: Any) -> HopperBackwardOptions:
    return replace(options, **changes)


def _unlike_default_stages(options: HopperBackwardOptions) -> list[str]:
    """The stages of K and V, dQ and dS that aren't the default's, such as ``dq_stages 1``."""
    names = ("kv_stages", "dq_stages", "ds_stages")
    return [f"{name} {getattr(options, name)}" for name in names if getattr(options, name) != getattr(DEFAULT, name)]


def can_alternate(options: HopperBackwardOptions) -> bool:
    """Whether consumers can take turns at dQ: with the default's stages."""
    return not _unlike_default_stages(options)


def alternates(options: HopperBackwardOptions, head_dim: int, left_out: bool) -> bool:
    """Whether consumers take turns at dQ: always at D = 64, else if ``alternate`` says so.

    ``left_out``: it is for pairs of CTAs, or dQ is kept on chip.
    """
    return head_dim == 64 or (options.alternate and can_alternate(options) and not left_out)


def buffer_bytes(options: HopperBackwardOptions, head_dim: int, keeps_dq: bool) -> int:
    """Bytes of shared memory that a CTA's buffers need, barriers aside; see the table in `backward_kernel`."""
    blocks = 128 // head_dim  # of 64 keys, a consumer's
    block = 64 * head_dim * 2
    kv = options.kv_stages * 4 * blocks * block
    ds = options.ds_stages * 2 * blocks * 64 * 64 * 2
    staging = options.dq_stages * 2 * blocks * 64 * head_dim // 2 * 4
    q_slots = 1 if keeps_dq else options.q_stages
    relaid = options.skip_half and options.kv_stages == 1 and not can_alternate(options)  # a sum changes its layout
    return (kv + (q_slots + options.do_stages) * block + ds + staging + options.q_stages * 64 * 2 * 4
            + 32768 * relaid)


def why_not(options: HopperBackwardOptions, head_dim: int, keeps_dq: bool) -> str | None:
    """Why a variant can't run, in one line that names the switches; None if it can. ``keeps_dq``: dQ stays on chip."""
    if head_dim == 64 and (unlike := ", ".join(_unlike_default_stages(options))):
        return f"{unlike}: at D = 64 only with kv_stages 1, dq_stages 2, ds_stages 2"
    need = buffer_bytes(options, head_dim, keeps_dq) + BARRIER_BYTES
    if need > SMEM_PER_CTA:
        return f"{options.token} needs {need:,} bytes of shared memory at D = {head_dim}, {SMEM_PER_CTA:,} are there"
    return None


def select(problem: JaggedProblem) -> HopperBackwardOptions:
    """The variant for a problem: what was fastest on an H200, see NOTES_BACKWARD.md. By mean and longest lengths."""
    longest_q, longest_k = problem.layout_q.max_seqlen, problem.layout_k.max_seqlen
    if problem.broadcast_q:
        kept = longest_q <= 64 and problem.head_dim == 128
        return _with(SHORT_GAP, keep_dq=True) if kept else _with(BASE, l2_hints=True)
    short, grouped = longest_k <= 1024, problem.group_size > 1
    if problem.head_dim == 64:
        return _with(BASE, serpentine=short, turns=True)
    if not problem.mask.is_full:
        turning = short and problem.mask.left is None  # walks over Q
        return _with(BASE, owned_blocks=8, l2_hints=True, rotate=short, skip_half=short, serpentine=turning,
                     hold=turning and not grouped)
    mean = problem.layout_q.total / max(problem.batch, 1)
    typical = min(longest_q, 4 / 3 * mean)  # length for a query, if lengths are uniform
    near = short or typical <= 512  # L2 can still have what comes again
    two_blocks = 128 < longest_k <= 256 and problem.layout_k.total > 192 * problem.batch  # for most sequences
    many = problem.batch * problem.num_heads_kv >= 264  # two to an SM, so that tiles take turns
    pairs = two_blocks and not grouped
    # CTAs that walk alone gain by rotation, tiles of one sequence lose by it
    return _with(BASE, l2_hints=near or many, rotate=longest_k <= 512, skip_half=typical <= 512 and not pairs,
                 serpentine=near, hold=short and not grouped and not two_blocks, owned_blocks=2 if grouped else 4,
                 turns=longest_k > 512, pairs=pairs, alternate=not pairs)
