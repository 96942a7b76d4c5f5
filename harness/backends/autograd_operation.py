"""`AutogradOperation`: operation scope through autograd, the same for every backend."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from harness.backends.base import Operation, Outputs, Scope
from harness.inputs import Inputs


@dataclass(eq=False)
class Results:
    """Packed results of one scope, as far as they were computed; each call lets go of what it replaces."""

    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    grads: tuple[torch.Tensor, ...] | None = None

    def saved(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, lse)`` for a backward. Raises `RuntimeError` before the forward."""
        if self.out is None or self.lse is None:
            raise RuntimeError("backward_kernel: call forward_kernel first")
        return self.out, self.lse

    def outputs(self) -> Outputs:
        """The same, as results to compare."""
        dq, dk, dv = self.grads or (None, None, None)
        out, lse = (None if tensor is None else tensor.detach() for tensor in (self.out, self.lse))
        return Outputs(out, lse, dq, dk, dv)


def gradients(outputs: list[torch.Tensor], leaves: list[torch.Tensor],
              douts: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Gradients of ``leaves``, zero where nothing depends on one; the graph is kept for the next call."""
    alive = [(out, dout) for out, dout in zip(outputs, douts, strict=True) if out.requires_grad]
    if not alive:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    outs, grads = zip(*alive, strict=True)
    return torch.autograd.grad(outs, leaves, grads, retain_graph=True, allow_unused=True, materialize_grads=True)


class AutogradOperation(Operation):
    """Operation scope is `attend` under autograd on the packed inputs; kernel scope is the subclass's.

    Subclasses keep kernel-scope results as they come and turn them into packed ones in `kernel_outputs`.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.problem = inputs.problem
        self._leaves = [tensor.detach().requires_grad_() for tensor in (inputs.q, inputs.k, inputs.v)]
        self._operation = Results()

    @abstractmethod
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Packed ``(out, lse or None)`` from packed inputs and device offsets, as a user computes it in training."""

    @abstractmethod
    def kernel_outputs(self) -> Outputs | None:
        """Packed results of the kernel scope; None if it wasn't run."""

    def forward_operation(self) -> None:
        """`attend`, keeping its graph."""
        self._operation = Results()
        with torch.enable_grad():
            out, lse = self.attend(*self._leaves)
        self._operation.out, self._operation.lse = out, lse

    def backward_operation(self) -> None:
        """Autograd's backward of the last `forward_operation`."""
        out = self._operation.out
        if out is None:
            raise RuntimeError("backward_operation: call forward_operation first")
        self._operation.grads = None
        self._operation.grads = gradients([out], self._leaves, [self.inputs.dout])

    def outputs(self, scope: Scope | None = None) -> Outputs:
        """See `Operation.outputs`."""
        kernel = None if scope == "operation" else self.kernel_outputs()
        if kernel is not None:
            return kernel
        if scope == "kernel":
            raise RuntimeError("outputs: forward_kernel was not run")
        return self._operation.outputs()
