"""cuDNN's attention on packed ("THD") tensors: its graphs of one problem, and what they are run with."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import torch

from harness.backends.base import Unsupported
from kernels.problem import JaggedProblem

PAD_ROWS = 64  # packed outputs have room for a multiple of this many rows, as the backward's graph is told


class Port(IntEnum):
    """The graphs' tensors by uid. From `OFFSETS` on: offsets of the sequences in elements, one for each row stride."""

    Q = 1
    K = 2
    V = 3
    OUT = 4
    STATS = 5
    DOUT = 6
    DQ = 7
    DK = 8
    DV = 9
    LENGTHS_Q = 10
    LENGTHS_K = 11
    OFFSETS = 100


KEY_PORTS = frozenset({Port.K, Port.V, Port.DK, Port.DV})  # their rows are layout_k's
Strides = dict[Port, tuple[int, ...]]  # of packed [rows, H, D] tensors


@cache
def _handle(index: int) -> Any:
    """One cuDNN handle for each device."""
    import cudnn

    return cudnn.create_handle()


def _width(problem: JaggedProblem, port: Port) -> tuple[int, int]:
    """Heads and head dimension of a packed tensor."""
    heads = problem.num_heads_kv if port in KEY_PORTS else problem.num_heads_q
    return heads, 1 if port is Port.STATS else problem.head_dim


class RaggedGraph:
    """One direction, built for one problem's lengths at most and strides exactly; no tensor data.

    Raises what cuDNN raises for a graph that it can't run, and `Unsupported` for a last dimension with a stride.
    """

    def __init__(self, problem: JaggedProblem, strides: Strides, backward: bool) -> None:
        import cudnn

        self._problem = problem
        self._handle = _handle(problem.layout_k.device.index or 0)
        self._set_stream()
        data_type = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}[problem.dtype]
        self._graph = cudnn.pygraph(io_data_type=data_type, intermediate_data_type=cudnn.data_type.FLOAT,
                                    compute_data_type=cudnn.data_type.FLOAT, handle=self._handle)
        self._offsets: dict[tuple[bool, int], Any] = {}  # (is layout_k's, elements between rows) -> graph tensor
        if backward:
            self._add_backward(strides)
        else:
            self._add_forward(strides)
        self._graph.validate()
        self._graph.build_operation_graph()
        self._graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self._graph.check_support()
        self._graph.build_plans()
        self.workspace_bytes = int(self._graph.get_workspace_size())

    @property
    def engine(self) -> str:
        """``backend`` for a kernel of the cuDNN library, else the name of the frontend's own."""
        engine = self._graph.selected_engine
        return "backend" if engine is None else str(engine.name)

    def execute(self, tensors: dict[Port, torch.Tensor], bounds: Bounds, workspace: torch.Tensor) -> None:
        """Run on the current stream; outputs are written in place."""
        self._set_stream()
        pack = {int(port): tensor for port, tensor in tensors.items()}
        pack |= {int(Port.LENGTHS_Q): bounds.lengths[0], int(Port.LENGTHS_K): bounds.lengths[1]}
        pack |= {Port.OFFSETS + index: bounds.offset(*key) for index, key in enumerate(self._offsets)}
        self._graph.execute(pack, workspace, self._handle)

    def _set_stream(self) -> None:
        import cudnn

        cudnn.set_stream(handle=self._handle, stream=torch.cuda.current_stream().cuda_stream)

    def _layout(self, port: Port, strides: Strides) -> tuple[list[int], list[int]]:
        """Dimensions and strides ``[B, H, max_seqlen, D]``."""
        problem, (rows, head, last) = self._problem, strides[port]
        if last != 1:
            raise Unsupported(f"cuDNN needs a unit stride in the last dimension, {port.name.lower()} has {last}")
        layout = problem.layout_k if port in KEY_PORTS else problem.layout_q
        heads, dim = _width(problem, port)
        length = max(layout.max_seqlen, 1)
        return [problem.batch, heads, length, dim], [length * rows, head, rows, 1]

    def _offset(self, port: Port, strides: Strides) -> Any:
        """The graph's offsets tensor for a packed tensor, shared by those with the same rows."""
        import cudnn

        key = (port in KEY_PORTS, strides[port][0])
        if key not in self._offsets:
            data_type = cudnn.data_type.INT64 if _needs_int64(self._problem, *key) else cudnn.data_type.INT32
            self._offsets[key] = self._graph.tensor(uid=Port.OFFSETS + len(self._offsets), data_type=data_type,
                                                    dim=[self._problem.batch + 1, 1, 1, 1], stride=[1, 1, 1, 1])
        return self._offsets[key]

    def _input(self, port: Port, strides: Strides, data_type: Any = None) -> Any:
        dim, stride = self._layout(port, strides)
        tensor = self._graph.tensor(uid=int(port), dim=dim, stride=stride, data_type=data_type)
        return tensor.set_ragged_offset(self._offset(port, strides))

    def _output(self, tensor: Any, port: Port, strides: Strides) -> None:
        dim, stride = self._layout(port, strides)
        tensor.set_uid(int(port)).set_output(True).set_dim(dim).set_stride(stride)
        tensor.set_ragged_offset(self._offset(port, strides))

    def _attributes(self) -> dict[str, Any]:
        """Lengths, scale and mask, as both directions take them."""
        import cudnn

        problem, mask = self._problem, self._problem.mask
        attributes: dict[str, Any] = {"attn_scale": problem.softmax_scale, "use_padding_mask": True}
        for name, port in (("seq_len_q", Port.LENGTHS_Q), ("seq_len_kv", Port.LENGTHS_K)):
            attributes[name] = self._graph.tensor(uid=int(port), dim=[problem.batch, 1, 1, 1], stride=[1, 1, 1, 1],
                                                  data_type=cudnn.data_type.INT32)
        if mask.is_full:
            return attributes
        square = np.array_equal(problem.layout_q.offsets, problem.layout_k.offsets)
        alignment = cudnn.diagonal_alignment
        return attributes | {
            "diagonal_alignment": alignment.TOP_LEFT if square else alignment.BOTTOM_RIGHT,
            "diagonal_band_left_bound": None if mask.left is None else mask.left + 1,  # cuDNN's bound is exclusive
            "diagonal_band_right_bound": mask.right}

    def _add_forward(self, strides: Strides) -> None:
        import cudnn

        q, k, v = (self._input(port, strides) for port in (Port.Q, Port.K, Port.V))
        out, stats = self._graph.sdpa(name="forward", q=q, k=k, v=v, generate_stats=True, **self._attributes())
        self._output(out, Port.OUT, strides)
        self._output(stats, Port.STATS, strides)
        stats.set_data_type(cudnn.data_type.FLOAT)

    def _add_backward(self, strides: Strides) -> None:
        import cudnn

        q, k, v, out, dout = (self._input(port, strides) for port in (Port.Q, Port.K, Port.V, Port.OUT, Port.DOUT))
        stats = self._input(Port.STATS, strides, cudnn.data_type.FLOAT)
        grads = self._graph.sdpa_backward(
            name="backward", q=q, k=k, v=v, o=out, dO=dout, stats=stats, **self._attributes(),
            max_total_seq_len_q=_padded(self._problem.layout_q.total),
            max_total_seq_len_kv=_padded(self._problem.layout_k.total))
        for tensor, port in zip(grads, (Port.DQ, Port.DK, Port.DV), strict=True):
            self._output(tensor, port, strides)


