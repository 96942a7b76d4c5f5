"""mbarriers and named barriers, as the hardware counts them, carrying clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.simulator.clocks import Clocked
from kernels.simulator.errors import SimulationError

if TYPE_CHECKING:
    from kernels.simulator.agents import Cta, Task


class Mbarrier(Clocked):
    """A phase completes when ``count`` arrivals and all expected bytes are in; its clock is what waiters acquire."""

    def __init__(self, cta: Cta, name: str, count: int, per_warp: bool):
        super().__init__()
        self.cta, self.name, self.count, self.per_warp = cta, name, count, per_warp
        self.pending, self.bytes, self.completions = count, 0, 0
        self.gathered = Clocked()
        self.waiting: dict[Task, int] = {}
        self.where = (0, 0)  # (allocation, index): finds the same barrier in a peer CTA

    def arrive(self, number: int, who: Clocked) -> None:
        """``number`` arrivals at once."""
        self.gathered.acquire(who)
        self.pending -= number
        if self.pending < 0:
            raise SimulationError("over-arrival", f"{self} gets more arrivals than its count {self.count} "
                                                  f"({who.label()})")
        self._complete_phase()

    def expect(self, nbytes: int) -> None:
        """Bytes that must land before the phase may complete."""
        self.bytes += nbytes

    def land(self, nbytes: int, who: Clocked) -> None:
        """Bytes that an asynchronous copy has written."""
        self.gathered.acquire(who)
        self.bytes -= nbytes
        self._complete_phase()

    def _complete_phase(self) -> None:
        if self.pending or self.bytes:
            return
        self.completions += 1
        self.pending = self.count
        self.acquire(self.gathered)
        self.gathered = Clocked()
        for task, seen in self.waiting.items():
            if self.completions >= seen + 2:
                raise SimulationError("phase overrun", f"{self} completed two phases past {task.label()}, which still "
                                                       f"waits for completion {seen + 1}")

    def ready(self, parity: int) -> bool:
        """Would a wait for this parity return?"""
        return (self.completions & 1) != (parity & 1)

    def __str__(self) -> str:
        return (f"{self.name}@cta{self.cta.rank} (phase {self.completions & 1}, completions {self.completions}, "
                f"pending {self.pending}/{self.count}, bytes {self.bytes})")


class BarrierArray:
    """What ``alloc_barriers`` returns."""

    def __init__(self, bars: list[Mbarrier]):
        self.bars = bars

    def __getitem__(self, index: int) -> Mbarrier:
        index = int(index)
        if not 0 <= index < len(self.bars):
            raise SimulationError("index", f"barrier {index} of {len(self.bars)} ({self.bars[0].name})")
        return self.bars[index]


class NamedBarrier(Clocked):
    """A ``bar.sync``/``bar.arrive`` barrier; also the cluster barrier, where a thread is a CTA."""

    def __init__(self, identifier: int | str):
        super().__init__()
        self.identifier = identifier
        self.arrived, self.completions = 0, 0
        self.needed: int | None = None
        self.gathered = Clocked()
        self.here: list[Clocked] = []  # who arrived in this phase

    def arrive(self, threads: int, needed: int, who: Clocked) -> None:
        """``threads`` of ``needed`` arrive (waiting or not). The same threads twice in a phase stand in for others."""
        if any(each is who for each in self.here):
            raise SimulationError("named barrier", f"barrier {self.identifier}: {who.label()} arrives a second time in "
                                                   "the same phase")
        if self.needed not in (None, needed):
            raise SimulationError("named barrier", f"barrier {self.identifier}: {who.label()} says {needed} threads, "
                                                   f"others said {self.needed} in the same phase")
        self.needed = needed
        self.here.append(who)
        self.gathered.acquire(who)
        self.arrived += threads
        if self.arrived > needed:
            raise SimulationError("named barrier", f"barrier {self.identifier}: {self.arrived} threads of {needed} "
                                                   f"({who.label()})")
        if self.arrived == needed:
            self.completions, self.arrived, self.needed = self.completions + 1, 0, None
            self.acquire(self.gathered)
            self.gathered, self.here = Clocked(), []
