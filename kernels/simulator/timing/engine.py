"""`TimedMachine`: the simulator's scheduler in virtual time. Whoever is earliest acts next."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from kernels.simulator.agents import Cta, Operation, Task
from kernels.simulator.clocks import Clocked, Event, Identities
from kernels.simulator.errors import SimulationError
from kernels.simulator.global_memory import GlobalTensor
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

_SHORT = 24.0  # clocks of arithmetic that nobody is slowed by


class _Tick(NamedTuple):
    """An SM may be done with a job, if its units still are of this version."""

    sm: Sm
    version: int


class _Store(NamedTuple):
    """A task's stores to shared memory, on their way."""

    task: Task
    number: int


class _Begin(NamedTuple):
    """An operation reaches an SM's units."""

    sm: Sm
    op: Operation
    clocks: float
    shares: Sequence[float]


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
        sinks: exponentials, and what follows them, are charged after a wait for matmuls, not before.
        record: keep spans for a trace.
    """

    def __init__(self, *args: Any, description: Description, clock_mhz: float, traffic: Traffic, pids: Sequence[int],
                 sinks: bool, record: bool, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.description, self.traffic, self.sinks, self.record = description, traffic, sinks, record
        self.identities = _NoIdentities()
        self.sms = [Sm(description, clock_mhz) for _ in range(self.cluster[0])]
        self.time = 0.0
        self.matmuls = 0
        self.spans: list[Span] = []
        self.drawn = 1.0  # how often others draw from a counter for each draw here
        self._pids = pids
        self._clocks: dict[Task, TaskClock] = {}
        self._heap: list[tuple[float, int, Task | Operation | _Tick | _Begin]] = []
        self._queues: dict[Sm, deque[tuple[Operation, float, Sequence[float]]]] = {}  # matmuls, the first in progress
        self._after: list[Operation] = []  # wait for other operations
        self._order_of_events = 0
        self._waiting: list[Task] = []
        self._stores: dict[Task, set[_Store]] = {}
        self._at_fence: set[Task] = set()
        self._lines: dict[Cta, dict[tuple[str, int], float]] = {}

    # -- what the scheduler asks

    def _order(self, clusters: list[list[tuple[int, int, int]]]) -> list[list[tuple[int, int, int]]]:
        by_first = {cluster[0][0]: cluster for cluster in clusters}
        return [by_first[pid] for pid in self._pids if pid in by_first]

    def add(self, task: Task) -> None:
        """A task begins now."""
        self.tasks.append(task)
        self._clocks[task] = TaskClock(f"sm0/{task.name}", task.num_warps, self.time)
        self._push(self.time, task)

    def add_operation(self, op: Operation) -> None:
        """An operation begins now; when it will be done follows from what it moves or multiplies."""
        self.in_flight.append(op)
        if isinstance(op.work, Matmul):
            self._multiply(op, op.work)
        elif isinstance(op.work, Copy):
            op.began_at = self.time
            begins, took, shares = self._copy(op.cta, op.work)
            self._push(begins, _Begin(self.sm(op.cta), op, took, shares))
        elif op.kind == "CLC":
            self._push(self.time + self.description.l2_clocks, op)
        else:
            self._after.append(op)
            self._release()

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
                self._release()
            elif isinstance(who, _Tick):
                self._tick(who)
            elif isinstance(who, _Begin):
                who.sm.units.add(self.time, who.op, who.clocks, who.shares)
                self._expect(who.sm)
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
        self._compute()
        clocks.running.now += extra
        self._meet()

    def store(self, nbytes: float) -> None:
        """The running task stores to shared memory, and doesn't wait for it; a fence does."""
        clock = clocks.running
        sm = self.sm(self.current.cta)
        self._order_of_events += 1
        job = _Store(self.current, self._order_of_events)
        self._stores.setdefault(self.current, set()).add(job)
        sm.units.add(clock.now, job, *sm.store(nbytes))
        self._expect(sm)

    def fence(self) -> None:
        """The running task waits until its stores to shared memory are done."""
        self.act(0.0)
        task, clock = self.current, clocks.running
        if self._stores.get(task):
            since = clock.now
            self._at_fence.add(task)
            self.hub.switch()
            if self.record:
                self.spans.append((clock.lane, "fence", since, clock.now - since, "its stores to shared memory"))
        self.act(self.description.fence_clocks)

    def await_matmuls(self) -> None:
        """Before the running task waits for matmuls: where the compiler sinks them, exponentials come after it."""
        if self.sinks:
            held = clocks.running.hold_back()
            self._compute()
            clocks.running.resume(held)
            self._meet()
        else:
            self.act(self.description.wait_clocks)

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

    def load_tile(self, target: GlobalTensor, elements: int) -> None:
        """A load of so many elements to registers; the next arithmetic waits for it."""
        clock, nbytes = clocks.running, elements * target.flat.element_size()
        if clock.fma or clock.mufu:  # of what was loaded before
            self._compute()
        clock.other += max(nbytes / 16 / clock.threads, 1.0)
        hbm = self.traffic.hbm_bytes(Copy(0, nbytes, target.name, ()))
        there, moving, _ = self.sm(self.current.cta).copy(clock.now, 0, nbytes, hbm)
        clock.latency = max(clock.latency, there + moving - clock.now)

    # -- time

    def _push(self, at: float, who: Task | Operation | _Tick | _Begin) -> None:
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

    def _compute(self) -> None:
        """The running task's arithmetic passes, beside that of others."""
        task, clock = self.current, clocks.running
        sm = self.sm(task.cta)
        alone, shares = sm.demand(clock)
        if alone > _SHORT:
            self._meet()
            began = clock.now
            sm.units.add(began, task, alone, shares)
            self._expect(sm)
            self.hub.switch()
            if self.record:
                self.spans.append((clock.lane, "arithmetic", began, clock.now - began, None))
        else:
            clock.now += alone
        clock.now += clock.latency
        clock.latency = 0.0

    def _multiply(self, op: Operation, work: Matmul) -> None:
        """A matmul goes to its SM's tensor cores, which take one after the other."""
        self.matmuls += 1
        first, *others = self.sms if work.ctas > 1 else [self.sm(op.cta)]
        job = first.matmul(work.rows, work.columns, work.depth, work.smem_bytes)
        for sm in others:
            sm.matmul(work.rows, work.columns, work.depth, work.smem_bytes)
        queue = self._queues.setdefault(first, deque())
        queue.append((op, *job))
        if len(queue) == 1:
            self._start_matmul(first)

    def _start_matmul(self, sm: Sm) -> None:
        op, took, shares = self._queues[sm][0]
        op.began_at = self.time
        sm.units.add(self.time, op, took, shares)
        self._expect(sm)

    def _expect(self, sm: Sm) -> None:
        at = sm.units.next()
        if at is not None:
            self._push(at, _Tick(sm, sm.units.version))

    def _tick(self, tick: _Tick) -> None:
        """Jobs of an SM are done: arithmetic, whose tasks go on, a copy, or a matmul, whose result follows."""
        sm = tick.sm
        if tick.version != sm.units.version:
            return
        for job in sm.units.finish(self.time):
            if isinstance(job, Task):
                self._push(self.time, job)
                continue
            if isinstance(job, _Store):
                self._stored(job)
                continue
            assert isinstance(job, Operation)
            multiplies = isinstance(job.work, Matmul)
            if self.record:
                engine = "tensor core" if multiplies else job.kind
                self.spans.append((f"sm0/cta{job.cta.pid[0]}/{engine}", job.kind, job.began_at,
                                   self.time - job.began_at, None))
            self._push(self.time + (self.description.tensor_clocks if multiplies else 0.0), job)
            if multiplies:
                self._queues[sm].popleft()
                if self._queues[sm]:
                    self._start_matmul(sm)
        self._expect(sm)

    def _stored(self, job: _Store) -> None:
        left = self._stores[job.task]
        left.remove(job)
        if not left and job.task in self._at_fence:
            self._at_fence.remove(job.task)
            self._push(self.time, job.task)

    def _release(self) -> None:
        """Operations all of whose predecessors are done are done too."""
        for op in [each for each in self._after if all(before.done for before in each.after_ops)]:
            self._after.remove(op)
            self._push(self.time, op)

    def _copy(self, cta: Cta, work: Copy) -> tuple[float, float, list[float]]:
        sm = self.sm(cta)
        if not work.tensor:  # between SMs, through the same network as L2
            return sm.copy(self.time, work.nbytes, 0.0, 0.0)
        passes = self.description.reduce_ratio if work.adds else 1.0
        return sm.copy(self.time, work.nbytes, work.inside * passes, self.traffic.hbm_bytes(work))
