"""Triton dtypes and torch dtypes, and the runtime integers of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl

from kernels.simulator.errors import SimulationError

_TORCH_OF = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64,
    "int64": torch.int64, "int32": torch.int32, "uint32": torch.int32, "int16": torch.int16, "int8": torch.int8,
    "uint8": torch.uint8, "int1": torch.bool, "fp8e5": torch.float8_e5m2, "fp8e4nv": torch.float8_e4m3fn,
}
_NAME_OF = {dtype: name for name, dtype in _TORCH_OF.items() if name != "uint32"}
TRITON_OF = {
    torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float64: tl.float64,
    torch.int64: tl.int64, torch.int32: tl.int32, torch.int16: tl.int16, torch.int8: tl.int8, torch.uint8: tl.uint8,
    torch.bool: tl.int1, torch.float8_e5m2: tl.float8e5, torch.float8_e4m3fn: tl.float8e4nv,
}
_ITEM = {name: torch.empty(0, dtype=dtype).element_size() for name, dtype in _TORCH_OF.items()}


def unwrap(value: Any) -> Any:
    """The plain value of a `tl.constexpr`, anything else as it is."""
    return value.value if isinstance(value, tl.constexpr) else value


def dtype_name(dtype: Any) -> str:
    """Triton's short name (``bf16``) of a Triton or torch dtype."""
    return dtype.name if hasattr(dtype, "name") else _NAME_OF[dtype]


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of a Triton or torch dtype, or of a constexpr of one."""
    dtype = unwrap(dtype)
    return dtype if isinstance(dtype, torch.dtype) else _TORCH_OF[dtype_name(dtype)]


def item_size(dtype: Any) -> int:
    """Bytes of one element."""
    return _ITEM[dtype_name(unwrap(dtype))]


def as_int(value: Any) -> Any:
    """A plain int from a runtime integer or a one-element tensor."""
    return int(value) if isinstance(value, torch.Tensor | RuntimeInt) else value


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a floating tensor with NaN (in place), so that whatever reads it too early shows."""
    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        tensor.fill_(float("nan"))
    return tensor


class RuntimeInt(int):
    """An integer known only at run time: int32 unless widened, C division, no silent overflow."""

    wide = False


class RuntimeInt64(RuntimeInt):
    """The same with 64 bits."""

    wide = True


def _c_div(a: int, b: int) -> int:
    quotient = abs(int(a)) // abs(int(b))
    return quotient if (a >= 0) == (b >= 0) else -quotient


def _define(name: str, function: Callable[[int, int], int] | None = None) -> None:
    base = function or getattr(int, name)

    def operator(self: RuntimeInt, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        result = base(self, other)
        if result is NotImplemented:
            return result
        wide = self.wide or getattr(other, "wide", False)
        if not wide and not -(2**31) <= result < 2**32:
            raise SimulationError("int32 overflow", f"{name}({int(self)}, {int(other)}) = {int(result)}")
        return RuntimeInt64(result) if wide else RuntimeInt(result)

    setattr(RuntimeInt, name, operator)


for _name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift"):
    _define(f"__{_name}__")
    _define(f"__r{_name}__")
_define("__floordiv__", _c_div)
_define("__rfloordiv__", lambda a, b: _c_div(b, a))
_define("__mod__", lambda a, b: int(a) - int(b) * _c_div(a, b))
_define("__rmod__", lambda a, b: int(b) - int(a) * _c_div(b, a))
RuntimeInt.__neg__ = lambda self: type(self)(-int(self))  # type: ignore[method-assign]
RuntimeInt.__invert__ = lambda self: type(self)(~int(self))  # type: ignore[method-assign]


def constexpr_only(value: Any, what: str) -> Any:
    """``value``, unless it is a runtime integer: then `SimulationError` (``constexpr``)."""
    if isinstance(value, RuntimeInt):
        raise SimulationError("constexpr", f"{what} must be a constexpr, but it is a runtime value")
    return value
