"""Which bytes of a copy come from HBM: the rest was fetched for another tile and still is in L2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.simulator.work import Copy


@dataclass(frozen=True)
class Reuse:
    """How an argument is read: by the end of a sequence (second coordinate of a ragged box), how often in all, and the
    working set in bytes that is walked between two of these times (0: it stays in L2)."""

    times: Mapping[int, float] = field(default_factory=dict)
    working_set: Mapping[int, float] = field(default_factory=dict)
    otherwise: float = 1.0  # times, where no sequence is known
    otherwise_set: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """``reuse`` by argument; ``cached``: arguments that live in L2 as far as their ``working_set`` fits."""

    reuse: Mapping[str, Reuse]
    l2_bytes: float

    def hbm_bytes(self, copy: Copy) -> float:
        """Of a copy, on average."""
        reuse = self.reuse.get(copy.tensor)
        if reuse is None:
            return float(copy.inside)
        end = copy.coordinates[1] if len(copy.coordinates) == 4 else -1  # a ragged box
        times = reuse.times.get(end, reuse.otherwise)
        working_set = reuse.working_set.get(end, reuse.otherwise_set)
        missed = max(0.0, 1 - self.l2_bytes / working_set) if working_set else 0.0
        first = 1.0 / times if times else 0.0
        fetched = copy.inside * (first + (1 - first) * missed)
        return 2 * fetched if copy.adds else fetched  # what is added to is read and written
