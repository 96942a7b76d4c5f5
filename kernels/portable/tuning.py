"""`TunedKernel`: a Triton kernel that finds its tile once per kind of problem, not once per batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import triton

from kernels.portable.arguments import effective_window
from kernels.portable.interpreter import hardware_bf16, is_interpreted
from kernels.portable.options import TileOptions
from kernels.portable.tiles import candidates
from kernels.problem import JaggedProblem

Grid = Callable[[dict[str, Any]], tuple[int, ...]]

# Interpreted programs cost by the operation, hardly by the element.
INTERPRETED_TILE = TileOptions(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=1)


def launch(kernel: Any, grid: Grid, problem: JaggedProblem, arguments: dict[str, Any]) -> None:
    """Run a ``triton.jit`` or autotuned kernel on the problem's device, current or not, or in the interpreter."""
    if is_interpreted(kernel):
        with hardware_bf16():
            kernel[grid](**arguments)
    else:
        with torch.cuda.device_of(problem.layout_k.cu_seqlens):
            kernel[grid](**arguments)


class TunedKernel:
    """A kernel with constexprs ``BLOCK_M`` and ``BLOCK_N``; ``name`` says whose candidate tiles are its own.

    The first launch of a kind of problem (head dimension, dtype, mask bounds, broadcast-Q, group size, powers of two
    of the maximum lengths, device) times every candidate on that very batch; later launches reuse the winner
    whatever their lengths. Tuning runs a kernel many times, so it must not accumulate into its outputs.
    """

    def __init__(self, name: str, kernel: Any):
        self.name = name
        self.kernel = kernel
        self._best: dict[tuple[object, ...], TileOptions] = {}

    def best(self, problem: JaggedProblem) -> TileOptions | None:
        """The tile found for problems of this kind; None before the first launch."""
        return INTERPRETED_TILE if is_interpreted(self.kernel) else self._best.get(_kind(problem))

    def launch(self, problem: JaggedProblem, grid: Grid, arguments: dict[str, Any],
               tile: TileOptions | None = None) -> None:
        """Run the kernel over ``grid``, with the given tile or the best one."""
        tile = tile or self.best(problem)
        if tile:
            launch(self.kernel, grid, problem, arguments | asdict(tile))
        else:
            self._best[_kind(problem)] = self._tune(problem, grid, arguments)

    def _tune(self, problem: JaggedProblem, grid: Grid, arguments: dict[str, Any]) -> TileOptions:
        tuner = triton.autotune(
            configs=[triton.Config({"BLOCK_M": tile.BLOCK_M, "BLOCK_N": tile.BLOCK_N}, num_warps=tile.num_warps,
                                   num_stages=tile.num_stages) for tile in candidates(self.name, problem)],
            key=["HEAD_DIM", "HAS_LEFT", "HAS_RIGHT", "max_seqlen"])(self.kernel)
        launch(tuner, grid, problem, arguments)
        best = tuner.best_config
        return TileOptions(**best.kwargs, num_warps=best.num_warps, num_stages=best.num_stages)


def _kind(problem: JaggedProblem) -> tuple[object, ...]:
    device = problem.layout_k.device
    left, right = effective_window(problem)
    return (problem.head_dim, problem.dtype, left is None, right is None, problem.broadcast_q, problem.group_size,
            _length_bucket(problem.layout_q.max_seqlen), _length_bucket(problem.layout_k.max_seqlen), device.type,
            device.index)


def _length_bucket(max_seqlen: int) -> int:
    """Lengths up to 32, 64, 128, ... 8192 and beyond share a tile."""
    return min(max((max_seqlen - 1).bit_length(), 5), 13)
