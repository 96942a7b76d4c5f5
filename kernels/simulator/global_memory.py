"""Global memory: pointers, TMA descriptors, and who read and wrote which elements.

Storages are told apart by address and element size; one storage seen under two element sizes is checked per size.
"""

from __future__ import annotations

import math
import types
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from kernels.simulator.agents import Task
from kernels.simulator.buffers import stage
from kernels.simulator.clocks import Actor, Clocked, Event
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import TRITON_OF, as_int, poison
from kernels.simulator.errors import Findings, SimulationError


class WriteLedger:
    """How often each element was written since the simulator started; shared by its launches."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, torch.Tensor] = {}
        self._alive: list[torch.Tensor] = []  # keeps addresses from being handed out again

    def counts(self, flat: torch.Tensor) -> torch.Tensor:
        """int16 counts of all elements of the storage behind ``flat``."""
        key = storage_key(flat)
        if key not in self._counts:
            self._counts[key] = torch.zeros(flat.untyped_storage().nbytes() // flat.element_size(), dtype=torch.int16)
            self._alive.append(flat)
        return self._counts[key]

    def written(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """``(values, mask)`` of every storage that was written, flat, in the order in which kernels first had them."""
        pairs = [(flat, self._counts[storage_key(flat)] > 0) for flat in self._alive]
        return [(flat.clone(), mask) for flat, mask in pairs if bool(mask.any())]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Counts in the shape of ``tensor``."""
        return torch.as_strided(self.counts(tensor), tensor.shape, tensor.stride(), tensor.storage_offset())


def storage_key(tensor: torch.Tensor) -> Hashable:
    """Tells a storage under one element size from all others."""
    return (tensor.untyped_storage().data_ptr(), tensor.element_size())


class Box:
    """A strided box of elements."""

    def __init__(self, size: Sequence[int], strides: Sequence[int], at: int):
        self.size, self.strides, self.at = tuple(size), tuple(strides), at
        self.low = at
        self.high = at + sum(stride * (n - 1) for stride, n in zip(strides, size, strict=True))
        self.key: Hashable = (self.at, self.size)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements (a view)."""
        return torch.as_strided(tensor, self.size, self.strides, self.at)

    def fill(self, tensor: torch.Tensor, value: Any) -> None:
        """Set the elements."""
        self.of(tensor).fill_(value)

    def count(self, tensor: torch.Tensor) -> None:
        """Add one to the elements."""
        self.of(tensor).add_(1)


class Points:
    """Elements by flat index, int64."""

    def __init__(self, index: torch.Tensor):
        self.index = index.reshape(-1)
        self.low, self.high = int(self.index.min()), int(self.index.max())
        self.key: Hashable = (self.low, self.high, len(self.index))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements (a copy)."""
        return tensor[self.index]

    def fill(self, tensor: torch.Tensor, value: Any) -> None:
        """Set the elements."""
        tensor[self.index] = value

    def count(self, tensor: torch.Tensor) -> None:
        """Add one to the elements, once for every time that they are named."""
        tensor.index_add_(0, self.index, torch.ones(len(self.index), dtype=tensor.dtype))


class _Touch:
    __slots__ = ("access", "event", "generic", "label")

    def __init__(self, access: Box | Points, event: Event, label: str, generic: bool):
        self.access, self.event, self.label, self.generic = access, event, label, generic


