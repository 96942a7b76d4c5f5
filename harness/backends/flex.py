"""FlexAttention with a block mask of the packed batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.backends.autograd_operation import gradients
from harness.backends.base import Availability, Backend, Operation, Options, Outputs
from harness.backends.flex_blocks import BLOCK, block_lists, find_segments, visible_range
from harness.backends.packages import find_gpu_package
from harness.backends.rival import RivalOperation, expand_queries, refusals, sum_queries
from harness.cases import Case
from harness.inputs import Inputs
from kernels.problem import JaggedProblem

MAX_INDEX_BYTES = 2 * 2**30


def make_block_mask(problem: JaggedProblem, offsets_q: np.ndarray, offsets_k: np.ndarray) -> Any:
    """A `BlockMask` of ``[1, 1, total_q, total_k]`` whose lists are as wide as the longest needs."""
    from torch.nn.attention.flex_attention import BlockMask

    low, high = visible_range(problem)

    def visible(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key >= low[query]) & (key < high[query])

    arguments: dict[str, Any] = {}
    for prefix, (counts, indices) in block_lists(find_segments(problem.mask, offsets_q, offsets_k)).items():
        for name, array in (("num_blocks", counts), ("indices", indices)):
            arguments[f"{prefix}_{name}"] = torch.from_numpy(array)[None, None].to(low.device, non_blocking=True)
    return BlockMask(seq_lengths=(problem.layout_q.total, problem.layout_k.total), BLOCK_SIZE=(BLOCK, BLOCK),
                     mask_mod=visible, **arguments)


def _as_batch(tensor: torch.Tensor) -> torch.Tensor:
    """``[rows, H, D] -> [1, H, rows, D]``, a view."""
    return tensor.transpose(0, 1)[None]


def _as_packed(tensor: torch.Tensor) -> torch.Tensor:
    """The inverse of `_as_batch`."""
    return tensor[0].transpose(0, 1)


class FlexOperation(RivalOperation):
    """Kernel scope: the compiled `flex_attention` with a block mask, and queries expanded, beforehand. Operation
    scope: reads the offsets (a sync), makes lists on the host and copies them to the device, each time."""

    def __init__(self, inputs: Inputs, attention: Callable[..., Any]) -> None:
        super().__init__(inputs)
        problem = self.problem
        self._attention = attention
        self._block_mask = make_block_mask(problem, problem.layout_q.offsets, problem.layout_k.offsets)
        self._kernel_leaves = [_as_batch(tensor).detach().requires_grad_() for tensor in
                               (expand_queries(problem, inputs.q), inputs.k, inputs.v)]
        self._out: torch.Tensor | None = None
        self._grads: tuple[torch.Tensor, ...] | None = None

    @property
    def impl(self) -> dict[str, str]:
        """One variant, and whether Q was expanded."""
        token = "block_mask/expanded" if self.problem.broadcast_q else "block_mask"
        return {"fwd": token, "bwd": token}

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any) -> torch.Tensor:
        return self._attention(q, k, v, block_mask=block_mask, scale=self.problem.softmax_scale,
                               enable_gqa=self.problem.group_size > 1)

    def forward_kernel(self) -> None:
        """`flex_attention`."""
        self._out = self._grads = None
        with refusals(), torch.enable_grad():
            q, k, v = self._kernel_leaves
            self._out = self._attend(q, k, v, self._block_mask)

    def backward_kernel(self) -> None:
        """Its backward, through autograd."""
        if self._out is None:
            raise RuntimeError("backward_kernel: call forward_kernel first")
        self._grads = None
        with refusals():
            self._grads = gradients([self._out], self._kernel_leaves, [_as_batch(self.inputs.dout)])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A fresh block mask, expanded queries, `flex_attention`."""
        problem = self.problem
        offsets_q, offsets_k = (layout.cu_seqlens.cpu().numpy().astype(np.int64)
                                for layout in (problem.layout_q, problem.layout_k))
        block_mask = make_block_mask(problem, offsets_q, offsets_k)
        q, k, v = (_as_batch(tensor) for tensor in (expand_queries(problem, q), k, v))
        return _as_packed(self._attend(q, k, v, block_mask)), None

    def kernel_outputs(self) -> Outputs | None:
        """Packed views; a shared Q's gradients are summed."""
        if self._out is None:
            return None
        out = _as_packed(self._out.detach())
        if self._grads is None:
            return Outputs(out)
        dq, dk, dv = (_as_packed(grad) for grad in self._grads)
        return Outputs(out, None, sum_queries(self.problem, dq), dk, dv)


class FlexBackend(Backend):
    """Compiles for each case's exact shapes."""

    name = "flex"

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._case_id = ""
        self._compiled: Callable[..., Any] | None = None

    def availability(self, device: torch.device) -> Availability:
        """Part of torch; a CPU has no backward."""
        return find_gpu_package(device, "torch", "torch.nn.attention.flex_attention", "needs torch 2.7 or later")

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Head dimensions below 16, no rows, and block lists out of all proportion."""
        if case.head_dim < 16:
            return f"head_dim {case.head_dim} is below 16"
        if case.total_q == 0 or case.total_k == 0:
            return "takes no empty tensors"
        offsets_q, offsets_k = (np.concatenate([[0], np.cumsum(lengths)])
                                for lengths in (case.lengths_q, case.lengths_k))
        needed = find_segments(case.mask, offsets_q, offsets_k).index_bytes
        if needed > MAX_INDEX_BYTES:
            return f"the block mask's index tensors need up to {needed / 2**30:.1f} GiB, more than 2 GiB"
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """A new case starts compilation anew; the same one goes on with what was compiled."""
        from torch._functorch import config as functorch_config
        from torch._inductor import config as inductor_config
        from torch.nn.attention.flex_attention import flex_attention

        if self._compiled is None or inputs.case.case_id != self._case_id:
            torch._dynamo.reset()
            # In this process: helpers would go on beside what is timed, and those of torch 2.11 miss the GPU.
            inductor_config.compile_threads = 1
            functorch_config.donated_buffer = False  # a backward that is run again and again keeps its buffers
            self._compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
            self._case_id = inputs.case.case_id
        return FlexOperation(inputs, self._compiled)
