"""TLX kernels for Blackwell (sm_100a). Importing this needs neither a GPU nor TLX; running a kernel needs both."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

import torch

from kernels.blackwell import backward_options
from kernels.blackwell.options import HEAD_DIMS, SCHEDULES, BlackwellForwardRequest, make_request, resolve_forward
from kernels.implementation import Direction
from kernels.problem import JaggedProblem
from kernels.tlx_support import unsupported


class BlackwellImplementation:
    """See `kernels.implementation.Implementation`."""

    name = "blackwell"
    schedules: Mapping[Direction, tuple[str, ...]] = {"fwd": SCHEDULES, "bwd": backward_options.SCHEDULES}

    def declines(self, problem: JaggedProblem, direction: Direction, device: torch.device) -> str | None:
        """Why it can't run; checks the device, TLX, and what the kernels don't cover."""
        return unsupported(problem, direction, device, (10, 0), HEAD_DIMS)

    def make_options(self, direction: Direction, values: Mapping[str, object]) -> object:
        """Switches of `BlackwellForwardOptions` or, for ``bwd``, of `BlackwellBackwardOptions`."""
        if direction == "bwd":
            return backward_options.BlackwellBackwardOptions.make(values) if values else None
        return make_request(values)

    def describe(self, problem: JaggedProblem, direction: Direction, schedule: str | None = None,
                 options: object | None = None) -> str:
        """Such as ``blackwell/zigzag``; changed switches follow a plus sign each."""
        if direction == "bwd":
            return str(_backward().describe(problem, schedule, options))
        changed = options.switches if isinstance(options, BlackwellForwardRequest) else ()
        changes = "".join(f"+{name}={value}" for name, value in changed if name != "schedule")
        return f"blackwell/{resolve_forward(problem, schedule, options).schedule}{changes}"

    def forward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                schedule: str | None = None, options: object | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, lse)``. Raises `ValueError` for options that exclude each other or the problem."""
        from kernels.blackwell.forward import forward

        return forward(problem, q, k, v, resolve_forward(problem, schedule, options))

    def backward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                 lse: torch.Tensor, dout: torch.Tensor, *, schedule: str | None = None,
                 options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(dq, dk, dv)``. Raises `ValueError` for an unknown schedule or options that exclude each other."""
        grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _backward().backward(
            problem, q, k, v, out, lse, dout, schedule, options)
        return grads


def _backward() -> ModuleType:
    return importlib.import_module("kernels.blackwell.backward")  # on first use, as it needs TLX


IMPLEMENTATION = BlackwellImplementation()
