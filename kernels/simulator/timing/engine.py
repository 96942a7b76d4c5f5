"""`TimedMachine`: the simulator's scheduler in virtual time. Whoever is earliest acts next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.simulator.agents import Cta, Operation, Task
from kernels.simulator.buffers import Pending
from kernels.simulator.clocks import Clocked, Event, Identities
from kernels.simulator.errors import SimulationError
from kernels.simulator.scheduler import Machine
from kernels.simulator.timing import clocks
from kernels.simulator.timing.clocks import TaskClock
from kernels.simulator.timing.ghosts import Ghost
from kernels.simulator.timing.machine import Machine as Description
from kernels.simulator.timing.resources import Sm
from kernels.simulator.timing.traffic import Traffic
from kernels.simulator.work import Copy, Matmul

#: (lane, what, start, duration, stall), times in clocks.
Span = tuple[str, str, float, float, "str | None"]


class _NoIdentities(Identities):
    """Nothing is checked against anything, so that everyone can be the same; clocks stay one entry long."""

    def fresh(self) -> int:
        return 0

    def claim(self, actor: Clocked, retired: list[Event]) -> Event:
        return (0, 0)


class TimedMachine(Machine):
    """One launch, of the CTAs ``pids`` alone, on one SM (a cluster of two: on two).

    Args:
        description, clock_mhz: the GPU and its clock.
        traffic: which bytes of a copy come from HBM.
        pids: the clusters that run, by their first CTA; ``together`` of them at a time.
        record: keep spans for a trace.
    """

    def __init__(self, *args: Any, description: Description, clock_mhz: float, traffic: Traffic, pids: Sequence[int],
                 record: bool, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.description, self.traffic, self.record = description, traffic, record
        self.identities = _NoIdentities()
        self.sms = [Sm(description, clock_mhz) for _ in range(self.cluster[0])]
        self.time = 0.0
        self.tiles = self.matmuls = 0
        self.spans: list[Span] = []
        self.drawn = 1.0  # how often others draw from a counter for each draw here
        self._pids = pids
        self._clocks: dict[Task, TaskClock] = {}
        self._heap: list[tuple[float, int, Task | Operation]] = []
        self._order_of_events = 0
        self._waiting: list[Task] = []
        self._lines: dict[Cta, dict[tuple[str, int], float]] = {}

    # -- what the scheduler asks

    def _order(self, clusters: list[list[tuple[int, int, int]]]) -> list[list[tuple[int, int, int]]]:
        by_first = {cluster[0][0]: cluster for cluster in clusters}
        return [by_first[pid] for pid in self._pids if pid in by_first]

    def add(self, task: Task) -> None:
        """A task begins now."""
        self.tasks.append(task)
        self._clocks[task] = TaskClock(task.name, task.num_warps, self.time)
        self._push(self.time, task)

    def add_operation(self, op: Operation) -> None:
        """An operation begins now; when it will be done follows from what it moves or multiplies."""
        self.in_flight.append(op)
        op.done_at = max([self._done_at(op), *[before.done_at for before in op.after_ops]])
        if self.record and op.work is not None:
            engine = "tensor core" if isinstance(op.work, Matmul) else op.kind
            self.spans.append((f"sm0/cta{op.cta.pid[0]}/{engine}", op.kind, self.time,
                               op.done_at - self.time, None))
        self._push(op.done_at, op)

    def pause(self) -> None:
        """Others that are earlier act first."""
        self._meet()

    def wait(self, why: str | Callable[[], str], ready: Callable[[], bool]) -> None:
        """Block the running task until ``ready()``; then it goes on after ``wake_clocks``."""
        task, clock = self.current, self.clock
        self._wake()
        since = clock.now
        task.why, task.ready = why, ready
        self._waiting.append(task)
        if self.record:
            text = task.waiting_for().split("@")[0].split(" (")[0]
        self.hub.switch()
        if self.record:
            self.spans.append((clock.lane, "wait", since, clock.now - since, text))

    def _loop(self) -> None:
        while not self._may_start():
            if not self._heap:
                if self.tasks:
                    raise SimulationError("deadlock", self._blocked_tasks())
                return
            self.time, _, who = heapq.heappop(self._heap)
            if isinstance(who, Operation):
                self._complete(who)
            else:
                clock = self._clocks[who]
                clock.now = max(clock.now, self.time)
                clocks.run(clock)
                self._resume(who)
            self._wake()

    def _blocked_tasks(self) -> str:
        return "\n".join(["nothing can run", *(f"  {task.name} at line {task.at}: waits for {task.waiting_for()}"
                                               for task in self._waiting)])

    def _complete(self, op: Operation) -> None:
        if op.signal is not None:
            op.signal(op)
        if op.kind == "wgmma":
            assert isinstance(op.work, Matmul)
            op.result = Ghost((op.work.rows, op.work.columns), torch.float32)  # type: ignore[assignment]
        op.done = True
        self.in_flight.remove(op)

    # -- what the namespaces ask

    @property
    def clock(self) -> TaskClock:
        """The running task's."""
        return clocks.running

    def sm(self, cta: Cta) -> Sm:
        """The SM that a CTA is on."""
        return self.sms[cta.rank]

    def act(self, extra: float) -> None:
        """Before the running task does something that others may notice: its arithmetic and ``extra`` clocks pass."""
        clock = clocks.running
        began = clock.now
        self.sm(self.current.cta).compute(clock)
        clock.now += extra
        if self.record and clock.now - began > extra:
            self.spans.append((clock.lane, "arithmetic", began, clock.now - began - extra, None))
        self._meet()

    def load(self, tensor: str, line: int) -> float:
        """A scalar load from a 128-byte line. Returns when the value is there."""
        m, now = self.description, clocks.running.now
        lines = self._lines.setdefault(self.current.cta, {})
        there = lines.get((tensor, line))
        if there is None:
            if len(lines) > 256:
                lines.pop(next(iter(lines)))
            there = lines[(tensor, line)] = now + m.load_clocks
        return max(there, now + m.l1_clocks)

    # -- time

    def _push(self, at: float, who: Task | Operation) -> None:
        self._order_of_events += 1
        heapq.heappush(self._heap, (at, self._order_of_events, who))

    def _meet(self) -> None:
        self._wake()
        clock = clocks.running
        while self._heap and self._heap[0][0] < clock.now:
            self._push(clock.now, self.current)
            self.hub.switch()
        self.time = max(self.time, clock.now)

    def _wake(self) -> None:
        ready = [task for task in self._waiting if task.ready is not None and task.ready()]
        for task in ready:
            self._waiting.remove(task)
            clock = self._clocks[task]
            clock.now = max(clock.now, self.time + self.description.wake_clocks)
            self._push(clock.now, task)

    def _done_at(self, op: Operation) -> float:
        work, m, now = op.work, self.description, self.time
        if isinstance(work, Matmul):
            self.matmuls += 1
            if work.ctas == 1:
                return self.sm(op.cta).multiply(now, work.rows, work.columns, work.depth, work.smem_bytes)
            return max(sm.multiply(now, work.rows, work.columns, work.depth, work.smem_bytes) for sm in self.sms)
        if isinstance(work, Copy):
            if not work.tensor:  # between SMs, through the same network as L2
                return self.sm(op.cta).copy(now, work.nbytes, 0.0, 0.0)
            hbm = self.traffic.hbm_bytes(work)
            passes = m.reduce_ratio if work.adds else 1.0
            return self.sm(op.cta).copy(now, work.nbytes, work.inside * passes, hbm)
        return now + (m.l2_clocks if op.kind == "CLC" else 0.0)


def is_ghost(*values: Any) -> bool:
    """Is one of them a value without numbers?"""
    return any(isinstance(value, Ghost | Pending) for value in values)
