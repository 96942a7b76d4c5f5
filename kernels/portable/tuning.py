"""`TunedKernel`: a Triton kernel that finds its tile once per kind of problem, not once per batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

from kernels.portable.arguments import effective_window
from kernels.portable.interpreter import hardware_bf16, is_interpreted
from kernels.portable.options import TileOptions
from kernels.portable.tiles import candidates, length_class
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


def compile_together(problem: JaggedProblem, kernels: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Compile each ``(triton.jit kernel, arguments)``, all at the same time; what is compiled already costs nothing.

    Triton leaves Python's lock while it compiles, so threads take about as long as the slowest kernel, given cores.
    A kernel that fails to compile raises when it is launched.
    """
    with (torch.cuda.device_of(problem.layout_k.cu_seqlens), ThreadPoolExecutor() as threads,
          triton.AsyncCompileMode(threads, ignore_errors=True)):
        for kernel, arguments in kernels:
            kernel.warmup(grid=None, **arguments)


class TunedKernel:
    """A kernel with constexprs ``BLOCK_M`` and ``BLOCK_N``; ``name`` says whose candidate tiles are its own.

    The first launch of a kind of problem (head dimension, dtype, mask bounds, broadcast-Q, group size, length class of
    queries and of keys, device) compiles the candidates together and times each on that very batch; later launches
    reuse the winner whatever their lengths. Tuning runs a kernel many times, so it must not accumulate into its
    outputs. Few candidates and three classes of lengths keep a new shape's first call short, and most new shapes are
    of a kind that is tuned already; another class alone is timed again, but compiles nothing that is known.
    """

    def __init__(self, name: str, kernel: Any):
        self.name = name
        self.kernel = kernel
        self._best: dict[tuple[object, ...], TileOptions] = {}

    def best(self, problem: JaggedProblem) -> TileOptions | None:
        """The tile found for problems of this kind; None before the first launch."""
        return INTERPRETED_TILE if is_interpreted(self.kernel) else self._best.get(_kind(problem))

    def untuned(self, problem: JaggedProblem, arguments: dict[str, Any],
                tile: TileOptions | None = None) -> list[tuple[Any, dict[str, Any]]]:
        """What to compile before a launch that tunes, for `compile_together`; nothing if the tile is given."""
        tiles = [] if tile else candidates(self.name, problem)
        return [(self.kernel, arguments | _config(candidate).all_kwargs()) for candidate in tiles]

    def launch(self, problem: JaggedProblem, grid: Grid, arguments: dict[str, Any],
               tile: TileOptions | None = None) -> None:
        """Run the kernel over ``grid``, with the given tile or the best one."""
        tile = tile or self.best(problem)
        if tile:
            launch(self.kernel, grid, problem, arguments | _config(tile).all_kwargs())
        else:
            self._best[_kind(problem)] = self._tune(problem, grid, arguments)

    def _tune(self, problem: JaggedProblem, grid: Grid, arguments: dict[str, Any]) -> TileOptions:
        compile_together(problem, self.untuned(problem, arguments))
        tuner = triton.autotune(
            configs=[_config(tile) for tile in candidates(self.name, problem)], key=[], do_bench=_time)(self.kernel)
        launch(tuner, grid, problem, arguments)
        best = tuner.best_config
        return TileOptions(**best.kwargs, num_warps=best.num_warps, num_stages=best.num_stages)


@functools.cache
def _config(tile: TileOptions) -> triton.Config:
    """As Triton's autotuner takes it; its ``all_kwargs()`` make the same key of compiled kernels everywhere."""
    return triton.Config({"BLOCK_M": tile.BLOCK_M, "BLOCK_N": tile.BLOCK_N}, num_warps=tile.num_warps,
                         num_stages=tile.num_stages)


def _time(call: Callable[[], object], quantiles: Sequence[float]) -> Any:
    """Triton's own timing, in a third of its usual time."""
    return triton.testing.do_bench(call, warmup=10, rep=30, quantiles=quantiles)


def _kind(problem: JaggedProblem) -> tuple[object, ...]:
    device = problem.layout_k.device
    left, right = effective_window(problem)
    return (problem.head_dim, problem.dtype, left is None, right is None, problem.broadcast_q, problem.group_size,
            length_class(problem.layout_q.max_seqlen), length_class(problem.layout_k.max_seqlen), device.type,
            device.index)
