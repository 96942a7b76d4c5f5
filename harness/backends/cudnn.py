"""cuDNN, through nvidia-cudnn-frontend's graph API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from harness.backends.base import Availability, Backend, Operation, Options
from harness.backends.cudnn_graph import Bounds, Graphs, Kernels
from harness.backends.packages import find_gpu_package
from harness.backends.packed_operation import PackedOperation
from harness.backends.rival import expand_queries
from harness.cases import Case
from harness.inputs import Inputs

INSTALL = "pip install nvidia-cudnn-frontend"


class _Attention(torch.autograd.Function):
    """What a training step would wrap cuDNN's graphs in."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        bounds = Bounds(kernels.problem)
        out, stats = kernels.forward(bounds, q, k, v)
        ctx.kernels, ctx.bounds = kernels, bounds
        ctx.save_for_backward(q, k, v, out, stats)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.kernels.backward(ctx.bounds, *ctx.saved_tensors, grads[0]), None


class CudnnOperation(PackedOperation):
    """Kernel scope: the graphs alone, with lengths and offsets made beforehand."""

    def __init__(self, inputs: Inputs, graphs: Graphs) -> None:
        super().__init__(inputs)
        self._kernels = Kernels(inputs.problem, graphs)
        self._bounds = Bounds(inputs.problem)

    @property
    def impl(self) -> dict[str, str]:
        """``thd``, whose kernel it is, and whether Q was expanded."""
        expanded = "/expanded" if self.problem.broadcast_q else ""
        engines = {direction: self._kernels.engine(direction == "bwd") for direction in ("fwd", "bwd")}
        return {direction: f"thd{expanded}/{engine}".rstrip("/") for direction, engine in engines.items()}

    def run_forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.forward`."""
        return self._kernels.forward(self._bounds, q, k, v)

    def run_backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                     dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See `Kernels.backward`."""
        return self._kernels.backward(self._bounds, q, k, v, out, lse, dout)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Expanded queries, fresh lengths and offsets, the graphs in an autograd function."""
        return _Attention.apply(expand_queries(self.problem, q), k, v, self._kernels), None

    def packed_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """The stats are the log-sum-exp, one column a head."""
        return lse.squeeze(-1).T


class CudnnBackend(Backend):
    """The rival of Blackwell. Which masks and lengths it takes is known once a graph was built."""

    name = "cudnn"

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._graphs: tuple[str, Graphs] = ("", {})  # of the last case, for its next `prepare`

    def availability(self, device: torch.device) -> Availability:
        """The version names the frontend's and the library's."""
        found = find_gpu_package(device, "nvidia-cudnn-frontend", "cudnn", INSTALL)
        if not found.available:
            return found
        import cudnn

        return replace(found, version=f"{found.version} (cuDNN {cudnn.backend_version_string()})")

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """What can be told without a graph."""
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "needs compute capability 8.0 or newer"
        if case.head_dim % 8:
            return f"head_dim {case.head_dim} is not a multiple of 8"
        if case.total_q == 0 or case.total_k == 0:
            return "takes no empty tensors"
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """See `CudnnOperation`."""
        if self._graphs[0] != inputs.case.case_id:
            self._graphs = (inputs.case.case_id, {})
        return CudnnOperation(inputs, self._graphs[1])
