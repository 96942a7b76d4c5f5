"""``tlx`` mbarriers, named barriers and the cluster barrier."""

from __future__ import annotations

import linecache
import sys
from typing import Any

from kernels.simulator.agents import Cta, Task
from kernels.simulator.barriers import BarrierArray, Mbarrier, NamedBarrier
from kernels.simulator.buffers import take
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import as_int, constexpr_only, unwrap
from kernels.simulator.errors import SimulationError


def one_barrier(bar: Any) -> Mbarrier:
    """The barrier that is meant: itself, or the first of an array."""
    return bar[0] if isinstance(bar, BarrierArray) else bar


def peer(rank: Any) -> Cta:
    """CTA ``rank`` of this cluster, which must not have ended."""
    task = this_task()
    rank = as_int(rank)
    if not 0 <= rank < len(task.cta.cluster):
        raise SimulationError("index", f"CTA {rank} of a cluster of {len(task.cta.cluster)}")
    cta = task.cta.cluster[rank]
    if not cta.live:
        raise SimulationError("exited peer", f"{task.label()} touches shared memory of CTA {rank}, which has ended")
    return cta


def peer_barrier(bar: Any, rank: Any) -> Mbarrier:
    """The same barrier in another CTA (which may not have got to its allocation yet)."""
    cta = peer(rank)
    array, index = one_barrier(bar).where
    if len(cta.barriers) <= array:
        machine().wait("the peer's barrier allocation", lambda: len(cta.barriers) > array)
    return cta.barriers[array].bars[index]


def _barrier_name(task: Task) -> str:
    """The name that the kernel gives the array, if its line reads ``name = ...``, else the line number."""
    frame = sys._getframe(2)
    while "__sim" not in frame.f_globals:
        frame = frame.f_back  # type: ignore[assignment]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    name = line.split("=")[0].strip()
    return name if name.isidentifier() and "=" in line else f"L{task.at}"


def alloc_barriers(num_barriers: Any, arrive_count: Any = 1) -> BarrierArray:
    """mbarriers at which one leader thread of a task arrives."""
    return _alloc(num_barriers, arrive_count, False)


def alloc_warp_barrier(num_barriers: Any, num_warps: Any = 1, num_arrivals: Any = 1) -> BarrierArray:
    """mbarriers at which every thread of a task arrives."""
    return _alloc(num_barriers, unwrap(num_warps) * 32 * unwrap(num_arrivals), True)


def _alloc(num: Any, count: Any, per_warp: bool) -> BarrierArray:
    task = this_task().note("alloc_barriers")
    num = unwrap(constexpr_only(num, "num_barriers"))
    count = unwrap(constexpr_only(count, "arrive_count"))
    name = _barrier_name(task)
    array = BarrierArray([Mbarrier(task.cta, f"{name}[{i}]", count, per_warp) for i in range(num)])
    for index, bar in enumerate(array.bars):
        bar.where = (len(task.cta.barriers), index)
    task.cta.barriers.append(array)
    take(task.cta, "smem", 8 * num, 8)
    return array


def barrier_expect_bytes(bar: Any, size: Any, pred: Any = None) -> None:
    """Expect ``size`` more bytes; it is one arrival too."""
    bar = one_barrier(bar)
    task = this_task().note(f"expect {bar.name} {size} B")
    constexpr_only(size, "barrier_expect_bytes size")
    if pred is None or pred:
        bar.expect(int(size))
        bar.arrive(1, task)
        task.advance()


def barrier_wait(bar: Any, phase: Any, pred: Any = None) -> None:
    """Wait until the phase of that parity has completed."""
    bar = one_barrier(bar)
    parity = int(phase) & 1
    task = this_task().note(f"wait {bar.name} parity {parity}")
    if pred is not None and not pred:
        return
    if bar.cta is not task.cta:
        raise SimulationError("structure", f"{task.label()} waits on a barrier of another CTA")
    machine().pause()
    if not bar.ready(parity):
        bar.waiting[task] = bar.completions
        machine().wait(lambda: f"{bar} parity {parity}", lambda: bar.ready(parity))
        del bar.waiting[task]
    task.acquire(bar)


def barrier_arrive(bar: Any, arrive_count: Any = 1, remote_cta_rank: Any = None, pred: Any = None) -> None:
    """Arrive; on a barrier of ``alloc_barriers`` after a task-wide ``bar.sync``."""
    bar = one_barrier(bar)
    task = this_task().note(f"arrive {bar.name}" + ("" if remote_cta_rank is None else f" of CTA {remote_cta_rank}"))
    machine().pause()
    if pred is not None and not pred:
        return
    if remote_cta_rank is not None:
        bar = peer_barrier(bar, remote_cta_rank)
    if not bar.cta.live:
        raise SimulationError("exited peer", f"{task.label()} arrives at {bar} of a CTA that has ended")
    if bar.per_warp:
        task.released_early += [(value, f"{task.label()} arrives at {bar.name} although nothing makes the loads of "
                                        f"line {line} land first") for value, line in task.loaded]
    else:
        task.tmem_reads = []
    task.loaded = []
    bar.arrive(int(arrive_count) * (task.num_warps * 32 if bar.per_warp else 1), task)
    task.advance()


def _named(task: Task, identifier: Any) -> NamedBarrier:
    if not 7 <= identifier <= 15:
        machine().findings.report("named barrier", f"{task.label()}: identifier {identifier} is not in 7..15")
    return task.cta.named.setdefault(int(identifier), NamedBarrier(int(identifier)))


def named_barrier_wait(bar: Any, arrive_count: Any) -> None:
    """``bar.sync bar, arrive_count``."""
    task = this_task().note(f"named wait {bar}")
    barrier = _named(task, bar)
    seen = barrier.completions
    barrier.arrive(task.num_warps * 32, int(arrive_count), task)
    task.advance()
    task.tmem_reads, task.loaded = [], []
    if barrier.completions == seen:
        machine().wait(f"named barrier {bar} ({barrier.arrived} of {arrive_count} threads)",
                       lambda: barrier.completions != seen)
    task.acquire(barrier)


def named_barrier_arrive(bar: Any, arrive_count: Any) -> None:
    """``bar.arrive bar, arrive_count``."""
    task = this_task().note(f"named arrive {bar}")
    machine().pause()
    _named(task, bar).arrive(task.num_warps * 32, int(arrive_count), task)
    task.advance()


def cluster_barrier() -> None:
    """Wait for this task's counterpart in every CTA of the cluster."""
    task = this_task().note("cluster barrier")
    barrier = task.cta.cluster[0].named.setdefault("cluster", NamedBarrier("cluster"))
    seen = barrier.completions
    barrier.arrive(1, len(task.cta.cluster), task)
    task.advance()
    if barrier.completions == seen:
        machine().wait("the cluster barrier", lambda: barrier.completions != seen)
    task.acquire(barrier)


def fence_mbarrier_init_cluster() -> None:
    """Barriers are ready as soon as they are allocated here."""
