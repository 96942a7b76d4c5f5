"""`Inputs`: the tensors of a case on a device, seeded by the case alone, so that every process makes the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.cases import Case
from kernels.problem import JaggedProblem


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a backend computes from. Shapes as in `kernels.problem.JaggedProblem` (dense ``q`` for broadcast-Q)."""

    case: Case
    problem: JaggedProblem
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