class GlobalShadow:
    """Accesses to one storage during one launch.

    Plain writes are kept per element; reads and reduce-adds, of which any number may be unordered, as a log.
    """

    def __init__(self, name: str, counts: torch.Tensor, findings: Findings):
        self.name, self.counts, self.findings = name, counts, findings
        self._last: torch.Tensor | None = None  # index into _writes of the last plain write, 0 for none
        self._scratch = torch.empty(0, dtype=torch.bool)
        self._writes: list[_Touch] = [_Touch(Points(torch.zeros(1, dtype=torch.int64)), (0, -1), "", False)]
        self._reads: dict[Hashable, _Touch] = {}
        self._adds: dict[Hashable, _Touch] = {}

    def read(self, access: Box | Points, who: Actor, generic: bool) -> None:
        """A read, by ordinary instructions (``generic``) or by TMA."""
        self._against_writes(access, who, "reads", generic)
        self._against_log(self._adds, access, who, "reads")
        self._reads[(who.event[0], access.key)] = _Touch(access, who.event, who.label(), generic)

    def write(self, access: Box | Points, who: Actor, generic: bool, adds: bool = False,
              event: Event | None = None) -> None:
        """A write; ``adds`` marks atomics and reduce-adds, which need no order among themselves."""
        verb = "adds to" if adds else "writes"
        self._against_writes(access, who, verb, generic=True)
        self._against_log(self._reads, access, who, verb)
        touch = _Touch(access, event or who.event, who.label(), generic)
        if adds:
            self._adds[(touch.event[0], access.key)] = touch
        else:
            self._against_log(self._adds, access, who, verb)
            if self._last is None:
                self._last = torch.zeros(len(self.counts), dtype=torch.int32)
            access.fill(self._last, len(self._writes))
            self._writes.append(touch)
        access.count(self.counts)

    def _against_writes(self, access: Box | Points, who: Actor, verb: str, generic: bool) -> None:
        if self._last is None:
            return
        seen = access.of(self._last)
        low, high = int(seen.min()), int(seen.max())
        for index in ([low] if low == high else torch.unique(seen).tolist()):
            touch = self._writes[index]
            if not index:
                continue
            if not who.after(touch.event):
                self.findings.report("race", f"{who.label()} {verb} global memory {self.name}, elements "
                                              f"{access.low}..{access.high}, unordered with the write by {touch.label}")
            if not generic and touch.generic and not who.proxied(touch.event):
                self.findings.report("proxy fence", f"{who.label()} {verb} global memory {self.name} through the async "
                                                    f"proxy; {touch.label} wrote it without a proxy fence")

    def _against_log(self, log: dict[Hashable, _Touch], access: Box | Points, who: Actor, verb: str) -> None:
        for touch in log.values():
            other = touch.access
            if touch.event[0] == who.event[0] or other.high < access.low or access.high < other.low:
                continue
            if not who.after(touch.event) and self._overlap(access, other):
                how = "add" if log is self._adds else "read"
                self.findings.report("race", f"{who.label()} {verb} global memory {self.name}, elements "
                                              f"{access.low}..{access.high}, unordered with the {how} by {touch.label}")

    def _overlap(self, one: Box | Points, other: Box | Points) -> bool:
        if len(self._scratch) != len(self.counts):
            self._scratch = torch.zeros(len(self.counts), dtype=torch.bool)
        one.fill(self._scratch, True)
        overlap = bool(other.of(self._scratch).any())
        one.fill(self._scratch, False)
        return overlap


