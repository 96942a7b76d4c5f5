"""The oracle in the guise of a rival: packed queries always, a shared Q expanded."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.problem import JaggedProblem
from kernels.reference import attention_reference, attention_reference_backward


class PackedReference:
    """Forward and backward of packed tensors, in the problem's dtype."""

    def __init__(self, problem: JaggedProblem) -> None:
        self.problem = replace(problem, broadcast_q=False)

    def forward(self, q, k, v):
        out, lse = attention_reference(self.problem, q, k, v)
        return out.to(q.dtype), lse.float()

    def backward(self, q, k, v, dout):
        return tuple(grad.to(q.dtype) for grad in attention_reference_backward(self.problem, q, k, v, dout))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, reference):
        ctx.save_for_backward(q, k, v)
        ctx.reference = reference
        return reference.forward(q, k, v)[0]

    @staticmethod
    def backward(ctx, dout):
        return *ctx.reference.backward(*ctx.saved_tensors, dout), None


def attend(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Differentiable output of packed tensors."""
    return _Attend.apply(q, k, v, PackedReference(problem))
