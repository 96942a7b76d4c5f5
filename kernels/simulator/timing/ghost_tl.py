"""``triton.language`` for ghosts: shapes and costs. Scalars, and integers with values, go to the simulator's own."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.simulator.buffers import Pending
from kernels.simulator.context import machine
from kernels.simulator.dtypes import torch_dtype, unwrap
from kernels.simulator.global_memory import Descriptor, Pointer
from kernels.simulator.timing import clocks
from kernels.simulator.timing.ghosts import Ghost, GhostPointer, LoadedInt, broadcast, charge
from kernels.simulator.tl_namespace import TL


def _refuse(*values: Any) -> None:
    for value in values:
        if isinstance(value, Pending):
            value.refuse()


def _any(*values: Any) -> bool:
    _refuse(*values)
    return any(isinstance(value, Ghost) for value in values)


def _dtype(*values: Any) -> Any:
    return next(value.dtype for value in values if isinstance(value, Ghost))


def _elementwise(unit: str, *values: Any, each: float = 1.0, dtype: Any = None) -> Ghost:
    shape = broadcast(*values)
    charge(unit, math.prod(shape), each)
    return Ghost(shape, dtype or _dtype(*values))


def _unary(name: str, unit: str) -> Any:
    plain = getattr(TL, name)

    def function(x: Any) -> Any:
        return _elementwise(unit, x) if _any(x) else plain(x)

    return staticmethod(function)


def _reduction(unit: str) -> Any:
    def function(x: Any, axis: Any = None, keep_dims: bool = False, **kwargs: Any) -> Any:
        _refuse(x)
        if not isinstance(x, Ghost):
            return getattr(TL, "max" if unit == "alu" else "sum")(x, axis, keep_dims, **kwargs)
        three_operands = unit == "alu" and machine().arch >= 100  # FMNMX3 takes two elements more, not one
        charge(unit, x.elements, 0.5 if three_operands else 1.0)
        clocks.running.latency += machine().description.shuffle_clocks  # type: ignore[attr-defined]
        shape = list(x.shape)
        if axis is None:
            return Ghost([], x.dtype)
        shape[axis : axis + 1] = [1] if keep_dims else []
        return Ghost(shape, x.dtype)

    return staticmethod(function)


def _pairwise(name: str) -> Any:
    plain = getattr(TL, name)
    pick = max if name == "maximum" else min

    def function(a: Any, b: Any, **kwargs: Any) -> Any:
        if _any(a, b):
            return _elementwise("alu", a, b)
        if isinstance(a, LoadedInt) or isinstance(b, LoadedInt):
            ready = max(getattr(a, "ready", 0.0), getattr(b, "ready", 0.0))
            wide = getattr(a, "wide", False) or getattr(b, "wide", False)
            return LoadedInt.make(pick(int.__int__(a), int.__int__(b)), ready, wide)
        return plain(a, b, **kwargs)

    return staticmethod(function)


class _GhostMath:
    exp, exp2, log, log2 = (_unary(name, "mufu") for name in ("exp", "exp2", "log", "log2"))
    sqrt, rsqrt, sin, cos = (_unary(name, "mufu") for name in ("sqrt", "rsqrt", "sin", "cos"))
    abs, floor, ceil = _unary("abs", "alu"), _unary("floor", "alu"), _unary("ceil", "alu")

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        return a * b + c


class GhostTL(TL):
    """The namespace; its members are those of ``triton.language`` and are documented there."""

    # ruff: noqa: D102
    math = _GhostMath  # type: ignore[assignment]
    exp, exp2, log, log2, sqrt, rsqrt = (_GhostMath.exp, _GhostMath.exp2, _GhostMath.log, _GhostMath.log2,
                                         _GhostMath.sqrt, _GhostMath.rsqrt)
    abs, fma, floor, ceil = _GhostMath.abs, _GhostMath.fma, _GhostMath.floor, _GhostMath.ceil
    max, min, sum = _reduction("alu"), _reduction("alu"), _reduction("fma")
    maximum, minimum = _pairwise("maximum"), _pairwise("minimum")

    @staticmethod
    def arange(start: int, end: int) -> Any:
        return Ghost([end - start], torch.int32)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any) -> Any:
        sizes = [shape] if isinstance(shape, int) else [int(size) for size in shape]
        wanted = torch_dtype(dtype)
        return Ghost(sizes, wanted) if wanted.is_floating_point else TL.full(sizes, int(value), dtype)

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> Any:
        return GhostTL.full(shape, 0, dtype)

    @staticmethod
    def zeros_like(x: Any) -> Any:
        return Ghost(x.shape, x.dtype)

    @staticmethod
    def cast(x: Any, dtype: Any, bitcast: bool = False, **_: Any) -> Any:
        return x.to(dtype, bitcast) if isinstance(x, Ghost) else TL.cast(x, dtype, bitcast)

    @staticmethod
    def reshape(x: Any, *shape: Any, **kwargs: Any) -> Any:
        return x.reshape(*shape) if isinstance(x, Ghost) else TL.reshape(x, *shape, **kwargs)

    view = reshape

    @staticmethod
    def permute(x: Any, *dims: Any) -> Any:
        return x.permute(*dims) if isinstance(x, Ghost) else TL.permute(x, *dims)

    @staticmethod
    def trans(x: Any, *dims: Any) -> Any:
        return x.trans(*dims) if isinstance(x, Ghost) else TL.trans(x, *dims)

    @staticmethod
    def split(x: Any) -> Any:
        return x.split() if isinstance(x, Ghost) else TL.split(x)

    @staticmethod
    def join(a: Any, b: Any) -> Any:
        return Ghost([*broadcast(a, b), 2], _dtype(a, b)) if _any(a, b) else TL.join(a, b)

    @staticmethod
    def expand_dims(x: Any, axis: int) -> Any:
        return x.expand_dims(axis) if isinstance(x, Ghost) else TL.expand_dims(x, axis)

    @staticmethod
    def broadcast_to(x: Any, *shape: Any) -> Any:
        return x.broadcast_to(*shape) if isinstance(x, Ghost) else TL.broadcast_to(x, *shape)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        if not _any(condition, a, b):
            return TL.where(condition, a, b)
        if not isinstance(condition, Ghost):
            return a if condition else b
        found = [value for value in (a, b) if isinstance(value, Ghost)]
        return _elementwise("alu", condition, a, b, dtype=found[0].dtype if found else torch.float32)

    @staticmethod
    def reduce(x: Any, axis: int, combine_fn: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Ghost):
            return TL.reduce(x, axis, combine_fn, **kwargs)
        charge("alu", x.elements)
        return Ghost([*x.shape[:axis], *x.shape[axis + 1 :]], x.dtype)

    @staticmethod
    def map_elementwise(function: Any, *args: Any, pack: int = 1) -> Any:
        return function(*args) if _any(*args) else TL.map_elementwise(function, *args, pack=pack)

    @staticmethod
    def dot(a: Any, b: Any, acc: Any = None, **_: Any) -> Any:
        return Ghost([a.shape[0], b.shape[1]], torch.float32)

    @staticmethod
    def inline_asm_elementwise(asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: bool = True, pack: int = 1,
                               **kwargs: Any) -> Any:
        if not _any(*args):
            machine().current.note("inline PTX")
            if "ld.acquire" in asm:  # a trip to L2, whatever it finds
                engine: Any = machine()
                engine.act(engine.description.load_clocks)
            return TL.inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack, **kwargs)
        types = unwrap(dtype)
        if not isinstance(types, tuple):
            return _elementwise("alu", *args, dtype=torch_dtype(types))
        shape = broadcast(*args)  # a block of instructions: a test, and behind a branch what is rarely done
        charge("alu", math.prod(shape), 2.0)
        return tuple(Ghost(shape, torch_dtype(each)) for each in types)

    # -- global memory

    @staticmethod
    def load(ptr: Any, mask: Any = None, other: Any = None, **kwargs: Any) -> Any:
        if isinstance(ptr, Descriptor | Pointer) and not isinstance(getattr(ptr, "offset", 0), torch.Tensor):
            value = TL.load(ptr, mask, other, **kwargs)
            if not isinstance(value, int):
                return value
            clocks.running.other += 1
            line = int(ptr.offset) * ptr.target.flat.element_size() // 128
            ready = machine().load(ptr.target.name, line)  # type: ignore[attr-defined]
            return LoadedInt.make(int.__int__(value), ready, ptr.target.dtype == torch.int64)
        engine: Any = machine()
        engine.load_tile(ptr.target, math.prod(broadcast(ptr, mask)))
        return Ghost(broadcast(ptr, mask), ptr.target.dtype)

    @staticmethod
    def store(ptr: Any, value: Any, mask: Any = None, **kwargs: Any) -> None:
        _refuse(value)
        if _any(value, mask) or isinstance(ptr, GhostPointer):
            charge("alu", math.prod(broadcast(ptr, value)), 2.0)
        else:
            TL.store(ptr, value, mask, **kwargs)

    @staticmethod
    def atomic_add(ptr: Any, value: Any, mask: Any = None, sem: Any = None, **kwargs: Any) -> Any:
        """As if the CTAs that don't run here had added as often as those that do."""
        engine: Any = machine()
        engine.act(engine.description.load_clocks)
        return TL.atomic_add(ptr, int(value * engine.drawn), mask, sem, **kwargs)
