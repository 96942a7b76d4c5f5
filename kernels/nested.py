"""Attention of torch's nested tensors (``layout=torch.jagged``): in and out, forward and backward, no rows copied."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from kernels.api import jagged_flash_attention
from kernels.jagged_layout import JaggedLayout

# by a nested tensor's int64 offsets, which torch, too, identifies batches by and takes as unchanging
_LAYOUTS = WeakTensorKeyDictionary()


def nested_flash_attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int | None, int | None] = (None, None), return_lse: bool = False,
        schedule: str | None = None,
        impl: str | tuple[str, str] = "auto") -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`kernels.jagged_flash_attention` of nested tensors; what isn't said here is said there.

    The kernels read the nested tensors' own values, and the output's values are what they wrote. Its offsets are q's,
    so that it and q add up. Layers of a batch share one layout, made from the offsets (``B + 1`` numbers, to int32).

    Args:
        q: Jagged ``[B, lengths, heads, head_dim]``, as `torch.nested.nested_tensor` makes it; not transposed, no
            holes. Or a dense ``[Sq, heads, head_dim]`` that all sequences share.
        k: Jagged ``[B, lengths, heads_kv, head_dim]``.
        v: As ``k``, with its offsets.

    Returns:
        ``out`` with q's offsets; of a dense q a dense ``[B, Sq, heads, head_dim]``. With ``return_lse`` also
        ``lse [heads, total_q]`` in fp32.

    Raises:
        TypeError, ValueError, NotImplementedError: As `jagged_flash_attention`, and for other nested tensors.

    Lengths of a nested tensor that was made without ``max_seqlen`` are read the first time: that waits for the device.
    """
    nested_k, nested_v = _checked("k", k), _checked("v", v)
    nested_q = None if isinstance(q, torch.Tensor) and not q.is_nested else _checked("q", q)
    if nested_v.offsets() is not nested_k.offsets():
        raise ValueError("v: expected k's offsets, got others")
    bounds_k, longest_k = _bounds(nested_k)
    if nested_q is None:
        bounds_q, longest_q = None, None
    elif nested_q.offsets() is nested_k.offsets():
        bounds_q, longest_q = bounds_k, longest_k
    else:
        bounds_q, longest_q = _bounds(nested_q)
    out, lse = jagged_flash_attention(
        q if nested_q is None else nested_q.values(), nested_k.values(), nested_v.values(), cu_seqlens_q=bounds_q,
        cu_seqlens_k=bounds_k, max_seqlen_q=longest_q, max_seqlen_k=longest_k, softmax_scale=softmax_scale,
        causal=causal, window_size=window_size, return_lse=True, schedule=schedule, impl=impl)
    if nested_q is None:
        out = out.view(k.shape[0], *q.shape)
    else:
        out = torch.nested.nested_tensor_from_jagged(out, nested_q.offsets(), max_seqlen=longest_q)
    return (out, lse) if return_lse else out


def _checked(name: str, x: Any) -> Any:
    """``x``, a jagged nested tensor for sure. Torch's class of those is private, so that it goes untyped."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a nested torch.Tensor, got {type(x).__name__}")
    if not x.is_nested or x.layout != torch.jagged:
        raise TypeError(f"{name}: expected a nested tensor with layout=torch.jagged, got "
                        f"{'layout ' + str(x.layout) if x.is_nested else 'a dense one'}")
    nested: Any = x
    if nested.ndim != 4 or nested._ragged_idx != 1:
        raise ValueError(f"{name}: expected shape [B, lengths, heads, head_dim], got {list(x.shape)}: "
                         "transpose it back")
    if nested.lengths() is not None:
        raise ValueError(f"{name}: expected rows without holes, got a nested tensor that was narrowed")
    return nested


def _bounds(x: Any) -> tuple[torch.Tensor | JaggedLayout, int]:
    """int32 offsets, in their batch's layout but for a trace, and an upper bound of the lengths."""
    offsets, longest = x.offsets(), x._maybe_max_seqlen
    if torch.compiler.is_compiling():
        return offsets.to(torch.int32), x.values().shape[0] if longest is None else longest
    if offsets not in _LAYOUTS:
        _LAYOUTS[offsets] = JaggedLayout.from_cu_seqlens(offsets.to(torch.int32, copy=True), total=x.values().shape[0],
                                                         max_seqlen=longest)
    return _LAYOUTS[offsets], _LAYOUTS[offsets].max_seqlen
