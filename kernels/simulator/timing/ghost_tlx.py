"""``triton.language.extra.tlx`` for ghosts: what the simulator does, after the time that it takes."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.simulator import tlx_barriers, tlx_copies, tlx_memory, tlx_mma
from kernels.simulator.buffers import Pending, View
from kernels.simulator.context import machine
from kernels.simulator.dtypes import item_size, torch_dtype, unwrap
from kernels.simulator.errors import SimulationError
from kernels.simulator.timing.engine import TimedMachine
from kernels.simulator.timing.ghosts import Ghost, charge
from kernels.simulator.tlx_namespace import TLX, _Namespace


def _engine() -> TimedMachine:
    found = machine()
    assert isinstance(found, TimedMachine)
    return found


def _timed(function: Any, clocks: str) -> Any:
    """``function`` after ``clocks`` (a figure of the machine's) and the arithmetic before it."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        engine = _engine()
        engine.act(getattr(engine.description, clocks))
        return function(*args, **kwargs)

    return timed


def barrier_arrive(bar: Any, arrive_count: Any = 1, remote_cta_rank: Any = None, pred: Any = None) -> None:
    """By every thread, or by one after its warps have met."""
    engine, one = _engine(), tlx_barriers.one_barrier(bar)
    meeting = 0.0 if one.per_warp or engine.current.num_warps == 1 else engine.description.sync_clocks
    engine.act(engine.description.arrive_clocks + meeting)
    tlx_barriers.barrier_arrive(bar, arrive_count, remote_cta_rank, pred)


def _move(tile: View, loads: bool) -> None:
    """Charge for a tile between registers and on-chip memory."""
    engine = _engine()
    clock, m = engine.clock, engine.description
    sm = engine.sm(engine.current.cta)
    nbytes = math.prod(tile.shape) * item_size(tile.dtype)
    if tile.kind == "tmem":
        clock.other += max(nbytes / 128 / clock.threads, 1.0)  # 32 registers of a thread an instruction
        engine.act(0.0)
        rate = m.tmem_read_bytes if loads else m.tmem_write_bytes
        clock.now = max(clock.now, sm.tmem.reserve(clock.now, nbytes / rate))
    elif loads:
        if len(tile.shape) == 1 and clock.threads >= 128:  # of columns: each warp reads all of it, 16 bytes a clock
            nbytes *= 8 * clock.warps
        clock.other += max(nbytes / 16 / clock.threads, 1.0)
        clock.smem += nbytes
    else:
        clock.other += max(nbytes / 16 / clock.threads, 1.0)
        engine.act(0.0)
        engine.store(nbytes)
    if loads:
        clock.latency = max(clock.latency, m.l1_clocks)
    engine.act(0.0)


def local_load(src: View, token: Any = None, layout: Any = None, relaxed: bool = False) -> Any:
    """A ghost of the tile; integers have their values."""
    tile = src.one(folded=True)
    _move(tile, True)
    if not torch_dtype(tile.dtype).is_floating_point:
        return tlx_memory.local_load(src, token, layout, relaxed)
    return Ghost(tile.shape, torch_dtype(tile.dtype))


def local_store(dst: View, src: Any) -> None:
    """Nothing is written, but for integers with values."""
    tile = dst.one(folded=True)
    if isinstance(src, Pending):
        src.refuse()
    if list(src.shape) != list(tile.shape) or src.dtype != torch_dtype(tile.dtype):
        raise SimulationError("shape", f"local_store of {src.dtype} {list(src.shape)} into {tile.dtype} {tile.shape}")
    _move(tile, False)
    if isinstance(src, torch.Tensor):
        tlx_memory.local_store(dst, src)


def fence(scope: Any) -> None:
    """Only the fence between proxies takes time: it waits for the task's stores."""
    if unwrap(scope) == "async_shared":
        _engine().fence()
    else:
        _engine().act(0.0)


def vote_ballot_sync(mask: Any, pred: Ghost) -> Ghost:
    """One instruction."""
    charge("alu", pred.elements)
    return Ghost(pred.shape, torch.int32)


def async_dot_wait(pendings: Any, inp: Any) -> Any:
    """Where the compiler sinks arithmetic, what precedes the wait is computed after it."""
    _engine().await_matmuls()
    return tlx_mma.async_dot_wait(pendings, inp)


def async_descriptor_store_wait(pendings: Any) -> None:
    """As the simulator's; stores that are done are forgotten, as nobody asks whether their writes are visible."""
    engine = _engine()
    engine.act(engine.description.wait_clocks)
    tlx_copies.async_descriptor_store_wait(pendings)
    stores = engine.current.stores
    while stores and stores[0].done:
        stores.pop(0)


GHOST_TLX = _Namespace({
    **vars(TLX), "barrier_arrive": barrier_arrive, "local_load": local_load, "local_store": local_store, "fence": fence,
    "fence_async_shared": lambda: fence("async_shared"), "vote_ballot_sync": vote_ballot_sync,
    "barrier_wait": _timed(tlx_barriers.barrier_wait, "wait_clocks"),
    "barrier_expect_bytes": _timed(tlx_barriers.barrier_expect_bytes, "arrive_clocks"),
    "named_barrier_wait": _timed(tlx_barriers.named_barrier_wait, "sync_clocks"),
    "named_barrier_arrive": _timed(tlx_barriers.named_barrier_arrive, "arrive_clocks"),
    "cluster_barrier": _timed(tlx_barriers.cluster_barrier, "l1_clocks"),
    "async_descriptor_load": _timed(tlx_copies.async_descriptor_load, "issue_clocks"),
    "async_descriptor_store": _timed(tlx_copies.async_descriptor_store, "issue_clocks"),
    "async_descriptor_store_wait": async_descriptor_store_wait,
    "async_load": _timed(tlx_copies.async_load, "issue_clocks"),
    "async_store": _timed(tlx_copies.async_store, "issue_clocks"),
    "async_remote_shmem_copy": _timed(tlx_copies.async_remote_shmem_copy, "issue_clocks"),
    "async_dot": _timed(tlx_mma.async_dot, "issue_clocks"),
    "async_dot_wait": async_dot_wait,
    "tcgen05_commit": _timed(tlx_mma.tcgen05_commit, "arrive_clocks"),
})
