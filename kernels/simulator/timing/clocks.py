"""A task's own clock, and the arithmetic that it has to pay for when it next meets others."""

from __future__ import annotations


class TaskClock:
    """Time of one task in clocks, and instructions of one of its warps since it was last charged, by unit.

    ``smem`` is bytes between registers and shared memory; ``early`` has all but ``mufu`` as they were before the first
    exponential;
    ``latency`` is clocks that pass whatever the units do, such as shuffles and loads that arithmetic waits for.
    """

    __slots__ = ("alu", "early", "fma", "lane", "latency", "mufu", "now", "other", "smem", "threads", "warps")

    def __init__(self, lane: str, warps: int, now: float):
        self.lane, self.warps, self.threads, self.now = lane, warps, 32 * warps, now
        self.early: tuple[float, float, float, float] | None = None
        self.fma = self.alu = self.mufu = self.other = self.smem = self.latency = 0.0

    def hold_back(self) -> tuple[float, ...]:
        """Leave what precedes the first exponential; returns the rest, for `resume`."""
        early = self.early or (self.fma, self.alu, self.other, self.smem)
        held = (self.fma - early[0], self.alu - early[1], self.mufu, self.other - early[2], self.smem - early[3])
        self.fma, self.alu, self.other, self.smem = early
        self.mufu, self.early = 0.0, None
        return held

    def resume(self, held: tuple[float, ...]) -> None:
        """Take back what was held."""
        self.fma, self.alu, self.mufu, self.other, self.smem = held
        if self.mufu:
            self.early = (0.0, 0.0, 0.0, 0.0)

    def per_warp(self, elements: int) -> float:
        """Instructions of a warp for one operation on so many elements; at least one."""
        return max(elements / self.threads, 1.0)


#: The clock of the task that runs now; ghosts charge it.
running = TaskClock("nobody", 4, 0.0)


def run(clock: TaskClock) -> None:
    """Make it the one that ghosts charge."""
    global running
    running = clock
