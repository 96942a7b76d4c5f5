"""The simulated ``triton.language``. Register tensors are plain torch CPU tensors, scalars `RuntimeInt` or float."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as real_tl

from kernels.simulator.buffers import Pending
from kernels.simulator.clocks import Clocked
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import RuntimeInt, RuntimeInt64, as_int, constexpr_only, torch_dtype, unwrap
from kernels.simulator.errors import SimulationError
from kernels.simulator.global_memory import Box, Descriptor, Pointer, Points
from kernels.simulator.inline_ptx import run_inline_ptx


def _refuse_pending(*values: Any) -> None:
    for value in values:
        if isinstance(value, Pending):
            value.refuse()


def _scalar_if_0d(tensor: torch.Tensor) -> Any:
    return _scalar(tensor) if tensor.dim() == 0 else tensor


def _scalar(tensor: torch.Tensor) -> Any:
    """A runtime scalar from a 0-dimensional tensor."""
    value = tensor.item()
    return RuntimeInt(value) if type(value) is int else value


def _unary(name: str) -> Any:
    on_tensor, on_scalar = getattr(torch, name), getattr(math, name, None) or (lambda x: 1 / math.sqrt(x))
    if name == "exp2":
        on_scalar = lambda x: 2.0**x  # noqa: E731

    def function(x: Any) -> Any:
        _refuse_pending(x)
        return on_tensor(x) if isinstance(x, torch.Tensor) else on_scalar(x)

    return staticmethod(function)


def pairwise(on_tensors: Any, on_scalars: Any, a: Any, b: Any) -> Any:
    """A binary function of tensors and scalars in any mix; a scalar takes the other's dtype."""
    _refuse_pending(a, b)
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        return on_scalars(a, b)
    if not isinstance(a, torch.Tensor):
        a = torch.tensor(a, dtype=b.dtype)
    if not isinstance(b, torch.Tensor):
        b = torch.tensor(b, dtype=a.dtype)
    return on_tensors(a, b)


def cast(x: Any, dtype: Any, bitcast: bool = False, **_: Any) -> Any:
    """``tl.cast`` and ``.to``."""
    _refuse_pending(x)
    to = torch_dtype(dtype)
    if isinstance(x, torch.Tensor):
        return x.view(to) if bitcast else x.to(to)
    if isinstance(x, int) and to == torch.int64:
        return RuntimeInt64(x)
    return float(x) if to.is_floating_point else RuntimeInt(x)


def _nan_max(x: torch.Tensor, axis: int | None, keep: bool, sign: int) -> torch.Tensor:
    """Maximum (minimum for sign -1) that ignores NaN unless all are, as the hardware's does."""
    if x.dtype.is_floating_point:
        x = torch.where(x.isnan(), torch.full((), -sign * math.inf, dtype=x.dtype), x)
    function = torch.amax if sign > 0 else torch.amin
    return function(x) if axis is None else function(x, axis, keepdim=keep)


def _shape(dims: tuple[Any, ...]) -> tuple[int, ...]:
    if len(dims) == 1 and isinstance(dims[0], list | tuple | torch.Size):
        dims = tuple(dims[0])
    return tuple(dims)


def _holds(condition: Any) -> bool:
    return bool(condition.all() if isinstance(condition, torch.Tensor) else condition)


class _Math:
    exp, exp2, log, log2 = _unary("exp"), _unary("exp2"), _unary("log"), _unary("log2")
    sqrt, rsqrt, sin, cos, tanh = _unary("sqrt"), _unary("rsqrt"), _unary("sin"), _unary("cos"), _unary("tanh")
    erf, floor, ceil = _unary("erf"), _unary("floor"), _unary("ceil")
    abs = staticmethod(abs)

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        return a * b + c


class PropagateNan:
    """What `minimum` and `maximum` make of NaN: drop it, or hand it on."""

    NONE, ALL = "none", "all"


class _Missing(type):
    def __getattr__(cls, name: str) -> Any:
        raise SimulationError("unsupported", f"tl.{name} is not simulated")


