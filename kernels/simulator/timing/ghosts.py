"""Values without numbers: register tensors that are a shape and a cost, and scalars that arrive when a load returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kernels.simulator.dtypes import RuntimeInt, RuntimeInt64, torch_dtype
from kernels.simulator.errors import SimulationError
from kernels.simulator.global_memory import GlobalTensor, Pointer
from kernels.simulator.timing import clocks


def broadcast(*values: Any) -> list[int]:
    """The shape that ghosts, tensors and scalars have together. Raises `SimulationError` (``shape``)."""
    shapes = [list(value.shape) for value in values if hasattr(value, "shape")]
    rank = max(map(len, shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if out[axis] not in (1, size):
                    raise SimulationError("shape", f"shapes {shapes} don't go together")
                out[axis] = size
    return out


def charge(unit: str, elements: int, each: float = 1.0) -> None:
    """Charge the running task for ``each`` instruction of a unit (``fma``, ``alu``, ``mufu``) an element."""
    clock = clocks.running
    if unit == "mufu" and clock.early is None:
        clock.early = (clock.fma, clock.alu, clock.other, clock.smem)
    setattr(clock, unit, getattr(clock, unit) + each * clock.per_warp(elements))


class Ghost:
    """A register tensor. ``product``: it comes from a multiplication that an addition may absorb (one FMA)."""

    __slots__ = ("dtype", "product", "shape")
    __array_priority__ = 1000

    def __init__(self, shape: Sequence[int], dtype: Any, product: bool = False):
        self.shape, self.dtype, self.product = list(shape), dtype, product

    @property
    def elements(self) -> int:
        """How many."""
        return math.prod(self.shape)

    def _with(self, other: Any, unit: str, each: float = 1.0, dtype: Any = None, product: bool = False) -> Ghost:
        shape = broadcast(self, other)
        charge(unit if self.dtype.is_floating_point else "alu", math.prod(shape), each)
        return Ghost(shape, dtype or self.dtype, product)

    def _add(self, other: Any) -> Any:
        if isinstance(other, Pointer | GhostPointer):
            return GhostPointer(other.target, broadcast(self, other))
        fused = self.product or getattr(other, "product", False)
        return self._with(other, "fma", 0.0 if fused else 1.0)

    def _multiply(self, other: Any) -> Ghost:
        return self._with(other, "fma", product=True)

    def _divide(self, other: Any) -> Ghost:
        charge("mufu", self.elements)
        return self._with(other, "fma")

    def _logic(self, other: Any) -> Ghost:
        return self._with(other, "alu", 0.5)

    def _compare(self, other: Any) -> Ghost:
        return self._with(other, "alu", dtype=torch.bool)

    __add__ = __radd__ = __sub__ = __rsub__ = _add
    __mul__ = __rmul__ = _multiply
    __truediv__ = __rtruediv__ = _divide
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __lshift__ = __rshift__ = __floordiv__ = __mod__ = _logic
    __lt__ = __le__ = __gt__ = __ge__ = _compare
    __eq__ = __ne__ = _compare  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Ghost:
        return Ghost(self.shape, self.dtype)  # an operand's sign is free

    def __invert__(self) -> Ghost:
        return self

    def __bool__(self) -> bool:
        """A branch on data is not taken: kernels branch on data only to do rare work (rescaling an accumulator)."""
        return False

    def __getitem__(self, index: Any) -> Ghost:
        shape, axis = [], 0
        for each in index if isinstance(index, tuple) else (index,):
            if each is None:
                shape.append(1)
            elif isinstance(each, slice):
                shape.append(self.shape[axis])
                axis += 1
            elif each is Ellipsis:
                rest = len(self.shape) - sum(one is not None and one is not Ellipsis for one in index)
                shape += self.shape[axis : axis + rest]
                axis += rest
            else:
                axis += 1
        return Ghost(shape + self.shape[axis:], self.dtype, self.product)

    # -- methods of tl.tensor

    def to(self, dtype: Any, bitcast: bool = False, **_: Any) -> Ghost:
        """A conversion: two elements an instruction to 16 bits, one otherwise; a bit cast is free."""
        wanted = torch_dtype(dtype)
        if wanted != self.dtype and not bitcast:
            charge("alu", self.elements, 0.5 if wanted.itemsize == 2 else 1.0)
        return Ghost(self.shape, wanted)

    cast = to

    def float(self) -> Ghost:
        """An operand as it is multiplied: no instruction."""
        return self

    def long(self) -> Ghost:
        """An index; address arithmetic is charged where it is used."""
        return self

    def reshape(self, *shape: Any) -> Ghost:
        """The same elements."""
        sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
        if math.prod(sizes) != self.elements:
            raise SimulationError("shape", f"reshape of {self.shape} to {sizes}")
        return Ghost(sizes, self.dtype, self.product)

    def permute(self, *dims: Any) -> Ghost:
        """The same elements."""
        order = list(dims[0]) if len(dims) == 1 and isinstance(dims[0], list | tuple) else list(dims)
        return Ghost([self.shape[axis] for axis in order], self.dtype, self.product)

    def trans(self, *dims: Any) -> Ghost:
        """The same elements."""
        return self.permute(*(dims or range(len(self.shape))[::-1]))

    def expand_dims(self, axis: int) -> Ghost:
        """The same elements."""
        at = axis % (len(self.shape) + 1)
        return Ghost([*self.shape[:at], 1, *self.shape[at:]], self.dtype, self.product)

    def broadcast_to(self, *shape: Any) -> Ghost:
        """The same elements, some several times."""
        sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
        return Ghost(sizes, self.dtype)

    def split(self) -> tuple[Ghost, Ghost]:
        """Halves along the last dimension, of two."""
        return Ghost(self.shape[:-1], self.dtype), Ghost(self.shape[:-1], self.dtype)



class GhostPointer:
    """A tensor of pointers into one argument."""

    def __init__(self, target: GlobalTensor, shape: Sequence[int]):
        self.target, self.shape = target, list(shape)
        self.dtype = Pointer(target, 0).dtype

    type = property(lambda self: self.dtype)

    def __add__(self, other: Any) -> GhostPointer:
        shape = broadcast(self, other)
        charge("alu", math.prod(shape))
        return GhostPointer(self.target, shape)

    __radd__ = __sub__ = __add__

    def __getitem__(self, index: Any) -> GhostPointer:
        return GhostPointer(self.target, Ghost(self.shape, torch.int64)[index].shape)


class LoadedInt(RuntimeInt):
    """A scalar that was loaded: whoever decides or addresses by it waits until ``ready``, on the clock of its task.

    Arithmetic on it is as late as it is.
    """

    ready: float

    @classmethod
    def make(cls, value: int, ready: float, wide: bool = False) -> LoadedInt:
        """``value``, known from ``ready`` on."""
        made = cls(value)
        made.ready, made.wide = ready, wide
        return made

    def settle(self) -> None:
        """Wait for it."""
        clock = clocks.running
        clock.now = max(clock.now, self.ready)

    def __int__(self) -> int:
        self.settle()
        return int.__int__(self)

    def __index__(self) -> int:
        self.settle()
        return int.__index__(self)

    def __bool__(self) -> bool:
        self.settle()
        return int.__bool__(self)

    def __neg__(self) -> LoadedInt:
        return LoadedInt.make(-int.__int__(self), self.ready, self.wide)

    __hash__ = RuntimeInt.__hash__


def _plain(value: Any) -> Any:
    """The same number, without the time when it is known."""
    if not isinstance(value, LoadedInt):
        return value
    return (RuntimeInt64 if value.wide else RuntimeInt)(int.__int__(value))


def _late(name: str) -> Any:
    base = getattr(RuntimeInt, name)

    def operator(self: LoadedInt, other: Any) -> Any:
        result = base(_plain(self), _plain(other))
        if isinstance(result, int):
            return LoadedInt.make(int.__int__(result), max(self.ready, getattr(other, "ready", 0.0)),
                                  getattr(result, "wide", False))
        return result

    return operator


def _settled(name: str) -> Any:
    base = getattr(int, name)

    def operator(self: LoadedInt, other: Any) -> Any:
        self.settle()
        if isinstance(other, LoadedInt):
            other.settle()
        return base(self, other)

    return operator


for _name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift", "floordiv", "mod"):
    setattr(LoadedInt, f"__{_name}__", _late(f"__{_name}__"))
    setattr(LoadedInt, f"__r{_name}__", _late(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(LoadedInt, f"__{_name}__", _settled(f"__{_name}__"))
