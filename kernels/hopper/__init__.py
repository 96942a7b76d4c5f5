"""TLX kernels for Hopper (sm_90a). Importing this package needs neither a GPU nor TLX; running a kernel needs both."""

from __future__ import annotations

import functools
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

_MAX_ROWS = 2**30  # the coordinate arithmetic of ragged TMA descriptors


class HopperImplementation:
    """See `kernels.implementation.Implementation`."""

    name = "hopper"
    schedules: Mapping[Direction, tuple[str, ...]] = {"fwd": SCHEDULES, "bwd": ORDERS}

    def declines(self, problem: JaggedProblem, direction: Direction, device: torch.device) -> str | None:
        """Why it can't run; checks the device, TLX, and what the kernels don't cover."""
        return _wrong_device(device) or _tlx_missing() or _not_covered(problem, direction)

    def make_options(self, direction: Direction, values: Mapping[str, object]) -> object:
        """``variant`` and single switches of `HopperForwardOptions`; for ``bwd`` those of `HopperBackwardOptions`."""
        if direction == "bwd":
            return HopperBackwardOptions.make(values) if values else None
        return make_request(values)

    def describe(self, problem: JaggedProblem, direction: Direction, schedule: str | None = None,
                 options: object | None = None) -> str:
        """Such as ``hopper/solo64/zigzag``; changed switches follow a plus sign each."""
        if direction == "bwd":
            return _backward().describe(problem, schedule, options)
        resolved = resolve_forward(problem, schedule, options)
        changed = [] if not isinstance(options, HopperForwardRequest) else [
            f"+{name}={value}" for name, value in options.switches if name != "schedule"]
        return f"hopper/{resolved.variant}/{resolved.schedule}{''.join(changed)}"

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


def _wrong_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"TLX kernels for Hopper need an sm_90 GPU, the device is {device}"
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        return f"TLX kernels for Hopper need sm_90, the GPU is sm_{capability[0]}{capability[1]}"
    return None


def _not_covered(problem: JaggedProblem, direction: Direction) -> str | None:
    if problem.head_dim not in HEAD_DIMS:
        return f"head_dim {problem.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if problem.dtype not in (torch.bfloat16, torch.float16):
        return f"dtype {problem.dtype} is neither bfloat16 nor float16"
    if direction == "fwd" and problem.softmax_scale <= 0:  # the running maximum is taken before the scale
        return f"softmax_scale must be above 0, got {problem.softmax_scale}"
    rows = max(problem.layout_q.total, problem.layout_k.total)
    if rows >= _MAX_ROWS:
        return f"{rows} rows; ragged TMA descriptors address fewer than 2^30"
    return None


@functools.cache
def _tlx_missing() -> str | None:
    try:
        import triton.language.extra.tlx  # noqa: F401
    except ImportError:
        return "this Triton has no TLX (triton.language.extra.tlx); fbtriton does"
    return None


IMPLEMENTATION = HopperImplementation()
