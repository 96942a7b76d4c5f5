"""``tlx`` tensor-core operations: wgmma on Hopper, tcgen05 on Blackwell. bf16 operands, fp32 accumulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.simulator.agents import Cta, Operation, Task
from kernels.simulator.barriers import Mbarrier
from kernels.simulator.buffers import Pending, View, read, write
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import constexpr_only
from kernels.simulator.errors import SimulationError
from kernels.simulator.tlx_barriers import one_barrier, peer_barrier
from kernels.simulator.work import Copy, Matmul


def async_dot(A: Any, B: View, acc: Any = None, use_acc: Any = None, pred: Any = None,
              mBarriers: Sequence[Any] = (), two_ctas: bool = False, force_async: bool = False,
              **_: Any) -> Any:
    """``A @ B (+ acc)``: into tensor memory on Blackwell, into registers (to be waited for) on Hopper."""
    task = this_task().note("async_dot")
    right = B.one()
    left = A.one() if isinstance(A, View) else A
    if isinstance(left, Pending):
        left.refuse()
    rows, depth, columns = left.shape[0], left.shape[1], right.shape[1]
    if depth != right.shape[0] or rows < 64 or depth < 16 or columns < 8:
        raise SimulationError("shape", f"dot of {list(left.shape)} and {right.shape}: M >= 64, K >= 16, N >= 8")
    if isinstance(acc, View):
        return _tcgen05(task, left, right, acc.one(), use_acc, pred, mBarriers, two_ctas, force_async)
    if machine().arch >= 100:
        raise SimulationError("arch", f"a register accumulator on sm_{machine().arch}")
    return _wgmma(task, left, right, acc)


def _wgmma(task: Task, left: Any, right: View, acc: Any) -> Pending:
    in_registers = None if isinstance(left, View) else left.float()
    for value, text in task.released_early if in_registers is not None else ():
        if value is left:
            machine().findings.report("early release", f"{text}, and {task.label()} multiplies by them")
    start = acc.float() if isinstance(acc, torch.Tensor) else acc

    def run(op: Operation) -> None:
        a = left.tensor(op.cta).float() if in_registers is None else in_registers
        result = a @ right.tensor(op.cta).float()
        if isinstance(start, Pending):
            result += start.op.result
        elif start is not None:
            result += start
        op.result = result

    op = Operation(task, "wgmma", run, [task.wgmma_tail], work=_matmul(left, right))
    task.wgmma_tail = op
    if in_registers is None:
        read(left, op, "async")
    read(right, op, "async")
    task.wgmmas.append(op)
    task.cta.to_wait_for.append(op)
    machine().pause()
    return Pending(op, [left.shape[0], right.shape[1]])


def _matmul(left: Any, right: View, ctas: int = 1) -> Matmul:
    rows, depth = left.shape
    operands = [each for each in (left, right) if isinstance(each, View) and each.kind == "smem"]
    return Matmul(rows, right.shape[1] * ctas, depth, sum(each.nbytes for each in operands), ctas)


def async_dot_wait(pendings: Any, inp: Any) -> Any:
    """Wait for all but the last ``pendings`` wgmmas of this task; ``inp``, if now done, becomes a register tensor."""
    task = this_task().note(f"dot wait {pendings}")
    constexpr_only(pendings, "pendings")
    old = task.wgmmas[: max(0, len(task.wgmmas) - int(pendings))]
    if any(not op.done for op in old):
        machine().wait(f"wgmma (all but {pendings})", lambda: all(op.done for op in old))
    for op in old:
        task.acquire(op.finished())
        op.waited = True
    task.wgmmas = task.wgmmas[len(old):]
    task.loaded, task.released_early = [], []
    return inp.op.result if isinstance(inp, Pending) and inp.op.waited else inp


def queue_on_tensor_core(task: Task, kind: str, pair: Sequence[Cta], run: Callable[[Operation], None],
                         work: Copy | Matmul) -> Operation:
    """An operation that follows all earlier ones of the CTA's (or pair's) tensor core."""
    op = Operation(task, kind, run, [cta.mma_tail for cta in pair], work=work)
    for cta in pair:
        cta.mma_tail = op
    task.mma = op
    task.cta.to_wait_for.append(op)
    return op


def _tcgen05(task: Task, left: View, right: View, into: View, use_acc: Any, pred: Any, barriers: Sequence[Any],
             two_ctas: bool, force_async: bool) -> None:
    if pred is not None and not pred:
        return
    cta = task.cta
    accumulate = True if use_acc is None else bool(use_acc)
    if two_ctas and cta.rank % 2:
        return  # the pair's leader issues for both
    pair = cta.cluster[cta.rank : cta.rank + 2] if two_ctas else [cta]
    if left.shape[0] != into.shape[0] or right.shape[1] * len(pair) != into.shape[1]:
        raise SimulationError("shape", f"MMA of {left.shape} and {right.shape} into {into.shape}")

    def run(op: Operation) -> None:
        b = torch.cat([right.tensor(each) for each in pair], 1).float()
        for each in pair:
            product = left.tensor(each).float() @ b
            into.set(each, into.get(each) + product if accumulate else product)

    op = queue_on_tensor_core(task, "MMA", pair, run, _matmul(left, right, len(pair)))
    for each in pair:
        read(left, op, "async", each)
        read(right, op, "async", each)
        if accumulate:
            read(into, op, "async", each)
        write(into, op, "async", each)
    for bar in barriers:
        _commit(task, one_barrier(bar), pair, op)
    machine().pause()
    if not barriers and not force_async:
        machine().wait("a synchronous MMA", lambda: op.done)
        task.acquire(op.finished())


def _commit(task: Task, bar: Mbarrier, pair: Sequence[Cta], last: Operation | None) -> None:
    bars = [bar] + [peer_barrier(bar, cta.rank) for cta in pair if cta is not task.cta]

    def signal(op: Operation) -> None:
        for each in bars:
            each.arrive(1, op)

    before = [last, task.cta.commit_tail if machine().commits_in_order else None]
    op = Operation(task, "commit", after=before, signal=signal)
    # It carries what the MMAs did and knew, not what its issuer came to know since.
    known = last.finished() if last is not None else task
    op.clock, op.fenced = dict(known.clock), dict(known.fenced)
    task.cta.commit_tail = op


def tcgen05_commit(mBarrier: Any, two_ctas: bool = False) -> None:
    """Arrive at the barrier (of both CTAs with ``two_ctas``) when all MMAs issued so far are done."""
    task = this_task().note("commit")
    cta = task.cta
    if two_ctas and cta.rank % 2:
        return
    _commit(task, one_barrier(mBarrier), cta.cluster[cta.rank : cta.rank + 2] if two_ctas else [cta], task.mma)
    machine().pause()
