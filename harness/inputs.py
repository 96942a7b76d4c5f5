"""`Inputs`: the tensors of a case on a device, seeded by the case alone, so that every process makes the same ones.

They are standard normal, but for the case's ``hazard``:

- ``none``: contiguous and clean.
- ``stride0``: k and v are one head, expanded to all heads; dout is one scalar, expanded, as ``out.sum()`` gives it.
- ``noncontiguous``: q, k and v are slices of one ``[total, 3, H, D]`` tensor where their shapes allow it, else
  transposed from ``[H, total, D]``; dout is transposed so that even its last dimension has a stride.
- ``nonfinite_neighbours``: every odd sequence is filled with NaN or Inf, in q (unless dense), k, v and dout.
  `Inputs.clean_sequences` are the others, whose results must not notice. A dense q's ``dq`` sums over all
  sequences, so it is spoilt by right.
- ``low_lse``: q and k are pushed apart until every score is near -120, so that ``exp(lse)`` underflows in fp32.
- ``guard``: each tensor is a slice of a larger one whose rows before and after are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from harness.cases import Case
from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GUARD_ROWS = 256
LOW_SCORE = -120.0
SUMMED_ELEMENTS = 2**24  # at once

Randn = Callable[[tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a backend computes from. Shapes as in `kernels.problem.JaggedProblem` (dense ``q`` for broadcast-Q).

    ``clean_sequences`` are the indices, int64, of the sequences whose results must be right: all of them, but for
    the hazard ``nonfinite_neighbours``.
    """

    case: Case
    problem: JaggedProblem
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    clean_sequences: np.ndarray = field(repr=False)

    def checksums(self) -> dict[str, torch.Tensor]:
        """int64 ``[H, D]`` sums of the bits of each tensor over its rows, by name: the same until one is written to."""
        tensors = {"q": self.q, "k": self.k, "v": self.v, "dout": self.dout}
        return {name: _column_sums(tensor.view(torch.int16)) for name, tensor in tensors.items()}


def make_problem(case: Case, device: torch.device | str) -> JaggedProblem:
    """The case's layouts on the device, its shape and mask; ``softmax_scale`` is ``1 / sqrt(head_dim)``.

    Self-attention has one layout, as a model that passes the same offsets twice.
    """
    layout_k = JaggedLayout.from_lengths(case.lengths_k, device)
    return JaggedProblem(
        layout_q=layout_k if case.mode == "self" else JaggedLayout.from_lengths(case.lengths_q, device),
        layout_k=layout_k,
        num_heads_q=case.num_heads_q, num_heads_kv=case.num_heads_kv, head_dim=case.head_dim,
        dtype=DTYPES[case.dtype], softmax_scale=case.head_dim**-0.5, mask=case.mask, broadcast_q=case.broadcast_q)


def make_inputs(case: Case, device: torch.device | str) -> Inputs:
    """The tensors of a case: the same on every call and in every process, for one type of device."""
    device = torch.device(device)
    problem = make_problem(case, device)
    generator = torch.Generator(device).manual_seed(case.seed)

    def randn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=problem.dtype)

    if case.hazard == "noncontiguous":
        q, k, v, dout = _noncontiguous(problem, randn)
    elif case.hazard == "guard":
        shapes = (problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape)
        q, k, v, dout = (_guarded(randn((rows + 2 * GUARD_ROWS, *rest))) for rows, *rest in shapes)
    else:
        q, k, v, dout = (randn(shape) for shape in
                         (problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape))
    clean = np.arange(case.batch)
    if case.hazard == "stride0":
        k, v = (tensor[:, :1].clone().expand(problem.kv_shape) for tensor in (k, v))
        dout = randn(()).expand(problem.out_shape)
    elif case.hazard == "low_lse":
        shift = (-LOW_SCORE / (problem.softmax_scale * case.head_dim)) ** 0.5
        q, k = (q * 0.25 + shift, k * 0.25 - shift)
    elif case.hazard == "nonfinite_neighbours":
        clean = clean[::2]
        _fill_odd_sequences((k, v), case.lengths_k)
        _fill_odd_sequences((dout,) if case.broadcast_q else (q, dout), case.lengths_q)
    return Inputs(case, problem, q, k, v, dout, clean)


def _noncontiguous(problem: JaggedProblem, randn: Randn) -> tuple[torch.Tensor, ...]:
    if problem.q_shape == problem.kv_shape:
        rows, heads, dim = problem.q_shape
        q, k, v = randn((rows, 3, heads, dim)).unbind(1)
    else:
        q, k, v = (randn((heads, rows, dim)).transpose(0, 1)
                   for rows, heads, dim in (problem.q_shape, problem.kv_shape, problem.kv_shape))
    rows, heads, dim = problem.out_shape
    return q, k, v, randn((rows, dim, heads)).transpose(1, 2)


def _guarded(buffer: torch.Tensor) -> torch.Tensor:
    buffer[:GUARD_ROWS] = torch.nan
    buffer[-GUARD_ROWS:] = torch.nan
    return buffer[GUARD_ROWS:-GUARD_ROWS]


def _column_sums(tensor: torch.Tensor) -> torch.Tensor:
    """int64 sums over the first dimension, in parts: torch makes an int64 copy of what it sums."""
    sums = torch.zeros(tensor.shape[1:], dtype=torch.int64, device=tensor.device)
    for part in tensor.split(max(1, SUMMED_ELEMENTS // max(1, sums.numel()))):
        sums += part.sum(0, dtype=torch.int64)
    return sums


def _fill_odd_sequences(tensors: tuple[torch.Tensor, ...], lengths: np.ndarray) -> None:
    """NaN into the rows of sequences 1, 5, 9, ...; Inf of one sign or the other into those of 3, 7, 11, ..."""
    values = np.tile([0.0, np.nan, 0.0, np.inf, 0.0, np.nan, 0.0, -np.inf], len(lengths) // 8 + 1)[: len(lengths)]
    per_row = torch.from_numpy(np.repeat(values, lengths)).to(tensors[0].device)  # [total]
    spoilt = (per_row != 0)[:, None, None]
    for tensor in tensors:
        tensor.copy_(torch.where(spoilt, per_row.to(tensor.dtype)[:, None, None], tensor))