class TL(metaclass=_Missing):
    """The namespace; its members are those of ``triton.language`` and are documented there."""

    # ruff: noqa: D102
    math = _Math
    PropagateNan = PropagateNan
    exp, exp2, log, log2, sqrt, rsqrt = _Math.exp, _Math.exp2, _Math.log, _Math.log2, _Math.sqrt, _Math.rsqrt
    abs, fma, sin, cos, erf, floor, ceil = (_Math.abs, _Math.fma, _Math.sin, _Math.cos, _Math.erf, _Math.floor,
                                            _Math.ceil)
    cast = staticmethod(cast)

    @staticmethod
    def constexpr(x: Any = None) -> Any:
        return unwrap(x)

    @staticmethod
    def program_id(axis: int) -> RuntimeInt:
        return RuntimeInt(this_task().cta.pid[axis])

    @staticmethod
    def num_programs(axis: int) -> RuntimeInt:
        return RuntimeInt(machine().grid[axis])

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return (a + (b - 1)) // b

    @staticmethod
    def multiple_of(x: Any, *_: Any) -> Any:
        return x

    max_contiguous = max_constancy = multiple_of

    @staticmethod
    def device_print(*_: Any, **__: Any) -> None:
        """Nothing to do."""

    static_print = debug_barrier = device_print

    @staticmethod
    def assume(condition: Any) -> None:
        """A promise to the compiler, which is kept here or a finding."""
        if not _holds(condition):
            raise SimulationError("assume", "the condition is false")

    @staticmethod
    def device_assert(condition: Any, msg: str = "", **_: Any) -> None:
        if not _holds(condition):
            raise SimulationError("static_assert", f"device_assert: {msg}")

    @staticmethod
    def static_assert(condition: Any, msg: str = "") -> None:
        if not constexpr_only(condition, "static_assert"):
            raise SimulationError("static_assert", str(msg))

    @staticmethod
    def range(*bounds: Any, **_: Any) -> Any:
        return map(RuntimeInt, range(*[as_int(each) for each in bounds]))

    @staticmethod
    def static_range(*bounds: Any, **_: Any) -> Any:
        return range(*[constexpr_only(each, "a static_range bound") for each in bounds])

    # -- creation and shape

    @staticmethod
    def arange(start: int, end: int) -> torch.Tensor:
        return torch.arange(constexpr_only(start, "arange"), constexpr_only(end, "arange"), dtype=torch.int32)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any) -> torch.Tensor:
        shape = [shape] if isinstance(shape, int) else shape
        return torch.full(tuple(constexpr_only(size, "a shape") for size in shape), value, dtype=torch_dtype(dtype))

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> torch.Tensor:
        return TL.full(shape, 0, dtype)

    @staticmethod
    def zeros_like(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def reshape(x: Any, *shape: Any, can_reorder: bool = False) -> Any:
        return x.reshape(_shape(shape)) if isinstance(x, torch.Tensor) else x

    view = reshape

    @staticmethod
    def permute(x: torch.Tensor, *dims: Any) -> torch.Tensor:
        return x.permute(*_shape(dims))

    @staticmethod
    def trans(x: torch.Tensor, *dims: Any) -> torch.Tensor:
        return TL.permute(x, *dims) if dims else x.T

    @staticmethod
    def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[..., 0], x[..., 1]

    @staticmethod
    def join(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack(torch.broadcast_tensors(a, b), -1)

    @staticmethod
    def expand_dims(x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.unsqueeze(axis)

    @staticmethod
    def broadcast_to(x: Any, *shape: Any) -> torch.Tensor:
        return torch.as_tensor(x).expand(_shape(shape))

    # -- arithmetic

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        _refuse_pending(condition, a, b)
        if not isinstance(condition, torch.Tensor):
            return a if condition else b
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            a = torch.tensor(a, dtype=torch.float32 if isinstance(a, float) or isinstance(b, float) else torch.int32)
        return torch.where(condition, a, b)

    @staticmethod
    def maximum(a: Any, b: Any, propagate_nan: str = PropagateNan.NONE, **_: Any) -> Any:
        return pairwise(torch.maximum if propagate_nan == PropagateNan.ALL else torch.fmax, max, a, b)

    @staticmethod
    def minimum(a: Any, b: Any, propagate_nan: str = PropagateNan.NONE, **_: Any) -> Any:
        return pairwise(torch.minimum if propagate_nan == PropagateNan.ALL else torch.fmin, min, a, b)

    @staticmethod
    def max(x: torch.Tensor, axis: int | None = None, keep_dims: bool = False, **_: Any) -> Any:
        _refuse_pending(x)
        return _scalar_if_0d(_nan_max(x, axis, keep_dims, 1))

    @staticmethod
    def min(x: torch.Tensor, axis: int | None = None, keep_dims: bool = False, **_: Any) -> Any:
        _refuse_pending(x)
        return _scalar_if_0d(_nan_max(x, axis, keep_dims, -1))

    @staticmethod
    def sum(x: torch.Tensor, axis: int | None = None, keep_dims: bool = False, **_: Any) -> Any:
        _refuse_pending(x)
        dtype = None if x.dtype.is_floating_point else torch.int32
        return _scalar_if_0d(torch.sum(x, axis, keepdim=keep_dims, dtype=dtype) if axis is not None
                             else torch.sum(x, dtype=dtype))

    @staticmethod
    def reduce(x: torch.Tensor, axis: int, combine_fn: Any, **_: Any) -> torch.Tensor:
        parts = list(torch.unbind(x, axis))
        while len(parts) > 1:  # a tree, as the compiler's
            parts = [combine_fn(parts[i], parts[i + 1]) if i + 1 < len(parts) else parts[i]
                     for i in range(0, len(parts), 2)]
        return parts[0]

    @staticmethod
    def map_elementwise(function: Any, *args: Any, pack: int = 1) -> Any:
        return function(*torch.broadcast_tensors(*[torch.as_tensor(arg) for arg in args]))

    @staticmethod
    def dot(a: torch.Tensor, b: torch.Tensor, acc: Any = None, **_: Any) -> torch.Tensor:
        product = a.float() @ b.float()
        return product if acc is None else acc + product

    @staticmethod
    def inline_asm_elementwise(asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: bool = True, pack: int = 1,
                               **_: Any) -> Any:
        _refuse_pending(*args)
        return run_inline_ptx(unwrap(asm), list(args))

    # -- global memory

    @staticmethod
    def load(ptr: Any, mask: Any = None, other: Any = None, **_: Any) -> Any:
        if isinstance(ptr, Descriptor):
            raise SimulationError("unsupported", "tl.load of a descriptor: use desc.load")
        task = this_task().note("load")
        offset = ptr.offset
        if not isinstance(offset, torch.Tensor):
            if mask is not None and not mask:
                return other or 0
            value = ptr.target.read(Box((1,), (1,), int(offset)), task).item()
            if not isinstance(value, int):
                return value
            return (RuntimeInt64 if ptr.target.dtype == torch.int64 else RuntimeInt)(value)
        if mask is None:
            mask = torch.ones((), dtype=torch.bool)
        offset, mask = torch.broadcast_tensors(offset, torch.as_tensor(mask))
        out = torch.full(offset.shape, other or 0, dtype=ptr.target.dtype)
        if mask.any():
            out[mask] = ptr.target.read(Points(offset[mask].long()), task)
        return out

    @staticmethod
    def store(ptr: Pointer, value: Any, mask: Any = None, **_: Any) -> None:
        _refuse_pending(value)
        found = _selected(ptr, value, mask)
        if found:
            points, values = found
            ptr.target.note_write(points, this_task().note("store"))
            points.fill(ptr.target.flat, values)

    @staticmethod
    def atomic_add(ptr: Pointer, value: Any, mask: Any = None, sem: Any = None, **_: Any) -> Any:
        return _atomic(ptr, value, mask, sem, lambda flat, points, values: flat.index_add_(0, points.index, values))

    @staticmethod
    def atomic_max(ptr: Pointer, value: Any, mask: Any = None, sem: Any = None, **_: Any) -> Any:
        return _atomic(ptr, value, mask, sem,
                       lambda flat, points, values: flat.index_reduce_(0, points.index, values, "amax"))

    @staticmethod
    def atomic_xchg(ptr: Pointer, value: Any, mask: Any = None, sem: Any = None, **_: Any) -> Any:
        return _atomic(ptr, value, mask, sem, lambda flat, points, values: points.fill(flat, values))

    @staticmethod
    def make_tensor_descriptor(base: Pointer, shape: Any, strides: Any, block_shape: Any,
                               padding_option: str = "zero") -> Descriptor:
        return Descriptor(base.target, base.offset, shape, strides, block_shape, padding_option)


def _selected(ptr: Pointer, value: Any, mask: Any) -> tuple[Points, torch.Tensor] | None:
    """(elements, values) of a store or an atomic, or None if the mask leaves none."""
    offset = torch.as_tensor(ptr.offset).long()
    value = torch.as_tensor(value).to(ptr.target.dtype).expand(offset.shape)
    mask = torch.as_tensor(True if mask is None else mask).expand(offset.shape)
    if not mask.any():
        return None
    return Points(offset[mask]), value[mask].reshape(-1)


def _atomic(ptr: Pointer, value: Any, mask: Any, sem: Any, apply: Any) -> Any:
    """An atomic; one on a single address also synchronises (acquire and release unless ``relaxed``)."""
    task = this_task().note("atomic")
    machine().pause()
    single = not isinstance(ptr.offset, torch.Tensor)
    found = _selected(ptr, value, mask)
    if not found:
        return 0 if single else torch.zeros(ptr.offset.shape, dtype=ptr.target.dtype)
    points, values = found
    ptr.target.note_write(points, task, adds=True)
    old = ptr.target.flat[points.index].clone()
    apply(ptr.target.flat, points, values)
    if single:
        order = str(unwrap(sem) or "acq_rel")
        location = ptr.target.atomics.setdefault(int(ptr.offset), Clocked())
        if order in ("acquire", "acq_rel"):
            task.acquire(location)
        if order in ("release", "acq_rel"):
            location.acquire(task)
            task.advance()
        return _scalar(old[0])
    if mask is None:
        return old.reshape(ptr.offset.shape)
    out = torch.zeros(ptr.offset.shape, dtype=ptr.target.dtype)
    out[torch.as_tensor(mask).expand(ptr.offset.shape)] = old
    return out


for _name in ("float32", "float16", "bfloat16", "float64", "float8e5", "float8e4nv", "int1", "int8", "int16", "int32",
              "int64", "uint8", "uint16", "uint32", "uint64", "void", "pointer_type", "block_type", "dtype", "tensor",
              "tuple"):
    setattr(TL, _name, getattr(real_tl, _name))
