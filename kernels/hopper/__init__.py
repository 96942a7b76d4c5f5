"""TLX kernels for Hopper (sm_90a). Importing this package needs neither a GPU nor TLX; running a kernel needs both."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

import torch

from kernels.hopper.backward_options import ORDERS, HopperBackwardOptions
from kernels.hopper.options import (
    HEAD_DIMS,
    SCHEDULES,
    VARIANTS,
    HopperForwardOptions,
    HopperForwardRequest,
    make_request,
)
from kernels.hopper.select import select_forward
from kernels.implementation import Direction
from kernels.problem import JaggedProblem
from kernels.tlx_support import unsupported


class HopperImplementation:
    """See `kernels.implementation.Implementation`."""

    name = "hopper"
    schedules: Mapping[Direction, tuple[str, ...]] = {"fwd": SCHEDULES, "bwd": ORDERS}

    def declines(self, problem: JaggedProblem, direction: Direction, device: torch.device) -> str | None:
        """Why it can't run; checks the device, TLX, and what the kernels don't cover."""
        return unsupported(problem, direction, device, (9, 0), HEAD_DIMS)

    def make_options(self, direction: Direction, values: Mapping[str, object]) -> object:
        """``variant`` and single switches of `HopperForwardOptions`; for ``bwd`` those of `HopperBackwardOptions`."""
        if direction == "bwd":
            return HopperBackwardOptions.make(values) if values else None
        return make_request(values)

    def describe(self, problem: JaggedProblem, direction: Direction, schedule: str | None = None,
                 options: object | None = None) -> str:
        """``hopper/solo64-stale/zigzag``: ``-stale`` with `stale_max`; changed switches follow a plus sign each."""
        if direction == "bwd":
            return _backward().describe(problem, schedule, options)
        resolved = resolve_forward(problem, schedule, options)
        changed = [] if not isinstance(options, HopperForwardRequest) else [
            f"+{name}={value}" for name, value in options.switches if name not in ("schedule", "stale_max")]
        stale = "-stale" if resolved.stale_max else ""
        return f"hopper/{resolved.variant}{stale}/{resolved.schedule}{''.join(changed)}"

    def forward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                schedule: str | None = None, options: object | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, lse)``. Raises `ValueError` for options that exclude each other or the problem."""
        from kernels.hopper.forward import forward

        return forward(problem, q, k, v, resolve_forward(problem, schedule, options))

    def backward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                 lse: torch.Tensor, dout: torch.Tensor, *, schedule: str | None = None,
                 options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(dq, dk, dv)``. Raises `ValueError` for an unknown schedule."""
        return _backward().backward(problem, q, k, v, out, lse, dout, schedule, options)


def _backward() -> ModuleType:
    return importlib.import_module("kernels.hopper.backward")  # on first use, as it needs TLX


def resolve_forward(problem: JaggedProblem, schedule: str | None = None,
                    options: object | None = None) -> HopperForwardOptions:
    """The options that run: the request's variant or the rule's, then its switches, then ``schedule``."""
    if isinstance(options, HopperForwardOptions):
        resolved = options
    else:
        request = options if isinstance(options, HopperForwardRequest) else HopperForwardRequest()
        base = VARIANTS[request.variant] if request.variant else select_forward(problem)
        resolved = request.apply(base)
    if schedule is not None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule: expected one of {', '.join(SCHEDULES)}, got {schedule!r}")
        resolved = HopperForwardRequest(None, (("schedule", schedule),)).apply(resolved)
    return resolved


IMPLEMENTATION = HopperImplementation()
