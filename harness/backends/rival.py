"""What all rivals need: their refusals as `Unsupported`, and a Q that all sequences share given to each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.backends.autograd_operation import AutogradOperation
from harness.backends.base import Unsupported
from harness.backends.packages import last_line
from kernels.problem import JaggedProblem

# What errors of memory or of a failing GPU say, whoever raises them.
FATAL = ("out of memory", "cuda error", "cudaerror", "illegal memory access", "launch failure", "misaligned address")


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what a rival raises when it won't take a case into `Unsupported`; running out of memory or a failing
    GPU stay what they are."""
    try:
        yield
    except (Unsupported, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if any(text in str(error).lower() for text in FATAL):
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


class RivalOperation(AutogradOperation):
    """Operation scope through autograd, where a refusal is one."""

    def forward_operation(self) -> None:
        """See `AutogradOperation.forward_operation`."""
        with refusals():
            super().forward_operation()

    def backward_operation(self) -> None:
        """See `AutogradOperation.backward_operation`."""
        with refusals():
            super().backward_operation()
