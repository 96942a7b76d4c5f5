"""Jagged attention in plain Triton, for any GPU from sm_80 on and, in Triton's interpreter, for CPU tensors.

The baseline before warp specialisation and TLX: a FlashAttention-2-style forward and a deterministic backward, with
nothing but the problem's device offsets to go by, so that no call waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernels.implementation import Direction
from kernels.portable import backward as _backward
from kernels.portable import forward as _forward
from kernels.portable.interpreter import is_interpreted
from kernels.portable.options import BackwardOptions, TileOptions
from kernels.problem import JaggedProblem

HEAD_DIMS = (32, 64, 96, 128)
DTYPES = (torch.bfloat16, torch.float16)


class PortableImplementation:
    """`kernels.implementation.Implementation` ``portable``.

    Options: `TileOptions` (``fwd``) or `BackwardOptions` (``bwd``); None, the default, autotunes on the first call
    for each kind of problem (seconds). There is one order of tiles, the layout's: ``schedule`` must be None or "none".
    """

    name = "portable"
    schedules: Mapping[Direction, tuple[str, ...]] = {"fwd": ("none",), "bwd": ("none",)}

    def declines(self, problem: JaggedProblem, direction: Direction, device: torch.device) -> str | None:
        """Why the problem can't run on the device; None if it can."""
        if problem.head_dim not in HEAD_DIMS:
            return f"head_dim {problem.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
        if problem.dtype not in DTYPES:
            return f"dtype {problem.dtype} is not one of {', '.join(map(str, DTYPES))}"
        interpreted = is_interpreted(_forward.forward_kernel)
        if device.type == "cpu":
            return None if interpreted else "CPU tensors need Triton's interpreter: set TRITON_INTERPRET=1"
        if device.type != "cuda":
            return f"device type {device.type} is neither cuda nor cpu"
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return f"needs compute capability 8.0 or newer, this GPU has {major}.{minor}"
        return None

    def make_options(self, direction: Direction, values: Mapping[str, object]) -> TileOptions | BackwardOptions | None:
        """Options from plain values: `TileOptions`' keys for ``fwd``, ``dkdv`` and ``dq`` mappings of them for ``bwd``.

        No values: None, autotuned. Raises `ValueError` naming the key or value and what is allowed.
        """
        if not values:
            return None
        return TileOptions.make(values) if direction == "fwd" else BackwardOptions.make(values)

    def describe(self, problem: JaggedProblem, direction: Direction, schedule: str | None = None,
                 options: object | None = None) -> str:
        """``portable/128x64w4s3`` (BLOCK_M x BLOCK_N, warps, stages), once known; before tuning ``portable``.

        The backward names two tiles: ``portable/dkdv64x128w8s2-dq128x64w8s2``.
        """
        if direction == "fwd":
            tile = _tile_options(options) or _forward.FORWARD.best(problem)
            return f"portable/{tile}" if tile else "portable"
        given = _backward_options(options) or BackwardOptions()
        dkdv = given.dkdv or _backward.DKDV.best(problem)
        dq = given.dq or _backward.DQ.best(problem)
        return f"portable/dkdv{dkdv}-dq{dq}" if dkdv and dq else "portable"

    def forward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                schedule: str | None = None, options: object | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, lse)``, see `kernels.portable.forward.forward`. Raises `ValueError` for a schedule."""
        _check_schedule(schedule)
        return _forward.forward(problem, q, k, v, _tile_options(options))

    def backward(self, problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                 lse: torch.Tensor, dout: torch.Tensor, *, schedule: str | None = None,
                 options: object | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(dq, dk, dv)``, see `kernels.portable.backward.backward`. Raises `ValueError` for a schedule."""
        _check_schedule(schedule)
        return _backward.backward(problem, q, k, v, out, lse, dout, _backward_options(options))


def _check_schedule(schedule: str | None) -> None:
    if schedule not in (None, "none"):
        raise ValueError(f"schedule: the portable kernels know only 'none' (the layout's order), got {schedule!r}")


def _tile_options(options: object | None) -> TileOptions | None:
    if options is None or isinstance(options, TileOptions):
        return options
    raise TypeError(f"options: the portable forward takes TileOptions, got {type(options).__name__}")


def _backward_options(options: object | None) -> BackwardOptions | None:
    if options is None or isinstance(options, BackwardOptions):
        return options
    raise TypeError(f"options: the portable backward takes BackwardOptions, got {type(options).__name__}")


IMPLEMENTATION = PortableImplementation()
