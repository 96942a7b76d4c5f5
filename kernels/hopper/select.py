"""The selection rule: layout statistics -> variant of the Hopper forward."""

from __future__ import annotations

import numpy as np

from kernels.hopper.options import VARIANTS, HopperForwardOptions
from kernels.problem import JaggedProblem


def select_forward(problem: JaggedProblem) -> HopperForwardOptions:
    """The variant for a problem. Only the layouts' lengths, the head dimension and the mask matter.

    Short sequences pay for padding and for the gap between tiles, so they get 64-row tiles and several independent
    workers on an SM; long ones pay for shared-memory traffic, so two groups share a 128-row tile and its K and V.
    Where K and V fit on chip and Q is long, they stay there for several Q sub-tiles.
    """
    mean_q = _typical(problem.layout_q.lengths)
    mean_k = _typical(problem.layout_k.lengths)
    longest_k = int(problem.layout_k.lengths.max(initial=0))
    if problem.head_dim == 64:
        return VARIANTS["solo128d2" if problem.mask.is_full else "solo64"]
    if problem.mask.is_full and longest_k <= 256 and mean_q > 512:
        return VARIANTS["pair128r"]
    if problem.mask.is_full and min(mean_q, mean_k) > 1024:
        return VARIANTS["pair128"]
    if 128 < mean_q <= 192 and mean_k > 512:
        return VARIANTS["trio64"]
    return VARIANTS["solo64"]


def _typical(lengths: np.ndarray) -> float:
    """Mean length seen by a row rather than by a sequence: sum of squares over sum."""
    total = float(lengths.sum())
    return float((lengths.astype(np.float64) ** 2).sum()) / total if total else 0.0
