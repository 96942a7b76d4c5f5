"""Shared and tensor memory as the compiler counts them: it adds scratch for reductions and captured values.

Compiling needs no GPU, but a real `JITFunction`: under ``TRITON_INTERPRET=1`` there is none.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.simulator.dtypes import TRITON_OF, unwrap

_COMPILER_OPTIONS = ("num_warps", "num_stages", "maxnreg", "ctas_per_cga")


class Usage(NamedTuple):
    """Memory of one CTA."""

    shared_bytes: int
    tmem_columns: int


_USAGES: dict[Any, Usage] = {}


def compiled_usage(jit: Any, bound: Mapping[str, Any], options: Mapping[str, Any], arch: int) -> Usage:
    """What a launch with these arguments and options would need. Kept per signature; the first time takes 1-3 s.

    Raises `RuntimeError` if the function was made for Triton's interpreter.
    """
    if not isinstance(jit, JITFunction):
        raise RuntimeError(f"{jit.fn.__name__}: only compiled kernels have compiler metadata; unset TRITON_INTERPRET")
    parameters = inspect.signature(jit.fn).parameters
    values = {name: unwrap(bound.get(name, parameter.default)) for name, parameter in parameters.items()}
    types = {name: "constexpr" if "constexpr" in str(parameter.annotation) else _type(values[name])
             for name, parameter in parameters.items()}
    constants = {(jit.arg_names.index(name),): values[name] for name, kind in types.items() if kind == "constexpr"}
    kept = {name: options[name] for name in _COMPILER_OPTIONS if options.get(name) is not None}
    key = (jit, arch, tuple(types.items()), repr(constants), repr(kept))
    if key not in _USAGES:
        source = ASTSource(jit, types, constants, {})
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=kept)
        _USAGES[key] = Usage(compiled.metadata.shared, getattr(compiled.metadata, "tmem_size", 0) or 0)
    return _USAGES[key]


def _element(dtype: torch.dtype) -> str:
    """As in a signature: ``bf16``, ``i32``, ``u8``."""
    return str(TRITON_OF[dtype]).replace("int", "i").replace("ui", "u")


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + _element(value.dtype)
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{_element(value.base.dtype)}{list(value.block_shape)}>"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"no Triton type for a {type(value).__name__}")
