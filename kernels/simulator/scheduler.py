"""The machine: launches clusters of CTAs, and decides by a seed which task or operation goes next."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import greenlet

from kernels.simulator.agents import Cta, Operation, Task
from kernels.simulator.clocks import Identities
from kernels.simulator.errors import Findings, SimulationError
from kernels.simulator.timeline import render_timeline

if TYPE_CHECKING:
    from kernels.simulator.global_memory import WriteLedger

#: When an asynchronous operation completes: as soon as it may, only when no task can run, or by a seeded coin.
Mode = Literal["eager", "lazy", "random"]
_MAX_SWITCHES = 400_000


class Machine:
    """One launch of one kernel.

    ``resident`` clusters run at the same time; the next starts when one ends. ``seed`` fixes every choice.
    """

    def __init__(self, grid: tuple[int, int, int], cluster: tuple[int, int, int], *, seed: int, mode: Mode, arch: int,
                 resident: int, num_warps: int, races: bool, commits_in_order: bool, findings: Findings,
                 ledger: WriteLedger):
        self.grid, self.cluster, self.mode, self.arch = grid, cluster, mode, arch
        self.resident, self.num_warps, self.races, self.commits_in_order = resident, num_warps, races, commits_in_order
        self.findings, self.ledger = findings, ledger
        self.rng = random.Random(seed)
        self._operation_bias = self.rng.choice([0.02, 0.1, 0.3, 0.6, 0.9])
        self._skew = self.rng.choice([0.0, 2.0, 6.0])
        self._kind_skew, self._operation_skew = self.rng.choice([0.0, 4.0, 8.0]), self.rng.choice([0.0, 2.0, 4.0])
        if mode == "lazy":
            self._kind_skew = 8.0
        self._kinds: dict[str, float] = {}
        self.identities = Identities()
        self.in_flight: list[Operation] = []
        self.tasks: list[Task] = []
        self.ctas: list[Cta] = []
        self.queue: list[list[tuple[int, int, int]]] = []  # clusters that have not started
        self.covered: set[tuple[str, int]] = set()
        self.completed: deque[tuple[int, str, str]] = deque(maxlen=24)  # (step, issued by, what), for the timeline
        self.step = self.switches = 0
        self.peak_smem = self.peak_tmem_columns = 0
        self.current: Task
        self.hub: greenlet.greenlet

    def launch(self, kernel: Callable[[], None]) -> None:
        """Run ``kernel`` once per CTA of the grid. Raises `SimulationError`."""
        gx, gy, gz = self.grid
        cx, cy, cz = self.cluster
        if gx % cx or gy % cy or gz % cz:
            raise SimulationError("structure", f"a grid of {self.grid} CTAs is not made of clusters of {self.cluster}")
        self.queue = self._order([[(x + i, y + j, z + k) for k in range(cz) for j in range(cy) for i in range(cx)]
                                  for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx)])
        self.hub = greenlet.getcurrent()
        while self.queue or any(cta.live for cta in self.ctas):
            while self._may_start():
                self._start(self.queue.pop(0), kernel)
            self._loop()
        for op in self.in_flight:
            raise SimulationError("unwaited at exit", f"{op.label()} is in flight when the kernel ends")

    def _order(self, clusters: list[list[tuple[int, int, int]]]) -> list[list[tuple[int, int, int]]]:
        """Which clusters run, in which order."""
        return clusters

    def _may_start(self) -> bool:
        clusters = sum(cta.live for cta in self.ctas) // (self.cluster[0] * self.cluster[1] * self.cluster[2])
        return bool(self.queue) and clusters < self.resident

    def _start(self, pids: list[tuple[int, int, int]], kernel: Callable[[], None]) -> None:
        busy = {op.cta for op in self.in_flight}
        for cta in self.ctas:
            if not cta.live and cta not in busy:
                cta.release()
        self.ctas = [cta for cta in self.ctas if cta.live or cta in busy]
        cluster: list[Cta] = []
        for rank, pid in enumerate(pids):
            cta = Cta(self, pid, cluster, rank)
            cluster.append(cta)
            self.ctas.append(cta)

            def main(cta: Cta = cta) -> None:
                kernel()
                self._end(cta)

            self.add(Task(cta, "cta" + ",".join(map(str, pid[: 1 + (self.grid[1] > 1)])), self.num_warps, main))

    def _end(self, cta: Cta) -> None:
        """What must hold when a CTA ends."""
        task = self.current
        for op in cta.to_wait_for:
            if not task.after(op.event):
                self.findings.report("unwaited at exit", f"{op.label()}: no task waited for it before CTA {cta.pid} "
                                                         "ended")
        for op in self.in_flight:
            if op.cta is cta and op.kind == "commit":
                self.findings.report("commit in flight at exit", f"{op.label()} has not arrived when CTA {cta.pid} "
                                                                 "ends")
        for array in cta.barriers:
            for bar in array.bars:
                if bar.bytes:
                    self.findings.report("bytes left at exit", f"{bar} when CTA {cta.pid} ends")
        cta.live = False
        self.peak_smem = max(self.peak_smem, cta.smem_used + cta.smem_staging)
        columns = -(-cta.tmem_used // 4)
        # the hardware allocates powers of two from 32
        self.peak_tmem_columns = max(self.peak_tmem_columns, 1 << max(5, (columns - 1).bit_length()) if columns else 0)

    def add(self, task: Task) -> None:
        """Make a task known to the scheduler, with a random inclination to run."""
        task.weight = 10 ** (self._skew * (self.rng.random() - 0.5))
        self.tasks.append(task)

    def add_operation(self, op: Operation) -> None:
        """Make an operation known, with a random inclination to complete: some kinds, and some of a kind, are slow."""
        if op.kind not in self._kinds:
            self._kinds[op.kind] = self._kind_skew * (self.rng.random() - 0.5)
        op.weight = 10 ** (self._kinds[op.kind] + self._operation_skew * (self.rng.random() - 0.5))
        self.in_flight.append(op)

    def _loop(self) -> None:
        rng = self.rng
        while not self._may_start():
            runnable = [task for task in self.tasks if task.ready is None or task.ready()]
            ready = [op for op in self.in_flight if all(before.done for before in op.after_ops)]
            if not runnable and not ready:
                if self.tasks:
                    raise SimulationError("deadlock", self._blocked())
                return
            random_pick = self.mode == "random" and rng.random() < self._operation_bias
            if ready and (not runnable or self.mode == "eager" or random_pick):
                self._complete(rng.choices(ready, [op.weight for op in ready])[0])
                continue
            task = runnable[0]
            if len(runnable) > 1:
                task = rng.choices(runnable, [each.weight for each in runnable])[0]
            self._resume(task)

    def _complete(self, op: Operation) -> None:
        self.step += 1
        self.completed.append((self.step, op.issued_by, f"{op.kind} completes"))
        if op.run is not None:
            op.run(op)
        if op.signal is not None:
            op.signal(op)
        op.done = True
        self.in_flight.remove(op)

    def _resume(self, task: Task) -> None:
        task.ready, task.why = None, ""
        self.switches += 1
        if self.switches > _MAX_SWITCHES:
            raise SimulationError("livelock", f"{_MAX_SWITCHES} task switches")
        self.current = task
        task.greenlet.switch()
        if task.greenlet.dead:
            self.tasks.remove(task)

    def pause(self) -> None:
        """A point at which another task may run."""
        if self.rng.random() < 0.5:
            self.hub.switch()

    def wait(self, why: str | Callable[[], str], ready: Callable[[], bool]) -> None:
        """Block the running task until ``ready()``."""
        task = self.current
        task.why, task.ready = why, ready
        self.hub.switch()

    def finish(self) -> None:
        """Unwind the tasks that are left after a failure, and drop all memory."""
        for task in self.tasks:
            if task.greenlet and not task.greenlet.dead:
                task.greenlet.throw()
        for cta in self.ctas:
            cta.release()
        self.in_flight.clear()

    def timeline(self) -> str:
        """The last events of every task that is alive, oldest first."""
        return render_timeline(self.tasks, list(self.completed))

    def _blocked(self) -> str:
        lines = ["nothing can run"]
        lines += [f"  {task.name} at line {task.at}: waits for {task.waiting_for()}" for task in self.tasks]
        lines += [f"  in flight: {op.label()}" for op in self.in_flight]
        return "\n".join(lines)
