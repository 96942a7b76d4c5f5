"""What acts: tasks (greenlets) and asynchronous operations; and the CTA that owns them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import greenlet
import torch

from kernels.simulator.barriers import BarrierArray, NamedBarrier
from kernels.simulator.clocks import Actor, Clocked, Event
from kernels.simulator.dtypes import torch_dtype
from kernels.simulator.shadow import Region, Shadow
from kernels.simulator.work import Copy, Matmul

if TYPE_CHECKING:
    from kernels.simulator.scheduler import Machine

SMEM_LIMIT = 232_448  # bytes a CTA may have, sm_90 and sm_100
TMEM_COLUMNS = 512  # of 128 lanes x 4 bytes
_SMEM_BYTES = SMEM_LIMIT + 65_536  # room to be over the limit before the check says so
_LOG_LENGTH = 16


class Cta:
    """One thread block: its shared and tensor memory as bytes, its barriers and its in-order queues."""

    def __init__(self, machine: Machine, pid: tuple[int, int, int], cluster: list[Cta], rank: int):
        self.machine, self.pid, self.cluster, self.rank = machine, pid, cluster, rank
        self.live = True
        self.smem_used = self.tmem_used = 0  # bytes; of a lane, for tensor memory
        self.smem_staging = 0  # what the compiler adds for register-to-descriptor stores, one buffer a task
        self._bytes: dict[str, torch.Tensor] = {}
        self._typed: dict[tuple[str, Any], torch.Tensor] = {}
        self.shadow = {"smem": Shadow("smem", _SMEM_BYTES // 4, machine.findings),
                       "tmem": Shadow("tmem", TMEM_COLUMNS, machine.findings)}
        self.barriers: list[BarrierArray] = []
        self.named: dict[int | str, NamedBarrier] = {}
        self.children: list[Task] = []
        self.mma_tail: Operation | None = None
        self.commit_tail: Operation | None = None
        self.clc: Any = None
        self.retired: list[Event] = []
        self.to_wait_for: list[Operation] = []  # every operation that some task must have waited for at the end

    def memory(self, kind: str, dtype: Any) -> torch.Tensor:
        """Shared memory as a flat tensor, or tensor memory as ``[128 lanes, columns]``, seen as ``dtype``."""
        key = (kind, torch_dtype(dtype))
        if key not in self._typed:
            if kind not in self._bytes:
                shape = (_SMEM_BYTES,) if kind == "smem" else (128, TMEM_COLUMNS * 4)
                self._bytes[kind] = torch.full(shape, 0xFF, dtype=torch.uint8)
            self._typed[key] = self._bytes[kind].view(key[1])
        return self._typed[key]

    def release(self) -> None:
        """Drop the memory of a CTA that has ended; cycles would keep it until the garbage collector comes."""
        self._bytes.clear()
        self._typed.clear()
        self.shadow.clear()
        self.to_wait_for.clear()
        self.children.clear()


class Operation(Actor):
    """An asynchronous operation. When the scheduler says that it completes, ``run`` reads its sources and moves or
    computes data, then ``signal`` tells barriers. ``work`` says what it moves or multiplies.

    ``event`` is what waiting for it orders. A bulk store has a second one, ``landed``, for its write to global memory:
    ``async_descriptor_store_wait`` does not wait for that.
    """

    def __init__(self, task: Task, kind: str, run: Callable[[Operation], None] | None = None,
                 after: Iterable[Operation | None] = (), lands: bool = False, *,
                 signal: Callable[[Operation], None] | None = None, work: Copy | Matmul | None = None):
        super().__init__(task.clock, task.fenced)
        machine = task.cta.machine
        self.machine, self.cta, self.kind, self.run, self.signal = machine, task.cta, kind, run, signal
        self.work, self.began_at = work, 0.0  # began_at: for a scheduler that keeps time
        self.after_ops = [op for op in after if op is not None]
        for op in self.after_ops:
            self.acquire(op.finished())
        self.event = machine.identities.claim(self, task.cta.retired)
        self.landed = machine.identities.claim(self, task.cta.retired) if lands else self.event
        self.issued_by = f"{task.name}:{task.line()}"
        self.done = self.waited = False
        self.result: torch.Tensor | None = None
        self._finished: Clocked | None = None
        task.advance()
        self.weight = 1.0
        machine.add_operation(self)

    def label(self) -> str:
        """What it is and the task and line that issued it."""
        return f"{self.kind} issued at {self.issued_by}"

    def finished(self) -> Clocked:
        """What a waiter acquires."""
        if self._finished is None:
            self._finished = Finished(self)
        return self._finished

    def global_writes(self) -> Clocked:
        """What a wait for the *completed* group acquires: the writes to global memory too."""
        known = Finished(self)
        known.clock[self.landed[0]] = self.landed[1]
        return known


class Finished(Clocked):
    """The knowledge that an operation is done."""

    def __init__(self, op: Operation):
        super().__init__(op.clock, op.fenced)
        self.clock[op.event[0]] = op.event[1]
        self._op = op

    def label(self) -> str:
        """The operation's."""
        return self._op.label()


class Task(Actor):
    """The greenlet of one task (or replica) of a CTA."""

    def __init__(self, cta: Cta, name: str, num_warps: int, function: Callable[[], None], parent: Task | None = None):
        super().__init__(parent.clock if parent else None, parent.fenced if parent else None)
        self.cta, self.name, self.num_warps = cta, name, num_warps
        self.identity = cta.machine.identities.fresh()
        self.clock[self.identity] = 0
        self.event = (self.identity, 0)
        self.greenlet = greenlet.greenlet(function, cta.machine.hub)
        self.ready: Callable[[], bool] | None = None  # None: may run
        self.why: str | Callable[[], str] = ""
        self.log: deque[tuple[int, Any, str]] = deque(maxlen=_LOG_LENGTH)  # (step, line, what)
        self.at: Any = "start"
        self.weight = 1.0
        self.replica: int | None = None
        self.is_default = False
        self.staging_bytes = 0
        self.wgmmas: list[Operation] = []
        self.wgmma_tail: Operation | None = None
        self.mma: Operation | None = None
        self.stores: list[Operation] = []
        self.copies: list[Operation] = []
        self.copy_groups: list[list[Operation]] = []
        self.tmem_reads: list[tuple[Region, Any]] = []
        self.loaded: list[tuple[torch.Tensor, Any]] = []  # (registers, line) of loads that nothing has waited for
        self.released_early: list[tuple[torch.Tensor, str]] = []  # those whose source has been given back since

    def advance(self) -> None:
        """A new epoch: what follows is not covered by what others acquired so far."""
        self.clock[self.identity] += 1
        self.event = (self.identity, self.clock[self.identity])

    def label(self) -> str:
        """The task and the kernel line it is at."""
        return f"{self.name}:{self.at}"

    def line(self) -> Any:
        """The kernel line that the task is at (the innermost frame of rewritten code)."""
        frame = sys._getframe(2)
        while frame is not None and "__sim" not in frame.f_globals:
            frame = frame.f_back  # type: ignore[assignment]
        self.at = frame.f_lineno if frame else "?"
        self.cta.machine.covered.add((frame.f_code.co_filename, self.at) if frame else ("?", 0))
        return self.at

    def note(self, what: str) -> Task:
        """Log an event for the timeline, at the current kernel line."""
        machine = self.cta.machine
        machine.step += 1
        self.log.append((machine.step, self.line(), what))
        return self

    def waiting_for(self) -> str:
        """Why the task is blocked."""
        return self.why() if callable(self.why) else self.why
