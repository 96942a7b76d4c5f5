"""``tlx`` asynchronous copies: TMA loads and stores, bulk copies, cp.async, and copies between CTAs of a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.simulator.agents import Cta, Operation, Task
from kernels.simulator.barriers import Mbarrier
from kernels.simulator.buffers import View, read, write
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import as_int, constexpr_only, dtype_name, item_size, poison
from kernels.simulator.errors import SimulationError
from kernels.simulator.global_memory import Box, Descriptor, Pointer
from kernels.simulator.tl_namespace import TL
from kernels.simulator.tlx_barriers import one_barrier, peer, peer_barrier
from kernels.simulator.work import Copy


def _fill(task: Task, kind: str, tile: View, targets: Sequence[tuple[Cta, Mbarrier]], nbytes: int,
          data: Callable[[], torch.Tensor], work: Copy) -> Operation:
    """An operation that writes ``data()`` to the tile in each target CTA, and reports the bytes to its barrier."""

    def run(op: Operation) -> None:
        value = data()
        for cta, _ in targets:
            if not cta.live:
                raise SimulationError("exited peer", f"{op.label()} lands in CTA {cta.rank}, which has ended")
            tile.set(cta, value)

    def signal(op: Operation) -> None:
        for _, bar in targets:
            bar.land(nbytes, op.finished())

    op = Operation(task, kind, run, signal=signal, work=work)
    for cta, _ in targets:
        write(tile, op, "async", cta)
        poison(tile.tensor(cta))
    task.cta.to_wait_for.append(op)
    return op


def _check_box(desc: Descriptor, tile: View) -> None:
    if math.prod(desc.block_shape) != math.prod(tile.shape):
        raise SimulationError("shape", f"TMA box of {desc.block_shape} for a tile of {tile.shape}")
    if dtype_name(desc.dtype) != dtype_name(tile.dtype):
        raise SimulationError("shape", f"TMA of {desc.dtype} for a tile of {tile.dtype}")


def async_descriptor_load(desc: Descriptor, result: View, offsets: Sequence[Any], barrier: Any, pred: Any = None,
                          cache_modifier: str = "", eviction_policy: str = "", multicast_targets: Sequence[Any] = (),
                          two_ctas: bool = False) -> None:
    """TMA load of a box; its bytes count at ``barrier`` (of the pair's leader with ``two_ctas``)."""
    tile, bar, task = result.one(), one_barrier(barrier), this_task().note("TMA load")
    if pred is not None and not pred:
        return
    _check_box(desc, tile)
    if two_ctas:
        bar = peer_barrier(bar, task.cta.rank & ~1)
    offsets = [as_int(each) for each in offsets]
    targets = [peer(rank) for rank in multicast_targets] or [task.cta]
    pairs = [(cta, bar if cta is task.cta or two_ctas else peer_barrier(bar, cta.rank)) for cta in targets]
    op = _fill(task, "TMA load", tile, pairs, tile.nbytes, lambda: desc.get(offsets).reshape(tile.shape),
               Copy(tile.nbytes, desc.bytes_inside(offsets), desc.target.name, offsets))
    desc.note_read(offsets, op)
    machine().pause()


def async_descriptor_store(desc: Descriptor, source: View, offsets: Sequence[Any], eviction_policy: str = "",
                           store_reduce: str = "") -> None:
    """TMA store or reduce of a box, as a group of its own. The compiler puts a proxy fence before it."""
    tile, task = source.one(), this_task().note("TMA store")
    offsets = [as_int(each) for each in offsets]
    _check_box(desc, tile)
    task.proxy_fence()
    op = _drain(task, "TMA store", tile, lambda op: desc.put(offsets, tile.tensor(op.cta), store_reduce),
                Copy(tile.nbytes, desc.bytes_inside(offsets), desc.target.name, offsets, True, bool(store_reduce)))
    desc.note_write(offsets, op, adds=bool(store_reduce), event=op.landed)
    machine().pause()


def async_store(dst_global_ptr: Pointer, src_smem: View, size: Any) -> None:
    """Bulk store of the first ``size`` bytes of the tile to contiguous global memory.

    Unlike before a TMA store, the compiler puts no proxy fence before it.
    """
    tile, task = src_smem.one(), this_task().note("bulk store")
    box = _bulk_box(dst_global_ptr, as_int(size))
    target = dst_global_ptr.target
    op = _drain(task, "bulk store", tile,
                lambda op: box.of(target.flat).copy_(tile.tensor(op.cta).reshape(-1)[: box.size[0]]),
                Copy(as_int(size), as_int(size), target.name, (box.at,), True))
    target.note_write(box, op, generic=False, event=op.landed)
    machine().pause()


def _drain(task: Task, kind: str, tile: View, run: Callable[[Operation], Any], work: Copy) -> Operation:
    op = Operation(task, kind, run, lands=True, work=work)
    read(tile, op, "async")
    task.stores.append(op)
    task.cta.to_wait_for.append(op)
    return op


def _bulk_box(ptr: Pointer, nbytes: int) -> Box:
    item = ptr.target.flat.element_size()
    if nbytes % 16 or (int(ptr.offset) * item) % 16:
        raise SimulationError("alignment", f"bulk copy of {nbytes} B at byte {int(ptr.offset) * item}: both must be "
                                           "multiples of 16")
    return Box((nbytes // item,), (1,), int(ptr.offset))


def async_descriptor_store_wait(pendings: Any) -> None:
    """Wait until all but the last ``pendings`` stores have read their shared memory (``wait_group.read``)."""
    task = this_task().note(f"store wait {pendings}")
    constexpr_only(pendings, "pendings")
    old = task.stores[: max(0, len(task.stores) - int(pendings))]
    _wait_all(task, old, f"TMA stores (all but {pendings})")  # they stay listed, for a later wait for their writes


def _wait_all(task: Task, ops: list[Operation], what: str) -> None:
    if any(not op.done for op in ops):
        machine().wait(what, lambda: all(op.done for op in ops))
    for op in ops:
        task.acquire(op.finished())


def async_descriptor_prefetch_tensor(*_: Any, **__: Any) -> None:
    """A hint."""


prefetch = async_descriptor_prefetch_tensor


def async_load(src: Pointer, result: View, mask: Any = None, other: Any = None, cache_modifier: str = "",
               eviction_policy: str = "", is_volatile: bool = False, bulk: bool = False, bulk_size: Any = None,
               barrier: Any = None) -> Operation:
    """``bulk``: a bulk copy of contiguous memory, counted at ``barrier``; otherwise cp.async."""
    tile, task = result.one(), this_task().note("async load")
    if bulk:
        count = tile.shape[0] * item_size(tile.dtype) if bulk_size is None else as_int(bulk_size)
        box = _bulk_box(src, count)
        part = View(tile.kind, tile.offset, box.size, (1,), tile.dtype)
        op = _fill(task, "bulk load", part, [(task.cta, one_barrier(barrier))], count, lambda: box.of(src.target.flat),
                   Copy(count, count, src.target.name, (box.at,)))
        src.target.read(box, op, generic=False)
        machine().pause()
        return op
    value = TL.load(src, mask, other)
    op = Operation(task, "cp.async", lambda op: tile.set(op.cta, value.reshape(tile.shape)),
                   work=Copy(tile.nbytes, tile.nbytes, src.target.name, ()))
    write(tile, op, "cp.async")
    poison(tile.tensor(task.cta))
    task.copies.append(op)
    task.cta.to_wait_for.append(op)
    return op


def async_load_commit_group(tokens: Any = ()) -> None:
    """Close a cp.async group."""
    task = this_task()
    task.copy_groups.append(task.copies)
    task.copies = []


def async_load_wait_group(pendings: Any, tokens: Any = ()) -> None:
    """Wait for all but the last ``pendings`` cp.async groups."""
    task = this_task().note(f"load wait {pendings}")
    old = task.copy_groups[: max(0, len(task.copy_groups) - int(pendings))]
    _wait_all(task, [op for group in old for op in group], f"cp.async groups (all but {pendings})")
    task.copy_groups = task.copy_groups[len(old):]


# -- distributed shared memory


def async_remote_shmem_copy(dst: View, src: View, remote_cta_rank: Any, barrier: Any) -> None:
    """Shared memory to a peer's, counted at the peer's barrier."""
    target, source, task = dst.one(), src.one(), this_task().note("remote copy")
    cta = peer(remote_cta_rank)
    bar = peer_barrier(barrier, cta.rank)
    home = task.cta
    op = _fill(task, "remote copy", target, [(cta, bar)], source.nbytes, lambda: source.tensor(home),
               Copy(source.nbytes, source.nbytes, "", ()))
    read(source, op, "async")
    machine().pause()


def async_remote_shmem_store(dst: View, src: torch.Tensor, remote_cta_rank: Any, barrier: Any) -> None:
    """Registers to a peer's shared memory, counted at the peer's barrier."""
    target, task = dst.one(folded=True), this_task().note("remote store, asynchronous")
    cta = peer(remote_cta_rank)
    _fill(task, "remote store", target, [(cta, peer_barrier(barrier, cta.rank))], target.nbytes, lambda: src,
          Copy(target.nbytes, target.nbytes, "", ()))
    machine().pause()


def remote_shmem_store(dst: View, src: torch.Tensor, remote_cta_rank: Any) -> None:
    """Registers to a peer's shared memory, at once; a cluster barrier makes it visible."""
    target, task = dst.one(), this_task().note("remote store")
    cta = peer(remote_cta_rank)
    write(target, task, cta=cta)
    target.set(cta, src)
