"""Switches of the Blackwell backward, the combinations that make no kernel, and the rule that picks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from kernels.problem import JaggedProblem
from kernels.switches import check_switches, from_values

SCHEDULES = ("none", "sorted", "zigzag", "clc")
HEAD_DIMS = (64, 128)
SMEM_BYTES = 232_448  # of one CTA
_SCRATCH_BYTES = 1_040  # barriers, and what the compiler takes beside the buffers
_PAIR_SCRATCH_BYTES = 1_420
_ALLOWED: dict[str, tuple[int, ...]] = {
    "block_m": (64, 128), "q_stages": (1, 2, 3), "do_stages": (1, 2), "kv_stages": (1, 2), "dq_stages": (2, 3, 4),
    "early_release": (0, 1, 2), "owned_blocks": tuple(range(65)),
}


def _listed(allowed: tuple[int, ...]) -> str:
    return f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 4 else f"one of {', '.join(map(str, allowed))}"


@dataclass(frozen=True)
class BlackwellBackwardOptions:
    """One variant. Raises `ValueError` for a value that is not allowed; `why_not` says which combinations aren't.

    Attributes:
        pair: two CTAs share their matmuls, and a tile is 256 KV rows.
        block_m: Q rows of a step.
        q_stages, do_stages: blocks of Q and dO in shared memory. A step's Q stays until the next step has its S, except
            for a pair, which has it twice.
        kv_stages: tiles of K and V; 2 hides the loads of the next tile behind this one.
        dq_stages: 32-column parts of fp32 dQ on their way to memory.
        early_release: how many parts of dQ are read to registers at a time, at a step's end, so that the tensor memory
            is given back before they are stored.
        peel: a loop of its own for steps that need no mask; else a branch in one loop.
        warp_barriers: every thread of the compute and reduction roles arrives, rather than one after they all met.
        packed: the exponentials' arguments two at a time (FFMA2); the compiler packs other sums and products itself.
        direct_dq: a sequence with one KV block (or an owned one) writes dq itself; else all dQ is summed in fp32.
        owned_blocks: a sequence of at most so many KV blocks (of 256 rows for a pair) is left to one CTA, which sums
            its dQ in blocks of its own: no zeroing, no cast, a fixed order. 0 and 1: only sequences of one block.
        deterministic: every sequence is left to one CTA, so that equal calls give equal bits.
        broadcast_sums: with broadcast-Q, a CTA sums dQ in blocks of its own; else all CTAs add to the same ones.
    """

    pair: bool = False
    block_m: int = 64
    q_stages: int = 2
    do_stages: int = 1
    kv_stages: int = 1
    dq_stages: int = 2
    early_release: int = 1
    peel: bool = True
    warp_barriers: bool = True
    packed: bool = True
    direct_dq: bool = True
    owned_blocks: int = 0
    deterministic: bool = False
    broadcast_sums: bool = True

    def __post_init__(self) -> None:
        check_switches(self, _ALLOWED, _listed)

    @classmethod
    def make(cls, values: Mapping[str, object]) -> BlackwellBackwardOptions:
        """From plain values; those left out keep their defaults. Raises `ValueError` naming key or value."""
        return from_values(cls, values)

    @property
    def ctas(self) -> int:
        """CTAs that share a tile."""
        return 2 if self.pair else 1

    @property
    def token(self) -> str:
        """The variant in one word, such as ``m64q2o1k1s2r1``; what follows a minus is a switch off its default."""
        stages = f"q{self.q_stages}o{self.do_stages}k{self.kv_stages}s{self.dq_stages}r{self.early_release}"
        owned = [f"own{self.owned_blocks}"] * bool(self.owned_blocks)
        parts = ["pair"] * self.pair + [f"m{self.block_m}{stages}", *owned]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name not in _ALLOWED and value != field.default:
                parts.append(("" if value else "no_") + field.name)
        return "-".join(parts)

    def smem_bytes(self, head_dim: int) -> int:
        """Shared memory of a CTA, with what the compiler adds; some hundred bytes too many, at D = 64 4 KB too few."""
        scratch = _PAIR_SCRATCH_BYTES if self.pair else _SCRATCH_BYTES
        k_copies = 3 if self.pair else 2  # K, V, and a pair has half of K's columns twice
        copies = 1  # of Q and dO; a pair's CTA has half of them twice
        tiles = k_copies * self.kv_stages * 128 + copies * (self.q_stages + self.do_stages) * self.block_m
        ds_tiles = 3 if self.pair else 2  # of 64 rows' dS for 128 rows of BLOCK_M 128; half of that for 64
        staging = self.dq_stages * self.block_m * (16 if self.pair else 32) * 4
        return (2 * head_dim * tiles + 128 * self.block_m * ds_tiles + staging + 3 * 4 * self.block_m + scratch)

    def why_not(self, problem: JaggedProblem, schedule: str) -> str | None:
        """Why this variant can't run the problem in that order of tiles; None if it can."""
        if self.pair and self.block_m != 128:
            return f"pair: two CTAs share 128 rows of Q, block_m is {self.block_m}"
        if self.pair and self.warp_barriers:
            return "warp_barriers: a pair's CTAs arrive at each other's barriers, which one thread does"
        if not self.pair and self.q_stages < 2:
            return "q_stages: S of a step is computed before dK of the last one, which needs 2 blocks of Q"
        need = self.smem_bytes(problem.head_dim)
        if need > SMEM_BYTES:
            return f"needs {need} bytes of shared memory at head_dim {problem.head_dim}, a CTA has {SMEM_BYTES}"
        if schedule == "clc" and (self.deterministic or self.owned_blocks > 1):
            return "deterministic, owned_blocks: a sequence's tiles must meet in one CTA, schedule clc deals them apart"
        if self.deterministic and problem.broadcast_q and not self.broadcast_sums:
            return "deterministic: with broadcast_sums off, CTAs add to the same dQ in any order"
        if schedule == "clc" and problem.broadcast_q and self.broadcast_sums:
            return "broadcast_sums: a CTA's own sums need tiles dealt beforehand, and schedule clc deals as it runs"
        return None


#: 64 rows of Q and the next tile's K and V in flight, for tiles of few steps.
SHORT_TILES = BlackwellBackwardOptions(kv_stages=2)
#: 128 rows of Q, one CTA.
LONG_TILES = BlackwellBackwardOptions(block_m=128)
#: 128 rows of Q and 256 of KV, two CTAs.
PAIR = BlackwellBackwardOptions(pair=True, block_m=128, q_stages=1, warp_barriers=False)


def select(problem: JaggedProblem, schedule: str) -> BlackwellBackwardOptions:
    """The variant for a problem, by reasoning alone: nothing has been measured, see NOTES_BACKWARD.md."""
    if problem.broadcast_q:
        return replace(SHORT_TILES, broadcast_sums=schedule != "clc")
    if problem.head_dim == 64:
        return replace(LONG_TILES, do_stages=2, kv_stages=2)
    mean = problem.layout_k.total / max(problem.batch, 1)
    return SHORT_TILES if mean < 256 else LONG_TILES if mean < 768 else PAIR