class GlobalTensor:
    """A tensor argument's storage, flat, with the extent that the argument may touch."""

    def __init__(self, tensor: torch.Tensor, name: str, findings: Findings, ledger: WriteLedger,
                 shadows: dict[Hashable, GlobalShadow]):
        tensor = tensor.detach()
        self.flat = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
        self.name, self.dtype = name, tensor.dtype
        self.low = tensor.storage_offset()
        spans = [(n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        self.high = self.low + sum(spans) if tensor.numel() else self.low - 1
        key = storage_key(tensor)
        if key not in shadows:
            shadows[key] = GlobalShadow(name, ledger.counts(self.flat), findings)
        self.shadow = shadows[key]
        self.atomics: dict[int, Clocked] = {}

    def bounds(self, access: Box | Points) -> None:
        """Raise ``out of bounds`` unless the argument covers the access."""
        if access.low < self.low or access.high > self.high:
            raise SimulationError("out of bounds", f"access to elements {access.low - self.low}.."
                                                   f"{access.high - self.low} of {self.name}, which has "
                                                   f"{self.high - self.low + 1}")

    def read(self, access: Box | Points, who: Actor, generic: bool = True) -> torch.Tensor:
        """The elements, after the checks."""
        self.bounds(access)
        if machine().races:
            self.shadow.read(access, who, generic)
        return access.of(self.flat)

    def note_write(self, access: Box | Points, who: Actor, generic: bool = True, adds: bool = False,
                   event: Event | None = None) -> None:
        """The checks of a write; the caller stores the elements."""
        self.bounds(access)
        if machine().races:
            self.shadow.write(access, who, generic, adds, event)


class Pointer:
    """A pointer, or a tensor of pointers: a tensor argument and element offsets into its storage."""

    def __init__(self, target: GlobalTensor, offset: Any):
        self.target, self.offset = target, offset

    @property
    def dtype(self) -> Any:
        """Just enough of a Triton pointer type."""
        return types.SimpleNamespace(element_ty=TRITON_OF[self.target.dtype], is_ptr=lambda: True)

    type = dtype

    @property
    def shape(self) -> list[int]:
        """Of the tensor of pointers; empty for one."""
        return list(self.offset.shape) if isinstance(self.offset, torch.Tensor) else []

    def __add__(self, other: Any) -> Pointer:
        if not isinstance(other, torch.Tensor | int | float):
            return NotImplemented
        return Pointer(self.target, self.offset + (other.long() if isinstance(other, torch.Tensor) else int(other)))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        return self + (-other)

    def __getitem__(self, index: Any) -> Pointer:
        return Pointer(self.target, self.offset[index])

    def synchronise(self, task: Task, addend: int, releases: bool) -> int:
        """Add to one element, atomically, with release or else acquire semantics; its value before."""
        at = int(self.offset)
        self.target.note_write(Points(torch.tensor([at])), task, adds=True)
        old = int(self.target.flat[at])
        self.target.flat[at] += addend
        location = self.target.atomics.setdefault(at, Clocked())
        if releases:
            location.acquire(task)
            task.advance()
        else:
            task.acquire(location)
        return old


class Descriptor:
    """A TMA descriptor. Boxes are clipped to the shape; addresses wrap at 2^64 bytes, as ragged descriptors need."""

    def __init__(self, target: GlobalTensor, offset: int, shape: Sequence[Any], strides: Sequence[Any],
                 block_shape: Sequence[int], padding: str = "zero"):
        self.target, self.offset = target, int(offset)
        self.shape = [int(as_int(size)) for size in shape]
        self.strides = [int(as_int(stride)) for stride in strides]
        self.block_shape, self.padding = list(block_shape), padding
        self.dtype = TRITON_OF[target.dtype]
        self._wrap = 2**64 // target.flat.element_size()

    def box(self, coordinates: Sequence[Any]) -> tuple[tuple[slice, ...], Box] | None:
        """(where inside the block, which elements), or None if the box lies wholly outside the shape."""
        coordinates = [int(each) for each in coordinates]
        if len(coordinates) != len(self.block_shape):
            raise SimulationError("descriptor", f"{len(coordinates)} coordinates for rank {len(self.block_shape)}")
        at = self.offset
        size, inner = [], []
        for start, extent, stride, block in zip(coordinates, self.shape, self.strides, self.block_shape, strict=True):
            if not -(2**31) <= start < 2**31:
                raise SimulationError("descriptor", f"coordinate {start} is not int32")
            low, high = max(0, -start), min(block, extent - start)
            if high <= low:
                return None
            at += (start + low) * stride
            size.append(high - low)
            inner.append(slice(low, high))
        strides = [stride if n > 1 else 0 for stride, n in zip(self.strides, size, strict=True)]
        box = Box(size, strides, at % self._wrap)
        if box.low < 0 or box.high >= self.target.flat.numel():
            raise SimulationError("descriptor", f"box at {coordinates} leaves the storage of {self.target.name}")
        return tuple(inner), box

    def bytes_inside(self, coordinates: Sequence[Any]) -> int:
        """Bytes of the box that lie within the shape."""
        found = self.box(coordinates)
        return math.prod(found[1].size) * self.target.flat.element_size() if found else 0

    def note_read(self, coordinates: Sequence[Any], who: Actor, generic: bool = False) -> None:
        """The checks of a TMA load, when it is issued."""
        found = self.box(coordinates)
        if found:
            self.target.read(found[1], who, generic)

    def note_write(self, coordinates: Sequence[Any], who: Actor, adds: bool = False, event: Event | None = None,
                   generic: bool = False) -> None:
        """The checks of a TMA store, when it is issued."""
        found = self.box(coordinates)
        if found:
            self.target.note_write(found[1], who, generic, adds, event)

    def get(self, coordinates: Sequence[Any]) -> torch.Tensor:
        """The block, zero (or NaN) outside the shape."""
        out = torch.zeros(self.block_shape, dtype=self.target.dtype)
        if self.padding == "nan":
            poison(out)
        found = self.box(coordinates)
        if found:
            out[found[0]] = found[1].of(self.target.flat)
        return out

    def put(self, coordinates: Sequence[Any], value: torch.Tensor, reduce: str = "") -> None:
        """Store the block, or combine it by ``add``, ``min`` or ``max``; what is outside the shape is dropped."""
        found = self.box(coordinates)
        if not found:
            return
        into = found[1].of(self.target.flat)
        value = value.reshape(self.block_shape)[found[0]].to(self.target.dtype)
        if reduce == "add":
            into.add_(value)
        elif reduce in ("min", "max"):
            into.copy_(getattr(torch, reduce + "imum")(into, value))
        elif reduce:
            raise SimulationError("unsupported", f"store_reduce={reduce!r}")
        else:
            into.copy_(value)

    def load(self, coordinates: Sequence[Any]) -> torch.Tensor:
        """``desc.load``: an ordinary, blocking load."""
        self.note_read(coordinates, self._staged("desc.load"), generic=True)
        return self.get(coordinates)

    def store(self, coordinates: Sequence[Any], value: torch.Tensor) -> None:
        """``desc.store``."""
        self._blocking_store(coordinates, value, "")

    def atomic_add(self, coordinates: Sequence[Any], value: torch.Tensor) -> None:
        """``desc.atomic_add``."""
        self._blocking_store(coordinates, value, "add")

    def _blocking_store(self, coordinates: Sequence[Any], value: torch.Tensor, reduce: str) -> None:
        self.note_write(coordinates, self._staged("desc.store"), adds=bool(reduce), generic=True)
        self.put(coordinates, value, reduce)

    def _staged(self, what: str) -> Task:
        task = this_task().note(what)
        stage(task, math.prod(self.block_shape) * self.target.flat.element_size())
        return task
