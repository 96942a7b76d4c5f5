"""`PackedOperation`: a rival that takes packed tensors with offsets, and Q materialised for broadcast-Q."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.backends.autograd_operation import AutogradOperation, Results
from harness.backends.base import Outputs, Unsupported
from harness.backends.packages import last_line
from harness.inputs import Inputs
from kernels.problem import JaggedProblem


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what a rival raises when it won't take a case into `Unsupported`; running out of memory or a failing
    GPU stay what they are."""
    try:
        yield
    except (Unsupported, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error):
            raise
        raise Unsupported(last_line(error)) from error


def expand_queries(problem: JaggedProblem, q: torch.Tensor) -> torch.Tensor:
    """Packed queries ``[total_q, Hq, D]``: a copy of the dense ``q`` for each sequence of broadcast-Q, else ``q``."""
    if not problem.broadcast_q:
        return q
    return q.expand(problem.batch, *q.shape).reshape(problem.out_shape)


def sum_queries(problem: JaggedProblem, dq: torch.Tensor) -> torch.Tensor:
    """``dq`` of `expand_queries`, summed over the batch in fp32, in the problem's dtype; else ``dq`` itself."""
    if not problem.broadcast_q:
        return dq
    return dq.reshape(problem.batch, *problem.q_shape).sum(0, dtype=torch.float32).to(problem.dtype)


class PackedOperation(AutogradOperation):
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

    def forward_operation(self) -> None:
        """See `AutogradOperation.forward_operation`."""
        with refusals():
            super().forward_operation()

    def backward_operation(self) -> None:
        """See `AutogradOperation.backward_operation`."""
        with refusals():
            super().backward_operation()

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
