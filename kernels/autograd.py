"""Jagged attention as a differentiable function: dispatch in both directions, and what the backward keeps."""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels import dispatch
from kernels.implementation import Direction
from kernels.jagged_layout import ALIGNMENT_BYTES
from kernels.problem import JaggedProblem

_NOTHING = contextlib.nullcontext()
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """How to run one direction: ``impl`` is ``auto`` or a name; the rest as in `kernels.implementation`."""

    impl: str = "auto"
    schedule: str | None = None
    options: object | None = None


def packed(x: torch.Tensor) -> torch.Tensor:
    """``x`` as kernels take it, contiguous and 16-byte aligned: itself if it already is, else a copy."""
    x = x.contiguous()
    return x if x.data_ptr() % ALIGNMENT_BYTES == 0 else x.clone()


def jagged_attention(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward: Plan = Plan(),
                     backward: Plan = Plan()) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` of a validated problem, differentiable once with respect to q, k and v through ``out``.

    Strided, expanded (stride-0) or misaligned inputs and gradients are copied first. Raises `NotImplementedError`
    if no implementation, or not the one that the plan names, can run it: for the backward, when it is asked for.
    Raises `ValueError` at once for a schedule that a plan's implementation doesn't know, the backward's only if a
    gradient can be asked for. Under `torch.compile` it runs as it is, between two graphs.
    """
    if torch.compiler.is_compiling():  # decorating instead would import all of the compiler along with this module
        return torch.compiler.disable(_attend)(q, k, v, problem, forward, backward)
    return _attend(q, k, v, problem, forward, backward)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: JaggedProblem, forward: Plan,
            backward: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        dispatch.check_schedule(backward.impl, "bwd", backward.schedule)
    return _JaggedAttention.apply(q, k, v, problem, forward, backward)


def run_forward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` of `packed` tensors by the implementation that the plan leads to, outside autograd."""
    choice = _choose(problem, "fwd", q.device, plan)
    with _current(q.device):
        return choice.implementation.forward(problem, q, k, v, schedule=choice.schedule, options=plan.options)


def run_backward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                 lse: torch.Tensor, dout: torch.Tensor,
                 plan: Plan) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)``, as `run_forward`."""
    choice = _choose(problem, "bwd", q.device, plan)
    with _current(q.device):
        return choice.implementation.backward(problem, q, k, v, out, lse, dout, schedule=choice.schedule,
                                              options=plan.options)


class _JaggedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: JaggedProblem, forward: Plan,
                backward: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = packed(q), packed(k), packed(v)
        out, lse = run_forward(problem, q, k, v, forward)
        ctx.problem, ctx.plan = problem, backward
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, _dlse: None) -> tuple[torch.Tensor | None, ...]:
        if dout is None:
            return (None,) * 6
        q, k, v, out, lse = ctx.saved_tensors
        grads = run_backward(ctx.problem, q, k, v, out, lse, packed(dout), ctx.plan)
        wanted = (grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad, strict=False))
        return (*wanted, None, None, None)


def _choose(problem: JaggedProblem, direction: Direction, device: torch.device, plan: Plan) -> dispatch.Choice:
    choice = dispatch.choose(problem, direction, device, plan.impl, plan.schedule)
    if choice.reason:
        _log_once(direction, choice.implementation.name, choice.reason)
    return choice


@functools.lru_cache(maxsize=256)
def _log_once(direction: Direction, name: str, reason: str) -> None:
    logger.info("%s: %s, because %s", direction, name, reason)


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes a CUDA device current, as Triton launches on the current one."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(device)
