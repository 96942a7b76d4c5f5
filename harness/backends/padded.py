"""torch's SDPA on padded tensors with a mask: what packing saves."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from harness.backends.autograd_operation import AutogradOperation, gradients
from harness.backends.base import Availability, Backend, Operation, Outputs
from harness.backends.memory import device_memory
from harness.cases import Case
from harness.inputs import Inputs
from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem


def padded_rows(cu_seqlens: torch.Tensor, total: int, max_seqlen: int) -> torch.Tensor:
    """int64 ``[total]``: row of each packed row in ``[B * max_seqlen]`` padded rows; no sync."""
    row = torch.arange(total, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:], row.to(torch.int32), right=True)
    return sequence * max_seqlen + row - cu_seqlens[sequence]


class Pad(torch.autograd.Function):
    """``[total, H, D] -> [B, max_seqlen, H, D]`` with zeros for what isn't there; its backward is `Unpad`."""

    @staticmethod
    def forward(ctx: Any, packed: torch.Tensor, rows: torch.Tensor, batch: int, max_seqlen: int) -> torch.Tensor:
        """Scatter rows."""
        ctx.save_for_backward(rows)
        padded = packed.new_zeros(batch * max_seqlen, *packed.shape[1:])
        padded[rows] = packed
        return padded.unflatten(0, (batch, max_seqlen))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Gather them."""
        return grads[0].flatten(0, 1)[ctx.saved_tensors[0]], None, None, None


class Unpad(torch.autograd.Function):
    """``[B, max_seqlen, H, D] -> [total, H, D]``; its backward is `Pad`."""

    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Gather rows."""
        ctx.save_for_backward(rows)
        ctx.padded_shape = padded.shape
        return padded.flatten(0, 1)[rows]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Scatter them."""
        padded = grads[0].new_zeros(ctx.padded_shape)
        padded.flatten(0, 1)[ctx.saved_tensors[0]] = grads[0]
        return padded, None


def bounds(layout: JaggedLayout) -> int:
    """Rows that a sequence is padded to: the longest length, and at least 1 for SDPA's sake."""
    return max(layout.max_seqlen, 1)


def pad(packed: torch.Tensor, layout: JaggedLayout) -> torch.Tensor:
    """``[total, H, D] -> [B, bounds(layout), H, D]``, differentiable."""
    rows = padded_rows(layout.cu_seqlens, layout.total, bounds(layout))
    return Pad.apply(packed, rows, layout.batch, bounds(layout))


