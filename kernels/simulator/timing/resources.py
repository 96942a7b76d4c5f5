"""What tasks and operations of one SM compete for: servers in the order of asking, and memory shared with other SMs."""

from __future__ import annotations

from kernels.simulator.timing.clocks import TaskClock
from kernels.simulator.timing.machine import Machine


class Server:
    """A unit that serves requests one after the other; ``busy`` adds up what it served, in clocks."""

    __slots__ = ("busy", "free")

    def __init__(self) -> None:
        self.busy = self.free = 0.0

    def reserve(self, at: float, clocks: float) -> float:
        """Serve ``clocks`` from ``at`` on at the earliest. Returns when that is done."""
        self.free = max(self.free, at) + clocks
        self.busy += clocks
        return self.free


class Sm:
    """The units of one SM, and its share of what the chip has once."""

    def __init__(self, machine: Machine, clock_mhz: float):
        self.machine = machine
        self.tensor, self.issue, self.fma, self.alu, self.mufu = Server(), Server(), Server(), Server(), Server()
        self.smem, self.tmem, self.l2, self.hbm = Server(), Server(), Server(), Server()
        self.hbm_bytes = machine.hbm_tbps * 1e6 / clock_mhz / machine.sms  # a clock

    def compute(self, clock: TaskClock) -> None:
        """Charge a task's arithmetic since it was last charged: one warp's chain, or the busiest unit."""
        m = self.machine
        count = (clock.fma + clock.alu + clock.mufu + clock.other) * (1 + m.overhead)
        if count:
            at, warps, lanes = clock.now, clock.warps, clock.threads
            ends = at + count * max(m.chain, warps / m.issue)
            ends = max(ends, self.issue.reserve(at, count * warps / m.issue))
            if clock.fma:
                ends = max(ends, self.fma.reserve(at, clock.fma * lanes / m.fma))
            if clock.alu:
                ends = max(ends, self.alu.reserve(at, clock.alu * lanes / m.alu))
            if clock.mufu:
                ends = max(ends, self.mufu.reserve(at, clock.mufu * lanes / m.mufu))
            clock.now = ends
        clock.now += clock.latency
        clock.fma = clock.alu = clock.mufu = clock.other = clock.latency = 0.0

    def multiply(self, at: float, rows: int, columns: int, depth: int, smem_bytes: int) -> float:
        """A matmul issued at ``at``. Returns when its result is there."""
        m = self.machine
        clocks = 2.0 * rows * columns * depth / m.tensor_flops
        ends = self.tensor.reserve(at, clocks)
        ends = max(ends, self.smem.reserve(ends - clocks, smem_bytes / m.smem_bytes))
        self.tensor.free = ends
        return ends + m.tensor_clocks

    def copy(self, at: float, smem_bytes: int, l2_bytes: float, hbm_bytes: float) -> float:
        """A bulk copy between global and shared memory. Returns when it is done.

        An SM may be ``burst_clocks`` ahead of its share of L2 and HBM: other SMs pause meanwhile.
        """
        m = self.machine
        behind = max(self.l2.reserve(at, l2_bytes / m.l2_bytes), self.hbm.reserve(at, hbm_bytes / self.hbm_bytes)) - at
        moved = max(smem_bytes / m.port_bytes, behind - m.burst_clocks, 0.0)
        fresh = min(1.0, hbm_bytes / l2_bytes) if l2_bytes else 0.0
        latency = m.l2_clocks + fresh * (m.hbm_clocks - m.l2_clocks)
        self.smem.reserve(at + latency, smem_bytes / m.smem_bytes)
        return at + latency + moved
