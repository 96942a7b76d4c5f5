"""Shared- and tensor-memory buffers: allocations, aliases and views of a CTA's bytes."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from kernels.simulator.agents import SMEM_LIMIT, TMEM_COLUMNS, Cta, Operation, Task
from kernels.simulator.clocks import Actor
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import as_int, item_size, unwrap
from kernels.simulator.errors import SimulationError
from kernels.simulator.shadow import Region

LANES = 128


def take(cta: Cta, kind: str, nbytes: int, align: int = 128) -> int:
    """Allocate ``nbytes`` (of a lane, for tensor memory: rounded up to 4-byte columns). Raises ``capacity``."""
    if kind == "smem":
        at = -(-cta.smem_used // align) * align
        cta.smem_used = at + nbytes
        _check_smem(cta)
        return at
    at = -(-cta.tmem_used // 4) * 4
    cta.tmem_used = at + nbytes
    if cta.tmem_used > TMEM_COLUMNS * 4:
        raise SimulationError("capacity", f"{-(-cta.tmem_used // 4)} columns of tensor memory > {TMEM_COLUMNS}")
    return at


def stage(task: Task, nbytes: int) -> None:
    """Account for the shared memory through which the compiler moves a register tensor to or from a descriptor."""
    grown = max(0, nbytes - task.staging_bytes)
    task.staging_bytes += grown
    task.cta.smem_staging += grown
    _check_smem(task.cta)


def _check_smem(cta: Cta) -> None:
    if cta.smem_used + cta.smem_staging > SMEM_LIMIT:
        raise SimulationError("capacity", f"{cta.smem_used + cta.smem_staging} B of shared memory > {SMEM_LIMIT}"
                                          f" ({cta.smem_staging} B of it staging of descriptor loads and stores)")


class Allocation:
    """Where buffer ``i`` lives: ``base + (i // group) * slot + within + (i % group) * tile``.

    Tensor-memory offsets are bytes along a lane (4 a column). An aliased allocation is placed when it is first used.
    """

    def __init__(self, kind: str, shape: Sequence[int], dtype: Any, num: int):
        self.kind, self.shape, self.num, self.dtype = kind, list(shape), num, dtype
        item = item_size(dtype)
        # 64-row accumulators of a CTA pair: lanes 0-63 hold the left half of the columns, 64-127 the right half.
        self.split = kind == "tmem" and shape[0] == 64 and len(this_task().cta.cluster) == 2
        self.tile = (shape[-1] * item // (2 if self.split else 1)) if kind == "tmem" else math.prod(shape) * item
        self.base: int | None = None
        self.spec: AliasSpec | None = None
        self.slot, self.within, self.group = self.tile, 0, 1

    def offset(self, index: int) -> int:
        """Byte offset of buffer ``index``."""
        if self.base is None:
            assert self.spec is not None
            self.spec.bind()
        assert self.base is not None
        return self.base + (index // self.group) * self.slot + self.within + (index % self.group) * self.tile


class ReuseGroup:
    """``tlx.reuse_group``: buffers (or groups) that share bytes or lie end to end."""

    def __init__(self, *args: Any, group_type: Any = None, group_size: Any = 1):
        self.args, self.group_size = args, unwrap(group_size)
        self.shared = group_type is None or group_type.value == "shared"


class AliasSpec:
    """``tlx.storage_alias_spec``: bytes that several allocations alias, laid out by `set_buffer_overlap`."""

    def __init__(self, cta: Cta, kind: str, size: int | None):
        self.cta, self.kind, self.size = cta, kind, size
        self.members: list[Allocation] = []
        self.bound = False

    def set_buffer_overlap(self, group: ReuseGroup) -> None:
        """Lay the group's buffers out, once."""
        if self.bound:
            raise SimulationError("structure", "set_buffer_overlap twice, or after the first use of the buffers")
        slot = _group_bytes(group)
        _place(group, 0, 1)
        leaves = _leaves(group, 1)
        base = take(self.cta, self.kind, slot * max(count for _, count in leaves))
        for allocation, _ in leaves:
            allocation.base, allocation.slot = base, slot
        self.bound = True

    def bind(self) -> None:
        """Without an overlap call every member begins at the same byte."""
        base = take(self.cta, self.kind, self.size or max(each.tile * each.num for each in self.members))
        for each in self.members:
            each.base = base
        self.bound = True


def _group_bytes(node: ReuseGroup | View) -> int:
    if isinstance(node, View):
        return node.allocation.tile
    each = [_group_bytes(child) for child in node.args]
    return node.group_size * (max(each) if node.shared else sum(each))


def _place(node: ReuseGroup | View, within: int, factor: int) -> None:
    if isinstance(node, View):
        node.allocation.within, node.allocation.group = within, factor
        return
    for child in node.args:
        _place(child, within, factor * node.group_size)
        within += 0 if node.shared else _group_bytes(child)


def _leaves(node: ReuseGroup | View, factor: int) -> list[tuple[Allocation, int]]:
    """(allocation, number of slots) of every buffer in the group."""
    if isinstance(node, View):
        return [(node.allocation, node.allocation.num // factor)]
    return [leaf for child in node.args for leaf in _leaves(child, factor * node.group_size)]


class View:
    """An allocation of ``num`` buffers (``owner`` is set) or one tile of memory.

    ``strides`` are in elements and used for shared memory; in tensor memory rows are lanes. ``box`` is the shape that
    they belong to: ``shape``, but for a permuted tile that was reshaped, which can only be loaded and stored. ``rank``
    is the CTA of the cluster whose memory is meant (``remote_view``), None for the CTA of whoever uses it.
    """

    __slots__ = ("_regions", "box", "dtype", "kind", "offset", "owner", "rank", "shape", "split", "strides")

    def __init__(self, kind: str, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: Any,
                 owner: Allocation | None = None, split: bool = False, rank: int | None = None,
                 box: Sequence[int] | None = None):
        self.kind, self.offset, self.shape, self.strides = kind, offset, list(shape), tuple(strides)
        self.box = self.shape if box is None else list(box)
        self.dtype, self.owner, self.split, self.rank = dtype, owner, split, rank
        self._regions: dict[Cta, Region] = {}

    @classmethod
    def contiguous(cls, kind: str, offset: int, shape: Sequence[int], dtype: Any, owner: Allocation | None = None,
                   rank: int | None = None) -> View:
        """A row-major view."""
        strides = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]
        return cls(kind, offset, shape, strides, dtype, owner, rank=rank)

    @property
    def allocation(self) -> Allocation:
        """The allocation, where this stands for all of its buffers."""
        if self.owner is None:
            raise SimulationError("structure", "a tile where a whole allocation is wanted")
        return self.owner

    @property
    def type(self) -> Any:
        """Just enough of a Triton type for kernels that ask for ``.type.shape`` and the like."""
        num = self.owner.num if self.owner else 0
        return types.SimpleNamespace(shape=self.shape, element_ty=self.dtype, scalar=self.dtype, num=num)

    @property
    def is_contiguous(self) -> bool:
        """Whether a tile of shared memory is row-major."""
        return self.strides == tuple(math.prod(self.box[axis + 1:]) for axis in range(len(self.box)))

    @property
    def nbytes(self) -> int:
        """Bytes of the tile."""
        return math.prod(self.shape) * item_size(self.dtype)

    def __getitem__(self, index: Any) -> View:
        index = as_int(index)
        if self.owner is None:
            self.plain()
            return View(self.kind, self.offset + index * self.strides[0] * item_size(self.dtype), self.shape[1:] or [1],
                        self.strides[1:] or (1,), self.dtype, rank=self.rank)
        if not 0 <= index < self.owner.num:
            raise SimulationError("index", f"buffer {index} of {self.owner.num}")
        return View(self.kind, self.owner.offset(index), self.shape, self.strides, self.dtype, split=self.owner.split,
                    rank=self.rank)

    def plain(self) -> View:
        """Itself. Raises `SimulationError` for a permuted tile that was reshaped, whose strides belong to `box`."""
        if self.box != self.shape:
            raise SimulationError("shape", f"a permuted tile reshaped to {self.shape} can only be loaded and stored")
        return self

    def one(self, folded: bool = False) -> View:
        """The tile that is meant: itself, or the only buffer of an allocation of one; `plain` unless ``folded``."""
        if self.owner is None:
            return self if folded else self.plain()
        if self.owner.num != 1:
            raise SimulationError("index", f"a buffer of {self.owner.num} tiles used as one tile")
        return self[0]

    def tensor(self, cta: Cta) -> torch.Tensor:
        """The bytes in that CTA, aliased. A split accumulator comes as ``[64, 2, columns / 2]``."""
        at = self.offset // item_size(self.dtype)
        whole = cta.memory(self.kind, self.dtype)
        if self.kind == "smem":
            return torch.as_strided(whole, self.box, self.strides, at)
        if self.split:
            lane = whole.stride(0)
            return torch.as_strided(whole, (64, 2, self.shape[1] // 2), (lane, 64 * lane, 1), at)
        return whole[: self.shape[0], at : at + self.shape[1]]

    def get(self, cta: Cta) -> torch.Tensor:
        """The values, in the view's shape (aliased unless split or permuted and reshaped)."""
        return self.tensor(cta).reshape(self.shape)

    def set(self, cta: Cta, value: torch.Tensor) -> None:
        """Overwrite the bytes."""
        tensor = self.tensor(cta)
        tensor.copy_(value.reshape(tensor.shape))

    def _words(self) -> np.ndarray:
        item = item_size(self.dtype)
        if self.kind == "tmem":
            columns = self.shape[1] // (2 if self.split else 1) * item
            return np.arange(self.offset // 4, (self.offset + columns + 3) // 4)
        return _words_of_box(self.offset, tuple(self.box), self.strides, item)

    def _key(self) -> Hashable:
        item = item_size(self.dtype)
        if self.kind == "tmem":
            columns = self.shape[1] // (2 if self.split else 1) * item
            return (self.offset, LANES if self.split else self.shape[0], columns)
        order = sorted(range(len(self.box)), key=lambda axis: -self.strides[axis])
        sizes, strides = [self.box[axis] for axis in order], [self.strides[axis] * item for axis in order]
        if strides[-1] == item:  # contiguous bytes
            sizes[-1] *= item
            strides.pop()
        return (self.offset, tuple(sizes), tuple(strides))

    def region(self, cta: Cta) -> Region:
        """The shadow region of the view in that CTA."""
        region = self._regions.get(cta)
        if region is None:
            region = self._regions[cta] = cta.shadow[self.kind].region(self._key(), self._words)
        return region


@functools.lru_cache(maxsize=1024)
def _words_of_box(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> np.ndarray:
    """The 4-byte words of a strided box of shared memory, sorted."""
    grid = np.full(1, offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        grid = (grid[:, None] + np.arange(size)[None, :] * stride * item).reshape(-1)
    last = (grid + item - 1) // 4
    return np.unique(np.concatenate([grid // 4, last]) if item > 4 else grid // 4)


def read(view: View, who: Task | Operation, proxy: str = "generic", cta: Cta | None = None) -> None:
    """Check that ``who`` may read the tile now."""
    _touch("read", view, who, proxy, cta)


def write(view: View, who: Task | Operation, proxy: str = "generic", cta: Cta | None = None) -> None:
    """Check that ``who`` may write the tile now."""
    _touch("write", view, who, proxy, cta)


def _touch(access: str, view: View, who: Actor, proxy: str, cta: Cta | None) -> None:
    if machine().races:
        cta = cta or this_task().cta
        getattr(cta.shadow[view.kind], access)(view.region(cta), who, proxy)


class Pending:
    """The result of a wgmma that has not been waited for: any use is a finding."""

    def __init__(self, op: Operation, shape: Sequence[int]):
        self.op, self.shape = op, list(shape)

    def refuse(self, *_: Any, **__: Any) -> Any:
        """Raise ``unwaited wgmma``."""
        task = this_task()
        task.line()
        raise SimulationError("unwaited wgmma", f"the result of {self.op.label()} is used at {task.label()} before "
                                                "async_dot_wait")

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = refuse
    __lt__ = __gt__ = __le__ = __ge__ = __neg__ = __bool__ = __float__ = __getitem__ = refuse

    @classmethod
    def __torch_function__(cls, func: Any, types_: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else [arg])]
        flat += list((kwargs or {}).values())
        next(item for item in flat if isinstance(item, cls)).refuse()
