"""The kernels as PyTorch operators: what `torch.compile` and `torch.export` see of `jagged_flash_attention`.

`torch.ops.jagged_attention.forward` and ``.backward`` take plain tensors, numbers and names; their bodies make the
problem and the plan of those, as an eager call does, and run it by `kernels.autograd`. A trace knows of them only the
shapes of the results, so that no length is looked at while tracing, and new lengths need no new trace.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import dispatch
from kernels.arguments import check_tensors, make_plans, make_problem
from kernels.autograd import packed, run_backward, run_forward
from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem

_PROBLEM = ("Tensor? cu_seqlens_q, Tensor cu_seqlens_k, SymInt? max_seqlen_q, SymInt max_seqlen_k, "
            "float? softmax_scale, bool causal, SymInt? window_left, SymInt? window_right")


@torch.library.custom_op(
    "jagged_attention::forward", mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_PROBLEM}, str impl, str impl_backward, str? schedule) "
           "-> (Tensor, Tensor)")
def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
            cu_seqlens_k: torch.Tensor, max_seqlen_q: int | None, max_seqlen_k: int, softmax_scale: float | None,
            causal: bool, window_left: int | None, window_right: int | None, impl: str, impl_backward: str,
            schedule: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` of `kernels.api.jagged_flash_attention`, whose arguments these are; differentiable like it.

    Offsets are tensors (None: a dense q), ``window_left`` and ``window_right`` its ``window_size``. Raises as it does
    when it runs; a schedule that ``impl_backward`` doesn't know, where a gradient can be asked for.
    """
    problem = _problem(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal,
                       window_left, window_right)
    plan, _ = make_plans((impl, impl_backward), schedule, None)
    return run_forward(problem, packed(q), packed(k), packed(v), plan)


@torch.library.custom_op(
    "jagged_attention::backward", mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, {_PROBLEM}, str impl, str? schedule) "
           "-> (Tensor, Tensor, Tensor)")
def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
             dout: torch.Tensor, cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor,
             max_seqlen_q: int | None, max_seqlen_k: int, softmax_scale: float | None, causal: bool,
             window_left: int | None, window_right: int | None, impl: str,
             schedule: str | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` of `forward`'s ``(out, lse)`` and the gradient ``dout`` of ``out``; not differentiable."""
    problem = _problem(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal,
                       window_left, window_right)
    plan, _ = make_plans((impl, impl), schedule, None)
    return run_backward(problem, packed(q), packed(k), packed(v), packed(out), packed(lse), packed(dout), plan)


def traced_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                     cu_seqlens_q: torch.Tensor | JaggedLayout | None, cu_seqlens_k: torch.Tensor | JaggedLayout,
                     max_seqlen_q: int | None, max_seqlen_k: int | None, softmax_scale: float | None, causal: bool,
                     window_size: tuple[int | None, int | None], impl: str | tuple[str, str],
                     schedule: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """`forward` from `jagged_flash_attention`'s arguments; nothing but what a trace follows."""
    offsets_q, longest_q = _bounds(cu_seqlens_q, max_seqlen_q)
    offsets_k, longest_k = _bounds(cu_seqlens_k, max_seqlen_k)
    if not isinstance(offsets_k, torch.Tensor):
        raise TypeError(f"cu_seqlens_k: expected a torch.Tensor or a JaggedLayout, got {type(offsets_k).__name__}")
    if longest_k is None:
        raise TypeError("max_seqlen_k: expected an int, as cu_seqlens_k is a tensor, got None")
    left, right = window_size
    ways = (impl, impl) if isinstance(impl, str) else impl
    # contiguous here, so that what the backward keeps is what it needs and no direction copies again
    return forward(
        q.contiguous(), k.contiguous(), v.contiguous(), offsets_q, offsets_k, longest_q, longest_k, softmax_scale,
        causal, left, right, ways[0], ways[1], schedule)


def _bounds(cu_seqlens: torch.Tensor | JaggedLayout | None,
            max_seqlen: int | None) -> tuple[torch.Tensor | None, int | None]:
    if isinstance(cu_seqlens, JaggedLayout):
        return cu_seqlens.cu_seqlens, cu_seqlens.max_seqlen if max_seqlen is None else max_seqlen
    return cu_seqlens, max_seqlen


def _problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
             cu_seqlens_k: torch.Tensor, max_seqlen_q: int | None, max_seqlen_k: int, softmax_scale: float | None,
             causal: bool, window_left: int | None, window_right: int | None) -> JaggedProblem:
    """The problem, of the layouts that own the offsets where there are such: their plans are shared by all layers."""
    layout_q = None if cu_seqlens_q is None else JaggedLayout.owner_of(cu_seqlens_q)
    return make_problem(q, k, v, cu_seqlens_q=layout_q or cu_seqlens_q,
                        cu_seqlens_k=JaggedLayout.owner_of(cu_seqlens_k) or cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                        max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
                        window_size=(window_left, window_right))


@forward.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
      cu_seqlens_k: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    check_tensors(q, k, v)
    rows = q.shape[0] if cu_seqlens_q is not None else q.shape[0] * (cu_seqlens_k.shape[0] - 1)
    return q.new_empty(rows, *q.shape[1:]), q.new_empty(q.shape[1], rows, dtype=torch.float32)


@backward.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, cu_seqlens_q, cu_seqlens_k, *bounds, _impl, impl_backward, schedule = inputs
    dispatch.check_schedule(impl_backward, "bwd", schedule)
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.rest = (*bounds, impl_backward, schedule)


def _gradients(ctx: Any, dout: torch.Tensor | None, _dlse: None) -> tuple[torch.Tensor | None, ...]:
    if dout is None:
        return (None,) * 14
    q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k = ctx.saved_tensors
    grads = backward(q, k, v, out, lse, dout, cu_seqlens_q, cu_seqlens_k, *ctx.rest)
    wanted = (grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad, strict=False))
    return (*wanted, *(None,) * 11)


forward.register_autograd(_gradients, setup_context=_keep)
