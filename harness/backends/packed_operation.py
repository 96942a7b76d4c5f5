"""`PackedOperation`: a rival that takes packed tensors with offsets, and Q materialised for broadcast-Q."""

from __future__ import annotations

from abc import abstractmethod

import torch

from harness.backends.autograd_operation import Results
from harness.backends.base import Outputs
from harness.backends.rival import RivalOperation, expand_queries, refusals, sum_queries
from harness.inputs import Inputs


class PackedOperation(RivalOperation):
    """Kernel scope: the rival's forward and backward without autograd, on queries that were expanded before."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self._q = expand_queries(self.problem, inputs.q)
        self._kernel = Results()

    @abstractmethod
    def run_forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, lse)`` of packed tensors, no autograd."""

    @abstractmethod
    def run_backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                     dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``(dq, dk, dv)`` of packed tensors, no autograd; ``out`` and ``lse`` are `run_forward`'s."""

    def forward_kernel(self) -> None:
        """`run_forward`."""
        self._kernel = Results()
        with refusals(), torch.no_grad():
            self._kernel.out, self._kernel.lse = self.run_forward(self._q, self.inputs.k, self.inputs.v)

    def backward_kernel(self) -> None:
        """`run_backward`."""
        out, lse = self._kernel.saved()
        self._kernel.grads = None
        with refusals(), torch.no_grad():
            self._kernel.grads = self.run_backward(self._q, self.inputs.k, self.inputs.v, out, lse, self.inputs.dout)

    def packed_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """The rival's ``lse`` as fp32 ``[Hq, total_q]``."""
        return lse

    def kernel_outputs(self) -> Outputs | None:
        """Packed results; a shared Q's gradients are summed."""
        done = self._kernel
        if done.out is None or done.lse is None:
            return None
        lse = self.packed_lse(done.lse)
        if done.grads is None:
            return Outputs(done.out, lse)
        dq, dk, dv = done.grads
        return Outputs(done.out, lse, sum_queries(self.problem, dq), dk, dv)
