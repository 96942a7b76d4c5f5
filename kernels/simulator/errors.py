"""What the simulator can find, how serious each finding is, and which findings a caller allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

#: Every check by name. ``SimulationError.check`` and the entries of an allow-list are these names.
CHECKS: dict[str, str] = {
    "assume": "a promise to the compiler (tl.assume) that isn't kept",
    "alignment": "a bulk copy whose address or size is not a multiple of 16 bytes",
    "arch": "an operation that this architecture does not have",
    "bytes left at exit": "an mbarrier that still expects bytes when its CTA ends",
    "capacity": "more shared or tensor memory than the chip has",
    "commit in flight at exit": "a commit that would arrive in the shared memory of a CTA that has ended",
    "constexpr": "a runtime value where the compiler wants a constexpr",
    "deadlock": "no task can run and nothing is in flight",
    "descriptor": "a TMA box with wrong rank, a coordinate beyond int32, or outside the tensor",
    "exited peer": "an access to the shared memory of a CTA that has ended",
    "early release": "a tile loaded from shared memory to registers is released warp by warp before anything made the "
                     "loads land, and then used by a wgmma",
    "index": "a buffer or barrier index out of range",
    "int32 overflow": "32-bit integer arithmetic that leaves its range",
    "intra-task": "tensor memory stored over what another view just read, with no barrier across the task's warps",
    "livelock": "far too many task switches",
    "named barrier": "thread counts of a named barrier that do not add up, a task that arrives twice in a phase, or an "
                     "identifier out of 7..15",
    "never written": "an output element that no store reached",
    "out of bounds": "a global access outside its tensor",
    "over-arrival": "more arrivals at an mbarrier than its count",
    "phase overrun": "an mbarrier that completed two phases past a waiting task",
    "proxy fence": "an ordinary write that the async proxy reads without fence('async_shared') in between",
    "race": "two accesses, one of them a write, that nothing orders",
    "shape": "operands whose shapes or dtypes do not fit",
    "static_assert": "a static_assert that fails",
    "structure": "async_tasks without exactly one default task",
    "uninitialised": "a read of on-chip memory that nobody wrote",
    "unsupported": "something that the simulator does not model",
    "unwaited at exit": "an asynchronous operation that no task waited for before its CTA ended",
    "unwaited wgmma": "a wgmma result used before async_dot_wait",
    "written twice": "an output element that was stored more often than once",
}

#: Found by heuristics or harmless on today's hardware: counted, not raised, unless a caller names them in ``errors``.
WARNINGS = frozenset({"intra-task"})


class SimulationError(Exception):
    """A finding. ``check`` is a key of `CHECKS`; ``timeline`` the last events of every task, when there are any."""

    def __init__(self, check: str, text: str):
        assert check in CHECKS, check
        super().__init__(check, text)
        self.check, self.text = check, text
        self.timeline = ""
        self.reproduce = ""

    def __str__(self) -> str:
        parts = [f"[{self.check}] {self.text}", self.timeline, self.reproduce and f"reproduce: {self.reproduce}"]
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Allowed:
    """An allow-list entry: findings of ``check`` whose text contains ``where`` are counted, not raised.

    ``because`` is the argument, kept beside the entry so that no exception is silent.
    """

    check: str
    because: str
    where: str = ""

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise ValueError(f"allow: unknown check {self.check!r}; known are {', '.join(sorted(CHECKS))}")


class Findings:
    """Decides whether a finding is raised, and counts those that are not."""

    def __init__(self, allow: Iterable[Allowed] = (), errors: Iterable[str] = ()):
        self.allow, self.errors = tuple(allow), frozenset(errors)
        unknown = self.errors - set(CHECKS)
        if unknown:
            raise ValueError(f"errors: unknown checks {sorted(unknown)}; known are {', '.join(sorted(CHECKS))}")
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def report(self, check: str, text: str) -> None:
        """Raise `SimulationError`, or count the finding if it is allowed or only a warning."""
        permitted = any(entry.check == check and entry.where in text for entry in self.allow)
        if not permitted and (check not in WARNINGS or check in self.errors):
            raise SimulationError(check, text)
        self.counts[check] += 1
        self.first.setdefault(check, text)