def padded_mask(problem: JaggedProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """``(visible, blind)`` on the device, without a sync.

    ``visible`` is bool ``[B, 1, 1 or Sq, Sk]`` with the padded lengths, the mask for SDPA. Queries that see no key
    would give NaN in some of SDPA's kernels; they see key 0 instead, and ``blind`` (bool ``[B, Sq]``) says which
    outputs to zero.
    """
    layout_q, layout_k, mask = problem.layout_q, problem.layout_k, problem.mask
    rows_q, rows_k = bounds(layout_q), bounds(layout_k)
    len_k = layout_k.cu_seqlens.diff()[:, None]  # [B, 1]
    key = torch.arange(rows_k, device=layout_k.device)  # [Sk]
    visible = (key < len_k)[:, None]  # [B, 1, Sk]
    if not mask.is_full:
        len_q = layout_q.cu_seqlens.diff()[:, None]  # [B, 1]
        position = torch.arange(rows_q, device=layout_k.device) + len_k - len_q  # [B, Sq]
        if mask.left is not None:
            visible = visible & (key >= (position - mask.left)[..., None])
        if mask.right is not None:
            visible = visible & (key <= (position + mask.right)[..., None])
    blind = ~visible.any(-1)  # [B, 1 or Sq]
    visible[..., 0] |= blind
    return visible[:, None], blind.expand(-1, rows_q)


def repeat_heads(problem: JaggedProblem, tensor: torch.Tensor) -> torch.Tensor:
    """K or V with one head for each query head: SDPA's masked kernels have no grouped heads."""
    return tensor if problem.group_size == 1 else tensor.repeat_interleave(problem.group_size, dim=2)


def attend_padded(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                  visible: torch.Tensor) -> torch.Tensor:
    """``[B, Sq, Hq, D]`` from padded ``q [B, Sq, Hq, D]`` and ``k, v [B, Sk, Hq, D]``."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=visible,
                                         scale=problem.softmax_scale)
    return out.transpose(1, 2)


class PaddedOperation(AutogradOperation):
    """Kernel scope: SDPA alone, on tensors that were padded before. Padding and unpadding are operation scope."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        problem = inputs.problem
        self._visible, blind = padded_mask(problem)
        self._padded = [tensor.detach().requires_grad_() for tensor in self._pad_inputs(inputs.q, inputs.k, inputs.v)]
        self._rows = padded_rows(problem.layout_q.cu_seqlens, problem.layout_q.total, bounds(problem.layout_q))
        self._blind = blind.flatten()[self._rows][:, None, None]  # [total_q, 1, 1]
        self._dout = pad(inputs.dout.masked_fill(self._blind, 0), problem.layout_q)
        self._out: torch.Tensor | None = None
        self._grads: tuple[torch.Tensor, ...] | None = None

    def _pad_inputs(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        """Padded ``q, k, v``; a shared Q is a view, and grouped heads are repeated."""
        problem = self.problem
        padded_q = q.expand(problem.batch, *q.shape) if problem.broadcast_q else pad(q, problem.layout_q)
        return [padded_q, *(repeat_heads(problem, pad(tensor, problem.layout_k)) for tensor in (k, v))]

    @property
    def impl(self) -> dict[str, str]:
        """Whether KV heads are repeated for grouped heads."""
        token = "sdpa/repeat_kv" if self.problem.group_size > 1 else "sdpa"
        return {"fwd": token, "bwd": token}

    def forward_kernel(self) -> None:
        """SDPA."""
        self._out = self._grads = None
        with torch.enable_grad():
            q, k, v = self._padded
            self._out = attend_padded(self.problem, q, k, v, self._visible)

    def backward_kernel(self) -> None:
        """SDPA's backward, through autograd."""
        assert self._out is not None, "call forward_kernel first"
        self._grads = None
        self._grads = gradients([self._out], self._padded, [self._dout])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pads, makes the mask, calls SDPA, unpads, and zeroes what saw no key."""
        layout_q = self.problem.layout_q
        visible, blind = padded_mask(self.problem)
        padded_q, padded_k, padded_v = self._pad_inputs(q, k, v)
        out = attend_padded(self.problem, padded_q, padded_k, padded_v, visible)
        rows = padded_rows(layout_q.cu_seqlens, layout_q.total, bounds(layout_q))
        return Unpad.apply(out, rows).masked_fill(blind.flatten()[rows][:, None, None], 0), None

    def kernel_outputs(self) -> Outputs | None:
        """Unpadded; gradients of what was repeated are summed in fp32."""
        if self._out is None:
            return None
        problem = self.problem
        out = self._out.detach().flatten(0, 1)[self._rows].masked_fill(self._blind, 0)
        if self._grads is None:
            return Outputs(out)
        padded_dq, *padded_dkv = self._grads
        dq = padded_dq.float().sum(0).to(out.dtype) if problem.broadcast_q else padded_dq.flatten(0, 1)[self._rows]
        rows_k = padded_rows(problem.layout_k.cu_seqlens, problem.layout_k.total, bounds(problem.layout_k))
        dk, dv = (grad.flatten(0, 1)[rows_k].unflatten(1, (-1, problem.group_size)).float().sum(2).to(out.dtype)
                  for grad in padded_dkv)
        return Outputs(out, None, dq, dk, dv)


class PaddedBackend(Backend):
    """Runs anywhere that has the memory."""

    name = "padded"
    timed_on = ("cpu", "cuda")

    def availability(self, device: torch.device) -> Availability:
        """Part of torch."""
        return Availability(True, torch.__version__)

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Cases whose padded tensors and mask can't fit into the device's memory."""
        rows_q = case.batch * int(case.lengths_q.max(initial=0))
        rows_k = case.batch * int(case.lengths_k.max(initial=0))
        tensors = 2 if direction == "fwd" else 4
        heads_bytes = 2 * case.head_dim * case.num_heads_q  # K and V are repeated for grouped heads
        mask = rows_k if case.mask.is_full else rows_q * int(case.lengths_k.max(initial=0))
        needed, present = tensors * heads_bytes * (rows_q + rows_k) + mask, device_memory(device)
        if needed > present:
            return f"padded tensors need {needed / 2**30:.0f} GiB of {present / 2**30:.0f} GiB"
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """See `PaddedOperation`."""
        return PaddedOperation(inputs)
