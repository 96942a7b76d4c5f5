"""`jagged_flash_attention`: the public entry; checks its arguments and picks the kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from kernels import dispatch
from kernels.autograd import Plan, jagged_attention
from kernels.implementation import DIRECTIONS, Direction
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem


def jagged_flash_attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
        cu_seqlens_q: torch.Tensor | JaggedLayout | None, cu_seqlens_k: torch.Tensor | JaggedLayout,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int | None, int | None] = (None, None), return_lse: bool = False,
        schedule: str | None = None, impl: str | tuple[str, str] = "auto",
        options: Mapping[str, object] | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention within each sequence of a packed batch, differentiable with respect to q, k and v.

    Sequence ``b`` of ``B`` has queries ``q[cu_seqlens_q[b]:cu_seqlens_q[b + 1]]`` and keys and values
    ``k, v[cu_seqlens_k[b]:cu_seqlens_k[b + 1]]``; either may be empty. A query that sees no key gets output 0 and
    LSE -inf. Nothing here waits for the device; an implementation that plans on the host copies the offsets of a
    GPU tensor once, and not at all from a `JaggedLayout` that was built on the host.

    Args:
        q: ``[total_q, num_heads_q, head_dim]``; with ``cu_seqlens_q=None`` a dense ``[Sq, num_heads_q, head_dim]``
            that all sequences share (broadcast-Q; its gradient is summed over the batch).
        k: ``[total_k, num_heads_kv, head_dim]`` of q's dtype, on q's device. ``num_heads_q`` must be a multiple of
            ``num_heads_kv``: query head ``h`` reads KV head ``h // (num_heads_q // num_heads_kv)``.
        v: As ``k``. The shipped kernels take bf16 and fp16. Inputs that are not contiguous are copied.
        cu_seqlens_q: int32 ``[B + 1]`` on q's device, from 0 to ``total_q``; or a `JaggedLayout`, which keeps what
            the kernels derive from it, so that the layers of one batch should pass the same one; or None.
        cu_seqlens_k: int32 ``[B + 1]`` on q's device, from 0 to ``total_k``, or a `JaggedLayout`. Values on a GPU
            are trusted: checking them would wait for the device (`JaggedLayout.validate` does).
        max_seqlen_q: A Python int, at least the longest query sequence. Needed with a tensor; a `JaggedLayout` has
            its own, and the dense q its length.
        max_seqlen_k: The same for keys.
        softmax_scale: Factor of the scores, positive; ``head_dim ** -0.5`` if None.
        causal: Query ``i`` sees keys ``j <= i + len_k - len_q`` only (sequences are aligned at their ends).
        window_size: ``(left, right)``: only keys with ``-left <= j - (i + len_k - len_q) <= right``; None is no
            bound. ``causal`` replaces ``right`` by 0.
        return_lse: Also return the log-sum-exp of each query's scores.
        schedule: Order of the work tiles, a name of `kernels.tile_schedule`; None leaves it to the implementation.
            With ``impl="auto"`` so does one that falls back to kernels without that order; a named implementation
            must know it, in the backward too if a gradient can be asked for.
        impl: ``auto``, a name in `kernels.dispatch.IMPLEMENTATIONS`, or a pair of those, ``(forward, backward)``.
        options: ``{"fwd": ..., "bwd": ...}``, either or both: the switches of the implementation that ``impl`` names
            for that direction, as a mapping or as what its ``make_options`` returned.

    Returns:
        ``out [total_q, num_heads_q, head_dim]`` in q's dtype; with ``return_lse`` also ``lse [num_heads_q, total_q]``
        in fp32 (natural logarithm, not differentiable). With broadcast-Q ``total_q`` is ``B * Sq``, and sequence
        ``b`` begins at row ``b * Sq``.

    Raises:
        TypeError, ValueError: An argument is wrong; the message names it, what was got and what was expected.
        NotImplementedError: No implementation, or not the named one, computes this here; the message says why. It
            comes from ``backward()`` if only the gradient is missing.

    Example:
        >>> lengths = JaggedLayout.from_lengths([3, 0, 5], device="cuda")
        >>> q = torch.randn(lengths.total, 8, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        >>> k, v = (torch.randn(lengths.total, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        >>> out = jagged_flash_attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=lengths, causal=True)
        >>> out.sum().backward()
    """
    problem = make_problem(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                           max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
                           window_size=window_size)
    forward, backward = _plans(impl, schedule, options)
    out, lse = jagged_attention(problem, q, k, v, forward, backward)
    return (out, lse) if return_lse else out


def make_problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                 cu_seqlens_q: torch.Tensor | JaggedLayout | None, cu_seqlens_k: torch.Tensor | JaggedLayout,
                 max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, softmax_scale: float | None = None,
                 causal: bool = False,
                 window_size: tuple[int | None, int | None] = (None, None)) -> JaggedProblem:
    """The checked problem of those arguments, which are `jagged_flash_attention`'s. Raises as it does, never syncs."""
    _check_tensors(q, k, v)
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


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
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


def _plans(impl: object, schedule: object, options: object) -> tuple[Plan, Plan]:
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
