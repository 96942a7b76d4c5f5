"""The simulated ``triton.language.extra.tlx``: cluster launch control, small queries, and the namespace itself."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
import triton.language.extra.tlx as real_tlx

from kernels.simulator import tlx_barriers, tlx_copies, tlx_memory, tlx_mma
from kernels.simulator.agents import Operation
from kernels.simulator.buffers import ReuseGroup, View
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import TRITON_OF, RuntimeInt, item_size
from kernels.simulator.errors import SimulationError
from kernels.simulator.global_memory import Descriptor, Pointer


def clc_create_context(num_consumers: Any, num_stages: Any = 1) -> Any:
    """Barriers and responses for cluster launch control."""
    return types.SimpleNamespace(empty=tlx_barriers.alloc_barriers(num_stages, num_consumers),
                                 full=tlx_barriers.alloc_barriers(num_stages, 1), response=[None] * int(num_stages))


def clc_producer(context: Any, p_producer: Any = None, multi_ctas: bool = False, k: Any = 0) -> None:
    """Ask for the next cluster of the grid; the answer lands in stage ``k`` (of every CTA with ``multi_ctas``)."""
    task = this_task().note("clc_producer")
    k = int(k)
    leader = task.cta.rank == 0
    tlx_barriers.barrier_wait(context.empty[k], p_producer, leader if multi_ctas else None)
    tlx_barriers.barrier_expect_bytes(context.full[k], 16)
    task.cta.clc = context
    if multi_ctas and not leader:
        return
    targets = list(task.cta.cluster) if multi_ctas else [task.cta]
    waiting = machine()
    if not all(cta.clc is not None for cta in targets):
        waiting.wait("the peer's CLC context", lambda: all(cta.clc is not None for cta in targets))

    def signal(op: Operation) -> None:
        pids = waiting.queue.pop(0) if waiting.queue else None
        for cta in targets:
            cta.clc.response[k] = pids[cta.rank] if pids else (-1, -1, -1)
            cta.clc.full[k].land(16, op.finished())

    Operation(task, "CLC", signal=signal)
    waiting.pause()


def clc_consumer(context: Any, p_consumer: Any = None, multi_ctas: bool = False, k: Any = 0,
                 return_3d: bool = False) -> Any:
    """The program id that stage ``k`` holds, or -1 at the end (and then it does not release the stage)."""
    this_task().note("clc_consumer")
    k = int(k)
    tlx_barriers.barrier_wait(context.full[k], p_consumer)
    got = context.response[k]
    if got[0] >= 0:
        tlx_barriers.barrier_arrive(context.empty[k], 1, 0 if multi_ctas else None)
    return tuple(map(RuntimeInt, got)) if return_3d else RuntimeInt(got[0])


def async_task_replica_id() -> Any:
    """Which replica this is: a constexpr."""
    return this_task().replica


def cluster_cta_rank() -> RuntimeInt:
    """Rank of this CTA in its cluster."""
    return RuntimeInt(this_task().cta.rank)


def cluster_size_1d() -> int:
    """CTAs in the cluster."""
    return len(this_task().cta.cluster)


def size_of(dtype: Any) -> int:
    """Bytes of an element."""
    return item_size(dtype)


def dtype_of(v: Any) -> Any:
    """Element type of a buffer, descriptor, pointer or tensor."""
    if isinstance(v, Descriptor | View):
        return v.dtype
    if isinstance(v, Pointer):
        return v.dtype.element_ty
    return TRITON_OF[v.dtype]


def thread_id(axis: int) -> RuntimeInt:
    """A task acts as its thread 0."""
    return RuntimeInt(0)


def clock64() -> RuntimeInt:
    """No cycles are modelled: the number of task switches so far."""
    return RuntimeInt(machine().switches)


def vote_ballot_sync(mask: Any, pred: torch.Tensor) -> torch.Tensor:
    """Rows are lanes: 32 consecutive rows are a warp, which is true of ``(M, 1)`` tensors from tensor memory."""
    flags = (pred != 0).to(torch.int64)
    rows = flags.reshape(flags.shape[0], -1)[:, 0].reshape(-1, 32)
    word = (rows << torch.arange(32)).sum(1)
    word = torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)
    shape = [flags.shape[0]] + [1] * (flags.dim() - 1)
    return word.repeat_interleave(32).reshape(shape).expand(flags.shape)


class _Namespace:
    storage_kind, reuse_group_type, reuse_group = real_tlx.storage_kind, real_tlx.reuse_group_type, ReuseGroup

    def __init__(self, functions: dict[str, Any]):
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        raise SimulationError("unsupported", f"tlx.{name} is not simulated")


def _public(*modules: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in modules:
        found |= {name: member for name, member in vars(module).items() if hasattr(real_tlx, name)
                  and inspect.isfunction(member) and member.__module__.startswith("kernels.simulator")}
    return found


_own = types.SimpleNamespace(**{name: member for name, member in globals().items() if inspect.isfunction(member)})
TLX = _Namespace(_public(tlx_memory, tlx_barriers, tlx_copies, tlx_mma, _own))
