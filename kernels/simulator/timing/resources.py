"""What tasks and operations of one SM compete for, and the SM's share of what the chip has once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kernels.simulator.timing.clocks import TaskClock
from kernels.simulator.timing.machine import Machine

UNITS = ("issue", "fma", "alu", "mufu", "smem", "ports")  # the last: of registers, see `Machine.port_clocks`
_ALMOST = 1e-6


class Server:
    """Serves requests one after the other; ``busy`` adds up what it served, in clocks."""

    __slots__ = ("busy", "free")

    def __init__(self) -> None:
        self.busy = self.free = 0.0

    def reserve(self, at: float, clocks: float) -> float:
        """Serve ``clocks`` from ``at`` on at the earliest. Returns when that is done."""
        self.free = max(self.free, at) + clocks
        self.busy += clocks
        return self.free


class Shared:
    """Units that jobs share as fluids: where more of one is wanted than there is, the jobs that use it slow alike.

    A job is a time that it would take alone and the share of each unit that it would keep busy meanwhile.
    """

    def __init__(self) -> None:
        self.version = 0  # of what `next` says
        self._left: dict[Hashable, float] = {}  # clocks, as if alone
        self._shares: dict[Hashable, Sequence[float]] = {}
        self._speed: dict[Hashable, float] = {}
        self._at = 0.0

    def add(self, at: float, job: Hashable, clocks: float, shares: Sequence[float]) -> None:
        """A job begins."""
        self._advance(at)
        self._left[job], self._shares[job] = clocks, shares
        self._changed()

    def finish(self, at: float) -> list[Hashable]:
        """The jobs that are done at ``at``, a time that `next` gave."""
        self._advance(at)
        done = [job for job, left in self._left.items() if left <= _ALMOST]
        for job in done:
            del self._left[job], self._shares[job]
        self._changed()
        return done

    def next(self) -> float | None:
        """When the next job will be done, if none begins before."""
        return min((self._at + max(0.0, left) / self._speed[job] for job, left in self._left.items()), default=None)

    def _advance(self, at: float) -> None:
        for job in self._left:
            self._left[job] -= (at - self._at) * self._speed[job]
        self._at = at

    def _changed(self) -> None:
        self.version += 1
        loads = [max(1.0, sum(each)) for each in zip(*self._shares.values(), strict=True)]
        self._speed = {job: 1.0 / max(load for load, share in zip(loads, shares, strict=True) if share)
                       for job, shares in self._shares.items()}


class Sm:
    """One SM. ``units`` are shared by its arithmetic and the matmul that its tensor cores are at."""

    def __init__(self, machine: Machine, clock_mhz: float):
        self.machine = machine
        self.units = Shared()
        self.tmem, self.l2, self.hbm = Server(), Server(), Server()
        self.hbm_bytes = machine.hbm_tbps * 1e6 / clock_mhz / machine.sms  # a clock
        self._busy = dict.fromkeys(("tensor", *UNITS), 0.0)

    def busy(self) -> dict[str, float]:
        """Clocks in which each unit was busy, by name."""
        return self._busy | {name: getattr(self, name).busy for name in ("tmem", "l2", "hbm")}

    def demand(self, clock: TaskClock) -> tuple[float, list[float]]:
        """A task's arithmetic since it was last asked: clocks alone, and the shares of `UNITS` in them.

        Alone, a warp has a chain of instructions, of which phases for one unit follow each other.
        """
        m, warps = self.machine, clock.warps
        count = (clock.fma + clock.alu + clock.mufu + clock.other) * (1 + m.overhead)
        issue = count * warps / m.issue
        needs = [issue, clock.fma * clock.threads / m.fma, clock.alu * clock.threads / m.alu,
                 clock.mufu * clock.threads / m.mufu, clock.smem / m.smem_bytes, issue * m.port_clocks]
        phases = sum(needs[1:5]) * min(1.0, 4 / warps)
        clock.fma = clock.alu = clock.mufu = clock.other = clock.smem = 0.0
        clock.early = None
        return self._job(max(count * m.chain, phases, *needs[:5]), needs)

    def matmul(self, rows: int, columns: int, depth: int, smem_bytes: int) -> tuple[float, list[float]]:
        """A matmul: its clocks alone, and the shares of `UNITS` in them."""
        m = self.machine
        clocks = 2.0 * rows * columns * depth / m.tensor_flops
        self._busy["tensor"] += clocks
        smem = smem_bytes / m.smem_bytes
        took = max(clocks, smem)
        return self._job(took, [0.0, 0.0, 0.0, 0.0, smem, took])

    def store(self, nbytes: float) -> tuple[float, list[float]]:
        """Stores from registers to shared memory, as `matmul` says."""
        clocks = nbytes / self.machine.smem_bytes
        return self._job(clocks, [0.0, 0.0, 0.0, 0.0, clocks, 0.0])

    def _job(self, alone: float, needs: Sequence[float]) -> tuple[float, list[float]]:
        for unit, need in zip(UNITS, needs, strict=True):
            self._busy[unit] += need
        return alone, [need / alone for need in needs] if alone else []

    def copy(self, at: float, smem_bytes: int, l2_bytes: float, hbm_bytes: float) -> tuple[float, float, list[float]]:
        """A bulk copy between global and shared memory: when it reaches shared memory, and then as `matmul` says."""
        m = self.machine
        behind = max(self.l2.reserve(at, l2_bytes / m.l2_bytes), self.hbm.reserve(at, hbm_bytes / self.hbm_bytes)) - at
        fresh = min(1.0, hbm_bytes / l2_bytes) if l2_bytes else 0.0
        latency = m.l2_clocks + fresh * (m.hbm_clocks - m.l2_clocks)
        moving = max(smem_bytes, 16) / m.port_bytes
        late = max(0.0, behind - moving)
        return at + latency + late, *self._job(moving, [0.0, 0.0, 0.0, 0.0, smem_bytes / m.smem_bytes, 0.0])
