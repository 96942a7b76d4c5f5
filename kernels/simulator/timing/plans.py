"""What of a call is simulated: which CTAs, on which tiles, and by what their time is multiplied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem
from kernels.simulator.timing.traffic import Traffic

GAP = 1.0  # cost of a tile beside its steps, in steps, where work is compared


@dataclass(frozen=True)
class Plan:
    """One call.

    Attributes:
        problem: what the implementation is called with.
        main: the name of the kernel that is simulated.
        arguments: changes its arguments, by name: tables of the tiles to run.
        pids: its first CTAs, all on one SM, ``resident`` of them at a time.
        traffic: which bytes come from HBM.
        scale: work of the SM with most of it, over that of the SM simulated.
        tiles: how many run on that SM, about.
        sinks: the compiler moves exponentials, and what follows them, below the waits for matmuls.
        before, after: bytes that each other kernel of the call moves, by its name.
    """

    problem: JaggedProblem
    main: str
    arguments: Callable[[dict[str, Any]], Mapping[str, Any]]
    pids: Sequence[int]
    resident: int
    traffic: Traffic
    scale: float
    tiles: int
    sinks: bool = False
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)


def thinned(problem: JaggedProblem, every: int) -> JaggedProblem:
    """The problem with every ``every``-th sequence by length, in their order. Itself for 1."""
    if every <= 1:
        return problem
    lengths_q, lengths_k = problem.layout_q.lengths, problem.layout_k.lengths
    by_length = np.lexsort((lengths_q, lengths_k))
    kept = np.sort(by_length[every // 2 :: every])
    layout_k = JaggedLayout.from_lengths(lengths_k[kept])
    layout_q = layout_k if problem.layout_q is problem.layout_k else JaggedLayout.from_lengths(lengths_q[kept])
    return JaggedProblem(layout_q, layout_k, problem.num_heads_q, problem.num_heads_kv, problem.head_dim,
                         problem.dtype, problem.softmax_scale, problem.mask, problem.broadcast_q)


def nearest(work: np.ndarray) -> int:
    """The SM whose work is nearest to the average of those that have any."""
    return int(np.argmin(np.abs(work - work[work > 0].mean())))
