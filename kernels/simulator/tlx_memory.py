"""``tlx`` on-chip memory: allocation, views, loads and stores. Signatures are those of the real ``tlx``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton.language.extra.tlx as real_tlx

from kernels.simulator.buffers import AliasSpec, Allocation, Pending, View, read, take, write
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import as_int, constexpr_only, item_size, torch_dtype, unwrap
from kernels.simulator.errors import SimulationError
from kernels.simulator.tlx_barriers import peer_barrier
from kernels.simulator.tlx_mma import queue_on_tensor_core
from kernels.simulator.work import Copy


def _kind(storage: Any) -> str:
    if storage != real_tlx.storage_kind.tmem:
        return "smem"
    if machine().arch < 100:
        raise SimulationError("arch", f"tensor memory on sm_{machine().arch}")
    return "tmem"


def local_alloc(shape: Any, dtype: Any, num: Any, storage: Any = real_tlx.storage_kind.smem, reuse: Any = None,
                layout: Any = None) -> View:
    """``num`` buffers of ``shape``."""
    task = this_task().note("local_alloc")
    kind = _kind(storage)
    sizes = [constexpr_only(unwrap(size), "a shape") for size in shape]
    allocation = Allocation(kind, sizes, unwrap(dtype), constexpr_only(unwrap(num), "local_alloc num"))
    if isinstance(reuse, View):
        owner = reuse.allocation
        allocation.base = owner.offset(0)
        if allocation.tile * allocation.num > owner.tile * owner.num:
            raise SimulationError("capacity", "an allocation that is larger than the buffers it reuses")
    elif isinstance(reuse, AliasSpec):
        if reuse.kind != kind:
            raise SimulationError("structure", f"a {kind} buffer in a {reuse.kind} alias spec")
        allocation.spec = reuse
        reuse.members.append(allocation)
    else:
        allocation.base = take(task.cta, kind, allocation.tile * allocation.num, 128 if len(sizes) > 1 else 16)
    return View.contiguous(kind, 0, sizes, allocation.dtype, allocation)


def storage_alias_spec(storage: Any = real_tlx.storage_kind.smem, buffer_size_bytes: Any = None) -> AliasSpec:
    """Bytes for several allocations to alias."""
    return AliasSpec(this_task().cta, _kind(storage), unwrap(buffer_size_bytes))


def local_view(local_allocated_buffers: Any, buffer_idx: Any) -> Any:
    """Buffer or barrier ``buffer_idx``."""
    return local_allocated_buffers[buffer_idx]


def remote_view(local_allocated_buffer: Any, remote_cta_rank: Any) -> Any:
    """The same buffer or barrier in another CTA of the cluster."""
    rank = as_int(remote_cta_rank)
    if not isinstance(local_allocated_buffer, View):
        return peer_barrier(local_allocated_buffer, rank)
    view = local_allocated_buffer.plain()
    return View(view.kind, view.offset, view.shape, view.strides, view.dtype, view.owner, view.split, rank)


def local_slice(buffer: View, offset: Sequence[Any], shape: Sequence[int]) -> View:
    """A box of a tile, at constexpr offsets; of tensor memory, columns only."""
    buffer = buffer.one()
    if buffer.kind == "tmem":
        return subslice(buffer, offset[1], shape[1])
    at = [int(constexpr_only(each, "a shared-memory slice offset")) for each in offset]
    if any(low < 0 or low + size > have for low, size, have in zip(at, shape, buffer.shape, strict=True)):
        raise SimulationError("index", f"slice {at} of shape {list(shape)} of a tile of {buffer.shape}")
    start = sum(each * stride for each, stride in zip(at, buffer.strides, strict=True)) * item_size(buffer.dtype)
    return View("smem", buffer.offset + start, shape, buffer.strides, buffer.dtype, rank=buffer.rank)


def subslice(local_allocated_buffer: View, offset: Any, size: Any) -> View:
    """Columns ``offset:offset + size`` of a tensor-memory tile."""
    buffer = local_allocated_buffer.one()
    offset, size = int(offset), int(size)
    if offset < 0 or offset + size > buffer.shape[1]:
        raise SimulationError("index", f"columns {offset}..{offset + size} of {buffer.shape[1]}")
    return View("tmem", buffer.offset + offset * item_size(buffer.dtype), [buffer.shape[0], size], buffer.strides,
                buffer.dtype)


def local_trans(input: View, dims: Sequence[int] = (1, 0)) -> View:
    """The tile with its dimensions permuted (no copy)."""
    tile = input.one()
    return View(tile.kind, tile.offset, [tile.shape[axis] for axis in dims], [tile.strides[axis] for axis in dims],
                tile.dtype, rank=tile.rank)


def local_reshape(src: View, shape: Sequence[Any]) -> View:
    """The same bytes in another shape."""
    tile = src.one(folded=True)
    sizes = [int(unwrap(size)) for size in shape]
    if tile.kind == "smem" and not tile.is_contiguous and math.prod(sizes) == math.prod(tile.shape):
        return View(tile.kind, tile.offset, sizes, tile.strides, tile.dtype, rank=tile.rank, box=tile.box)
    return local_reinterpret(src, src.dtype, shape)


def local_reinterpret(src: View, dtype: Any, shape: Sequence[Any] | None = None) -> View:
    """The same bytes as another dtype and shape; they must not be more than the tile has."""
    tile = src.one()
    sizes = [int(unwrap(size)) for size in (shape or tile.shape)]
    dtype = unwrap(dtype)
    have, want = tile.nbytes, math.prod(sizes) * item_size(dtype)
    if want > have:
        raise SimulationError("shape", f"local_reinterpret of {have} B as {want} B")
    if tile.kind == "smem" and not tile.is_contiguous:
        raise SimulationError("shape", "local_reinterpret of a tile that is not contiguous")
    return View.contiguous(tile.kind, tile.offset, sizes, dtype, rank=tile.rank)


def local_load(src: View, token: Any = None, layout: Any = None, relaxed: bool = False) -> torch.Tensor:
    """The tile as a register tensor."""
    tile, task = src.one(folded=True), this_task().note("local_load")
    cta = task.cta if tile.rank is None else task.cta.cluster[tile.rank]
    machine().pause()
    read(tile, task, cta=cta)
    value = tile.get(cta).clone()
    if tile.kind == "tmem":
        if task.num_warps > 4 and machine().races:
            task.tmem_reads.append((tile.region(cta), task.at))
    elif len(tile.shape) > 1 and min(tile.shape) >= 16:
        task.loaded.append((value, task.at))
    return value


def local_store(dst: View, src: Any) -> None:
    """Write a register tensor to the tile."""
    tile, task = dst.one(folded=True), this_task().note("local_store")
    if isinstance(src, Pending):
        src.refuse()
    machine().pause()
    if tuple(src.shape) != tuple(tile.shape) or src.dtype != torch_dtype(tile.dtype):
        raise SimulationError("shape", f"local_store of {src.dtype} {list(src.shape)} into {tile.dtype} {tile.shape}")
    cta = task.cta if tile.rank is None else task.cta.cluster[tile.rank]
    write(tile, task, cta=cta)
    if tile.kind == "tmem":
        _warps_may_disagree(task, tile.region(cta) if machine().races else None)
    tile.set(cta, src)


def _warps_may_disagree(task: Any, region: Any) -> None:
    """Warps hold different columns in loads of differently shaped views, so one may store over what another reads."""
    for read_region, line in task.tmem_reads:
        if read_region is not region and any(other is read_region for other, _ in region.overlaps):
            machine().findings.report(
                "intra-task", f"{task.label()} stores over tensor memory that line {line} read through another view; "
                              f"its {task.num_warps} warps have no barrier in between")
            return


def tmem_copy(src: View, dst: View) -> None:
    """Shared to tensor memory, in the tensor core's queue (committed like an MMA)."""
    source, target, task = src.one(), dst.one(), this_task().note("tmem_copy")
    if source.nbytes != target.nbytes:
        raise SimulationError("shape", f"tmem_copy of {source.nbytes} B into {target.nbytes} B")
    op = queue_on_tensor_core(task, "tmem copy", [task.cta],
                              lambda op: target.set(op.cta, source.tensor(op.cta).reshape(target.shape)),
                              Copy(source.nbytes, source.nbytes, "", ()))
    read(source, op, "async")
    write(target, op, "async")
    machine().pause()


def fence(scope: Any) -> None:
    """``async_shared`` makes this task's knowledge of ordinary writes visible to the async proxy; others do nothing."""
    task = this_task().note(f"fence {unwrap(scope)}")
    if unwrap(scope) == "async_shared":
        task.proxy_fence()


def fence_async_shared() -> None:
    """``fence("async_shared")``."""
    fence("async_shared")
