"""What an implementation of jagged attention offers to `kernels.api`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch

from kernels.problem import JaggedProblem

Direction = Literal["fwd", "bwd"]
DIRECTIONS: tuple[Direction, Direction] = ("fwd", "bwd")


class Implementation(Protocol):
    """One family of kernels (``portable``, ``hopper``, ``blackwell``).

    ``schedule`` is one of ``schedules[direction]``, the orders of tiles that the implementation knows there, or None:
    its own choice (`kernels.dispatch` sees to it); ``options`` is the implementation's own frozen options dataclass, or
    None for its selection rule.

    Tensors arrive contiguous and 16-byte aligned, on the current CUDA device where they are on one (`kernels.autograd`
    sees to both; callers that go past it use `kernels.autograd.packed`). Results are contiguous too.
    """

    name: str
    schedules: Mapping[Direction, tuple[str, ...]]

    def declines(self, problem: JaggedProblem, direction: Direction, device: torch.device) -> str | None:
        """Why this implementation can't run the problem on the device, in one line; None if it can."""

    def make_options(self, direction: Direction, values: Mapping[str, object]) -> object:
        """The implementation's options from plain values, as read from YAML.

        Raises `ValueError` that names an unknown switch or a bad value, and what is allowed.
        """

    def describe(self, problem: JaggedProblem, direction: Direction, schedule: str | None = None,
                 options: object | None = None) -> str:
        """Which variant would run, in one short token for the record, such as ``hopper/solo64q/zigzag``."""

    def forward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                schedule: str | None = None, options: object | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, lse)``, newly allocated, shapes as in `JaggedProblem`."""

    def backward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                 lse: torch.Tensor, dout: torch.Tensor, *, schedule: str | None = None,
                 options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(dq, dk, dv)``, newly allocated, in the problem's dtype."""
