"""torch's SDPA, one call a sequence: no padding, and as many launches as sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn import functional as F

from harness.backends.autograd_operation import AutogradOperation, gradients
from harness.backends.base import Availability, Backend, Operation, Outputs
from harness.cases import Case
from harness.inputs import Inputs
from kernels.mask import Mask
from kernels.problem import JaggedProblem


@dataclass(frozen=True, eq=False)
class Piece:
    """One sequence's queries that see a key. ``blind`` queries that see none come first; their output is 0."""

    sequence: int
    blind: int
    q_rows: slice
    out_rows: slice
    k_rows: slice
    visible: torch.Tensor | None  # bool [len_q, len_k]; None: all, or causal on a square
    causal: bool


def visible_keys(mask: Mask, len_q: int, len_k: int, device: torch.device) -> torch.Tensor:
    """bool ``[len_q, len_k]``, True where query ``i`` sees key ``j``."""
    position = torch.arange(len_q, device=device)[:, None] + (len_k - len_q)
    distance = torch.arange(len_k, device=device)[None, :] - position  # [len_q, len_k]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if mask.left is not None:
        visible &= distance >= -mask.left
    if mask.right is not None:
        visible &= distance <= mask.right
    return visible


def blind_queries(mask: Mask, len_q: int, len_k: int) -> int:
    """How many first queries of a sequence see no key (with bottom-right alignment no others can be blind)."""
    if len_k == 0:
        return len_q
    return 0 if mask.right is None else min(max(len_q - len_k - mask.right, 0), len_q)


def split(problem: JaggedProblem, offsets_q: Sequence[int], offsets_k: Sequence[int]) -> list[Piece]:
    """The pieces of a batch, from offsets on the host."""
    mask = problem.mask
    pieces = []
    for b in range(problem.batch):
        begin, end = offsets_q[b], offsets_q[b + 1]
        len_k = offsets_k[b + 1] - offsets_k[b]
        blind = blind_queries(mask, end - begin, len_k)
        len_q = end - begin - blind
        if len_q == 0:
            continue
        causal = mask == Mask(None, 0) and len_q == len_k
        visible = None
        if not (causal or mask.is_full):
            visible = visible_keys(mask, len_q, len_k, problem.layout_k.device)
        first = blind if problem.broadcast_q else begin + blind
        pieces.append(Piece(b, blind, slice(first, first + len_q), slice(begin + blind, end),
                            slice(offsets_k[b], offsets_k[b + 1]), visible, causal))
    return pieces


def _lengths(offsets: Sequence[int]) -> list[int]:
    return [end - begin for begin, end in pairwise(offsets)]


def attend_piece(problem: JaggedProblem, piece: Piece, q: torch.Tensor, k: torch.Tensor,
                 v: torch.Tensor) -> torch.Tensor:
    """``out [len_q, Hq, D]`` from the piece's own ``q [len_q, Hq, D]`` and ``k, v [len_k, Hkv, D]``."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=piece.visible,
        is_causal=piece.causal, scale=problem.softmax_scale, enable_gqa=problem.group_size > 1)
    return out[0].transpose(0, 1)


class LoopOperation(AutogradOperation):
    """Kernel scope: the SDPA calls alone, on views of the packed tensors, with masks made beforehand."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        problem = inputs.problem
        self._pieces = split(problem, problem.layout_q.offsets.tolist(), problem.layout_k.offsets.tolist())
        self._piece_leaves = [
            tensor[rows].detach().requires_grad_() for piece in self._pieces
            for tensor, rows in ((inputs.q, piece.q_rows), (inputs.k, piece.k_rows), (inputs.v, piece.k_rows))]
        self._douts = [inputs.dout[piece.out_rows] for piece in self._pieces]
        self._outs: list[torch.Tensor] | None = None
        self._grads: tuple[torch.Tensor, ...] | None = None

    @property
    def impl(self) -> dict[str, str]:
        """Grouped heads go through another of SDPA's kernels."""
        token = "loop/gqa" if self.problem.group_size > 1 else "loop"
        return {"fwd": token, "bwd": token}

    def forward_kernel(self) -> None:
        """SDPA of every piece."""
        self._outs = self._grads = None
        leaves = iter(self._piece_leaves)
        with torch.enable_grad():
            self._outs = [attend_piece(self.problem, piece, next(leaves), next(leaves), next(leaves))
                          for piece in self._pieces]

    def backward_kernel(self) -> None:
        """SDPA's backward of every piece, through one autograd call."""
        assert self._outs is not None, "call forward_kernel first"
        self._grads = None
        self._grads = gradients(self._outs, self._piece_leaves, self._douts)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Reads the offsets (a sync), splits, loops, and concatenates.

        Tensors are split and a shared Q is unbound at once, since each slice of a whole tensor would add to the whole
        gradient in the backward.
        """
        problem = self.problem
        offsets_q, offsets_k = (layout.cu_seqlens.tolist() for layout in (problem.layout_q, problem.layout_k))
        shared = problem.broadcast_q
        queries = q.expand(problem.batch, *q.shape).unbind() if shared else q.split(_lengths(offsets_q))
        keys, values = (tensor.split(_lengths(offsets_k)) for tensor in (k, v))
        parts: list[torch.Tensor] = []
        row = 0
        for piece in split(problem, offsets_q, offsets_k):
            b = piece.sequence
            parts.append(q.new_zeros(piece.out_rows.start - row, *q.shape[1:]))
            parts.append(attend_piece(problem, piece, queries[b][piece.blind:], keys[b], values[b]))
            row = piece.out_rows.stop
        parts.append(q.new_zeros(problem.layout_q.total - row, *q.shape[1:]))
        return torch.cat(parts), None

    def kernel_outputs(self) -> Outputs | None:
        """The pieces' results, put in place; a shared Q's gradients are summed in fp32."""
        if self._outs is None:
            return None
        inputs = self.inputs
        out = torch.zeros(self.problem.out_shape, dtype=self.problem.dtype, device=inputs.k.device)
        for piece, part in zip(self._pieces, self._outs, strict=True):
            out[piece.out_rows] = part.detach()
        if self._grads is None:
            return Outputs(out)
        dq, dk, dv = (torch.zeros(tensor.shape, dtype=torch.float32, device=out.device)
                      for tensor in (inputs.q, inputs.k, inputs.v))
        grads = iter(self._grads)
        for piece in self._pieces:
            for total, rows in ((dq, piece.q_rows), (dk, piece.k_rows), (dv, piece.k_rows)):
                total[rows] += next(grads)
        return Outputs(out, None, *(total.to(out.dtype) for total in (dq, dk, dv)))


class LoopBackend(Backend):
    """Runs anywhere. On a CPU it is the honest baseline; on a GPU it shows what launches cost."""

    name = "sdpa_loop"
    timed_on = ("cpu", "cuda")

    def availability(self, device: torch.device) -> Availability:
        """Part of torch."""
        return Availability(True, torch.__version__)

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Nothing."""
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """See `LoopOperation`."""
        return LoopOperation(inputs)
