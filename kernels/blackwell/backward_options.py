"""Switches of the Blackwell backward, the combinations that make no kernel, and the rule that picks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kernels.problem import JaggedProblem

SCHEDULES = ("none", "sorted", "zigzag", "clc")
_ALLOWED: dict[str, tuple[int, ...]] = {
    "block_m": (64, 128), "q_stages": (2, 3), "do_stages": (1, 2), "kv_stages": (1, 2), "dq_stages": (2, 3, 4),
    "early_release": (0, 1, 2),
}


@dataclass(frozen=True)
class BlackwellBackwardOptions:
    """One variant. Raises `ValueError` for a value that is not allowed.

    Attributes:
        block_m: Q rows of a step.
        q_stages, do_stages: blocks of Q and dO in shared memory.
        kv_stages: tiles of K and V; 2 hides the loads of the next tile behind this one.
        dq_stages: 32-column parts of fp32 dQ on their way to memory.
        early_release: how many parts of dQ are read to registers at a time, at a step's end, so that the tensor memory
            is given back before they are stored.
        peel: a loop of its own for steps that need no mask; else a branch in one loop.
    """

    block_m: int = 64
    q_stages: int = 2
    do_stages: int = 1
    kv_stages: int = 1
    dq_stages: int = 2
    early_release: int = 1
    peel: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _ALLOWED:
                allowed = _ALLOWED[field.name]
                if isinstance(value, bool) or value not in allowed:
                    raise ValueError(f"{field.name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")
            elif not isinstance(value, bool):
                raise ValueError(f"{field.name}: expected true or false, got {value!r}")

    @classmethod
    def make(cls, values: Mapping[str, object]) -> BlackwellBackwardOptions:
        """From plain values; those left out keep their defaults. Raises `ValueError` naming key or value."""
        allowed = [field.name for field in fields(cls)]
        for key in values:
            if key not in allowed:
                raise ValueError(f"{key}: no such option; allowed: {', '.join(allowed)}")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def token(self) -> str:
        """The variant in one word."""
        return (f"m{self.block_m}q{self.q_stages}o{self.do_stages}k{self.kv_stages}s{self.dq_stages}"
                f"r{self.early_release}")


def select(problem: JaggedProblem) -> BlackwellBackwardOptions:
    """The variant for a problem."""
    return BlackwellBackwardOptions()