StrideKey = tuple[tuple[Port, tuple[int, ...]], ...]  # inputs first, then outputs
Graphs = dict[StrideKey, RaggedGraph]


def _padded(rows: int) -> int:
    return max(-(-rows // PAD_ROWS), 1) * PAD_ROWS


def _needs_int64(problem: JaggedProblem, is_k: bool, row_stride: int) -> bool:
    return (problem.layout_k if is_k else problem.layout_q).total * row_stride >= 2**31


class Bounds:
    """Lengths and offsets of the sequences, made on the device from ``cu_seqlens``; what was made is kept."""

    def __init__(self, problem: JaggedProblem) -> None:
        self._problem = problem
        self.lengths = [layout.cu_seqlens.diff().reshape(-1, 1, 1, 1)
                        for layout in (problem.layout_q, problem.layout_k)]  # int32 [B, 1, 1, 1] each
        self._offsets: dict[tuple[bool, int], torch.Tensor] = {}

    def offset(self, is_k: bool, row_stride: int) -> torch.Tensor:
        """``[B + 1, 1, 1, 1]`` in elements, for rows that lie ``row_stride`` elements apart."""
        key = (is_k, row_stride)
        if key not in self._offsets:
            cu_seqlens = (self._problem.layout_k if is_k else self._problem.layout_q).cu_seqlens
            wide = cu_seqlens.long() if _needs_int64(self._problem, *key) else cu_seqlens
            self._offsets[key] = (wide * row_stride).reshape(-1, 1, 1, 1)
        return self._offsets[key]


class Kernels:
    """Both directions of a problem: graphs, made when first needed, and their workspaces; no tensors of a case."""

    def __init__(self, problem: JaggedProblem, graphs: Graphs) -> None:
        self.problem = problem
        self.graphs = graphs
        self._workspaces: dict[StrideKey, torch.Tensor] = {}

    def forward(self, bounds: Bounds, q: torch.Tensor, k: torch.Tensor,
                v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(out, stats [total_q, Hq, 1])``."""
        inputs = {Port.Q: q, Port.K: k, Port.V: v}
        out, stats = self._run(bounds, inputs, (Port.OUT, Port.STATS))
        return out, stats

    def backward(self, bounds: Bounds, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                 stats: torch.Tensor, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``(dq, dk, dv)``."""
        inputs = {Port.Q: q, Port.K: k, Port.V: v, Port.OUT: out, Port.STATS: stats, Port.DOUT: dout}
        return self._run(bounds, inputs, (Port.DQ, Port.DK, Port.DV))

    def engine(self, backward: bool) -> str:
        """`RaggedGraph.engine` of a direction; empty before its first run."""
        engines = [graph.engine for key, graph in self.graphs.items() if (key[-1][0] is Port.DV) == backward]
        return engines[0] if engines else ""

    def _empty(self, port: Port) -> torch.Tensor:
        layout = self.problem.layout_k if port in KEY_PORTS else self.problem.layout_q
        dtype = torch.float32 if port is Port.STATS else self.problem.dtype
        rows = torch.empty(_padded(layout.total), *_width(self.problem, port), dtype=dtype, device=layout.device)
        return rows[: layout.total]

    def _run(self, bounds: Bounds, inputs: dict[Port, torch.Tensor],
             outputs: tuple[Port, ...]) -> tuple[torch.Tensor, ...]:
        tensors = inputs | {port: self._empty(port) for port in outputs}
        strides = {port: tuple(tensor.stride()) for port, tensor in tensors.items()}
        key: StrideKey = tuple(strides.items())
        if key not in self.graphs:
            self.graphs[key] = RaggedGraph(self.problem, strides, Port.DOUT in inputs)
        graph = self.graphs[key]
        if key not in self._workspaces:
            self._workspaces[key] = torch.empty(max(graph.workspace_bytes, 1), dtype=torch.uint8,
                                                device=self.problem.layout_k.device)
        graph.execute(tensors, bounds, self._workspaces[key])
        return tuple(tensors[port] for port in outputs)
