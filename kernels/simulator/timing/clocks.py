"""A task's own clock, and the arithmetic that it has to pay for when it next meets others."""

from __future__ import annotations


class TaskClock:
    """Time of one task in clocks, and instructions of one of its warps since it was last charged, by unit.

    ``smem`` is bytes between registers and shared memory;
    ``latency`` is clocks that pass whatever the units do, such as shuffles and loads that arithmetic waits for.
    """

    __slots__ = ("alu", "fma", "lane", "latency", "mufu", "now", "other", "smem", "threads", "warps")

    def __init__(self, lane: str, warps: int, now: float):
        self.lane, self.warps, self.threads, self.now = lane, warps, 32 * warps, now
        self.fma = self.alu = self.mufu = self.other = self.smem = self.latency = 0.0

    def per_warp(self, elements: int) -> float:
        """Instructions of a warp for one operation on so many elements; at least one."""
        return max(elements / self.threads, 1.0)


#: The clock of the task that runs now; ghosts charge it.
running = TaskClock("nobody", 4, 0.0)


def run(clock: TaskClock) -> None:
    """Make it the one that ghosts charge."""
    global running
    running = clock
