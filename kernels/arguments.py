"""Arguments of `kernels.api.jagged_flash_attention`, checked: the problem to compute, and how to compute it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from kernels import dispatch
from kernels.autograd import Plan
from kernels.implementation import DIRECTIONS, Direction
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem


def make_problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                 cu_seqlens_q: torch.Tensor | JaggedLayout | None, cu_seqlens_k: torch.Tensor | JaggedLayout,
                 max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, softmax_scale: float | None = None,
                 causal: bool = False,
                 window_size: tuple[int | None, int | None] = (None, None)) -> JaggedProblem:
    """The checked problem of those arguments, which are `jagged_flash_attention`'s. Raises as it does, never syncs."""
    check_tensors(q, k, v)
    layout_k = _layout("k", cu_seqlens_k, max_seqlen_k, k)
    if cu_seqlens_q is None:
        layout_q = _dense_layout(q, max_seqlen_q, layout_k)
    elif cu_seqlens_q is cu_seqlens_k and max_seqlen_q == max_seqlen_k and q.shape[0] == k.shape[0]:
        layout_q = layout_k
    else:
        layout_q = _layout("q", cu_seqlens_q, max_seqlen_q, q)
        if layout_q.batch != layout_k.batch:
            raise ValueError(f"cu_seqlens_q: expected as many sequences as cu_seqlens_k, {layout_k.batch}, "
                             f"got {layout_q.batch}")
    return JaggedProblem(layout_q, layout_k, num_heads_q=q.shape[1], num_heads_kv=k.shape[1], head_dim=q.shape[2],
                         dtype=q.dtype, softmax_scale=_scale(softmax_scale, q.shape[2]),
                         mask=_mask(causal, window_size), broadcast_q=cu_seqlens_q is None)


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raises `TypeError` or `ValueError` for shapes, dtypes or devices that don't go together; reads no values."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        if x.ndim != 3 or 0 in x.shape[1:]:
            raise ValueError(f"{name}: expected shape [rows, heads, head_dim] with at least one head and dimension, "
                             f"got {list(x.shape)}")
        if not x.dtype.is_floating_point:
            raise TypeError(f"{name}: expected a floating-point dtype, got {x.dtype}")
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: expected q's dtype, {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name}: expected q's device, {q.device}, got {x.device}")
        if x.shape[2] != q.shape[2]:
            raise ValueError(f"{name}: expected q's head_dim, {q.shape[2]}, got {x.shape[2]}")
    if v.shape != k.shape:
        raise ValueError(f"v: expected k's shape, {list(k.shape)}, got {list(v.shape)}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"q: expected a multiple of k's {k.shape[1]} heads, got {q.shape[1]} heads")


def _layout(suffix: str, cu_seqlens: torch.Tensor | JaggedLayout, max_seqlen: int | None,
            x: torch.Tensor) -> JaggedLayout:
    """The layout of packed ``x``, from the arguments ``cu_seqlens_<suffix>`` and ``max_seqlen_<suffix>``."""
    name, max_name = f"cu_seqlens_{suffix}", f"max_seqlen_{suffix}"
    _check_max_seqlen(max_name, max_seqlen)
    if isinstance(cu_seqlens, JaggedLayout):
        layout = cu_seqlens
        if max_seqlen is not None and max_seqlen < layout.max_seqlen:
            raise ValueError(f"{max_name}: expected None or at least the layout's {layout.max_seqlen}, "
                             f"got {max_seqlen}")
    elif isinstance(cu_seqlens, torch.Tensor):
        if max_seqlen is None:
            raise TypeError(f"{max_name}: expected an int, as {name} is a tensor, got None")
        if cu_seqlens.dtype != torch.int32:
            raise TypeError(f"{name}: expected torch.int32, got {cu_seqlens.dtype}")
        if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
            raise ValueError(f"{name}: expected shape [B + 1], got {list(cu_seqlens.shape)}")
        layout = JaggedLayout.from_cu_seqlens(cu_seqlens, total=x.shape[0], max_seqlen=max_seqlen)
    else:
        accepted = "a torch.Tensor, a JaggedLayout" + (" or None" if suffix == "q" else "")
        raise TypeError(f"{name}: expected {accepted}, got {type(cu_seqlens).__name__}")
    if layout.device != x.device:
        raise ValueError(f"{name}: expected {suffix}'s device, {x.device}, got {layout.device}")
    if layout.total != x.shape[0]:
        raise ValueError(f"{name}: expected a layout of {suffix}'s {len(x)} rows, got one of {layout.total}")
    if layout.on_host:
        layout.cached("validated", lambda: layout.validate(f"_{suffix}"))
    elif layout.total > layout.batch * layout.max_seqlen:
        raise ValueError(f"{max_name}: {layout.batch} sequences of at most {layout.max_seqlen} can't make up "
                         f"{suffix}'s {layout.total} rows")
    return layout


def _dense_layout(q: torch.Tensor, max_seqlen: int | None, layout_k: JaggedLayout) -> JaggedLayout:
    """The layout of broadcast-Q's output: one run of q's rows for each sequence of ``layout_k``, which keeps it."""
    _check_max_seqlen("max_seqlen_q", max_seqlen)
    if max_seqlen is not None and max_seqlen != len(q):
        raise ValueError(f"max_seqlen_q: expected None or the dense q's {len(q)} rows, got {max_seqlen}")
    return layout_k.cached(("dense_q", len(q)),
                           lambda: JaggedLayout.uniform(layout_k.batch, len(q), layout_k.device))


def _check_max_seqlen(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a Python int (a tensor would have to be copied from the device), "
                        f"got {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name}: expected at least 0, got {value}")


def _scale(softmax_scale: object, head_dim: int) -> float:
    if softmax_scale is None:
        return head_dim**-0.5
    if not isinstance(softmax_scale, (int, float)) or isinstance(softmax_scale, bool):
        raise TypeError(f"softmax_scale: expected a Python number or None, got {type(softmax_scale).__name__}")
    if not (math.isfinite(softmax_scale) and softmax_scale > 0):
        raise ValueError(f"softmax_scale: expected a finite number above 0, got {softmax_scale}")
    return float(softmax_scale)


def _mask(causal: object, window_size: object) -> Mask:
    if not isinstance(causal, bool):
        raise TypeError(f"causal: expected a bool, got {type(causal).__name__}")
    if (not isinstance(window_size, (tuple, list)) or len(window_size) != 2
            or any(bound is not None and (not isinstance(bound, int) or isinstance(bound, bool))
                   for bound in window_size)):
        raise TypeError(f"window_size: expected (left, right), each a Python int or None, got {window_size!r}")
    return Mask.make(causal, (window_size[0], window_size[1]))


def make_plans(impl: object, schedule: object, options: object) -> tuple[Plan, Plan]:
    """The plans ``(forward, backward)`` of those arguments of `jagged_flash_attention`. Raises as it does."""
    names = (impl, impl) if isinstance(impl, str) else impl
    if not isinstance(names, tuple) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(f"impl: expected a name or a pair of names (forward, backward), got {impl!r}")
    for name in names:
        if name != "auto" and name not in dispatch.IMPLEMENTATIONS:
            raise ValueError(f"impl: expected 'auto' or one of {sorted(dispatch.IMPLEMENTATIONS)}, got {name!r}")
    if schedule is not None and not isinstance(schedule, str):
        raise TypeError(f"schedule: expected a name or None, got {type(schedule).__name__}")
    if options is None:
        options = {}
    if not isinstance(options, Mapping) or not set(options) <= set(DIRECTIONS):
        raise ValueError(f"options: expected a mapping with keys among {list(DIRECTIONS)}, got {options!r}")
    forward, backward = (Plan(name, schedule, _options(name, direction, options.get(direction)))
                         for name, direction in zip(names, DIRECTIONS, strict=True))
    return forward, backward


def _options(name: str, direction: Direction, options: object) -> object | None:
    if options is None:
        return None
    if name == "auto":
        raise ValueError(f"options: {direction!r} switches belong to an implementation; name it with impl")
    if not isinstance(options, Mapping):
        return options
    try:
        return dispatch.load(name).make_options(direction, options)
    except ImportError as error:
        raise NotImplementedError(f"{name}: can't be imported ({error})") from error
