"""What this project's TLX kernels need and cover, whatever the architecture."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from kernels.implementation import Direction
from kernels.problem import JaggedProblem

_MAX_ROWS = 2**30  # the coordinate arithmetic of ragged TMA descriptors


def unsupported(problem: JaggedProblem, direction: Direction, device: torch.device, capability: tuple[int, int],
                head_dims: tuple[int, ...]) -> str | None:
    """Why kernels for GPUs of ``capability`` can't run the problem on the device, in one line; None if they can."""
    return _wrong_device(device, capability) or _tlx_missing() or not_covered(problem, direction, head_dims)


def _wrong_device(device: torch.device, capability: tuple[int, int]) -> str | None:
    wanted = f"sm_{capability[0]}{capability[1]}"
    if device.type != "cuda":
        return f"TLX kernels for {wanted} need such a GPU, the device is {device}"
    major, minor = _capability(torch.cuda.get_device_capability, device)
    if (major, minor) != capability:
        return f"TLX kernels for {wanted} need such a GPU, this one is sm_{major}{minor}"
    return None


@functools.cache
def _capability(ask: Callable[[torch.device], tuple[int, int]], device: torch.device) -> tuple[int, int]:
    """``ask(device)``, once: each call in each direction comes by here, for each family of kernels."""
    return ask(device)


def not_covered(problem: JaggedProblem, direction: Direction, head_dims: tuple[int, ...]) -> str | None:
    """Why no GPU's kernels for ``head_dims`` compute the problem, in one line; None if they do."""
    if problem.head_dim not in head_dims:
        return f"head_dim {problem.head_dim} is not one of {', '.join(map(str, head_dims))}"
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
