"""cuDNN's graphs behind a fake frontend: what they declare of layouts, offsets and masks, what they run with."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch
from reference_rival import PackedReference
from small_cases import CASES, CAUSAL, FULL, assert_close, make_case

from harness.backends import cudnn_graph, registry
from harness.backends.base import Unsupported
from harness.backends.cudnn_graph import Bounds, Kernels, Port, RaggedGraph
from harness.inputs import make_inputs, make_problem
from kernels.mask import Mask


class FakeTensor:
    """A graph's tensor: attributes as they were set."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)

        def set_attribute(value):
            setattr(self, name.removeprefix("set_"), value)
            return self

        return set_attribute


class FakeGraph:
    """`cudnn.pygraph` that records, and computes with the oracle on what it is executed with."""

    problem = None  # of the test
    selected_engine = None

    def __init__(self, **arguments):
        self.tensors, self.attributes = {}, {}

    def tensor(self, **attributes):
        self.tensors[attributes["uid"]] = FakeTensor(**attributes)
        return self.tensors[attributes["uid"]]

    def sdpa(self, **attributes):
        self.attributes, self.outputs = attributes, [FakeTensor(), FakeTensor()]
        return self.outputs

    def sdpa_backward(self, **attributes):
        self.attributes, self.outputs = attributes, [FakeTensor(), FakeTensor(), FakeTensor()]
        return self.outputs

    def __getattr__(self, name):
        return lambda *arguments: 16  # validate, build_plans, get_workspace_size, ...

    def execute(self, pack, workspace, handle):
        assert set(pack) == set(self.tensors) | {tensor.uid for tensor in self.outputs}
        assert workspace.numel() == 16
        reference = PackedReference(self.problem)
        if Port.DQ in pack:
            grads = reference.backward(pack[Port.Q], pack[Port.K], pack[Port.V], pack[Port.DOUT])
            for port, grad in zip((Port.DQ, Port.DK, Port.DV), grads, strict=True):
                pack[port].copy_(grad)
        else:
            out, lse = reference.forward(pack[Port.Q], pack[Port.K], pack[Port.V])
            pack[Port.OUT].copy_(out)
            pack[Port.STATS].copy_(lse.T[..., None])
        self.pack = pack


@pytest.fixture(autouse=True)
def frontend(monkeypatch):
    """A fake `cudnn` module; no stream, no handle."""
    names = types.SimpleNamespace
    fake = types.ModuleType("cudnn")
    fake.pygraph = FakeGraph
    fake.data_type = names(BFLOAT16="bf16", HALF="half", FLOAT="float", INT32="int32", INT64="int64")
    fake.heur_mode = names(A="A", FALLBACK="FALLBACK")
    fake.diagonal_alignment = names(TOP_LEFT="top left", BOTTOM_RIGHT="bottom right")
    fake.set_stream = lambda handle, stream: None
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    monkeypatch.setattr(cudnn_graph, "_handle", lambda index: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: names(cuda_stream=0))


def graph_of(case, backward=False):
    inputs = make_inputs(case, "cpu")
    operation = registry.create("cudnn").prepare(inputs)
    FakeGraph.problem = inputs.problem
    operation.forward_kernel()
    if backward:
        operation.backward_kernel()
    graphs = list(operation._kernels.graphs.values())
    return graphs[-1]._graph, operation


@pytest.mark.parametrize("name", ["causal", "gqa", "cross", "broadcast_q"])
def test_matches_the_oracle(name):
    inputs = make_inputs(CASES[name], "cpu")
    FakeGraph.problem = inputs.problem
    operation = registry.create("cudnn").prepare(inputs)
    operation.forward_kernel()
    operation.backward_kernel()
    operation.forward_operation()
    operation.backward_operation()
    for scope in ("kernel", "operation"):
        assert_close(operation.outputs(scope), inputs)
    assert operation.impl["fwd"] == ("thd/expanded/backend" if name == "broadcast_q" else "thd/backend")


def test_layouts_and_offsets():
    case = CASES["gqa"]  # 4 and 2 heads of 32, lengths 30, 0, 17, 1
    graph, _ = graph_of(case, backward=True)
    tensors = graph.tensors
    assert tensors[Port.Q].dim == [4, 4, 30, 32]
    assert tensors[Port.Q].stride == [30 * 128, 32, 128, 1]
    assert tensors[Port.K].dim == [4, 2, 30, 32]
    assert tensors[Port.STATS].dim == [4, 4, 30, 1]
    assert tensors[Port.STATS].stride == [30 * 4, 1, 4, 1]
    assert tensors[Port.STATS].data_type == "float"
    assert tensors[Port.Q].ragged_offset is tensors[Port.DOUT].ragged_offset
    assert tensors[Port.K].ragged_offset is tensors[Port.V].ragged_offset
    offsets = {port: graph.pack[tensors[port].ragged_offset.uid].flatten().tolist()
               for port in (Port.Q, Port.K, Port.STATS)}
    assert offsets[Port.Q] == [0, 30 * 128, 30 * 128, 47 * 128, 48 * 128]
    assert offsets[Port.K] == [0, 30 * 64, 30 * 64, 47 * 64, 48 * 64]
    assert offsets[Port.STATS] == [0, 30 * 4, 30 * 4, 47 * 4, 48 * 4]
    assert graph.pack[Port.LENGTHS_Q].flatten().tolist() == [30, 0, 17, 1]
    assert graph.attributes["max_total_seq_len_q"] == 64
    assert [tensor.uid for tensor in graph.outputs] == [Port.DQ, Port.DK, Port.DV]


@pytest.mark.parametrize(("name", "mask", "expected"), [
    ("self", FULL, (None, None, None)),
    ("self", CAUSAL, ("top left", None, 0)),
    ("cross", CAUSAL, ("bottom right", None, 0)),
    ("cross", Mask(7, 2), ("bottom right", 8, 2)),
])
def test_masks(name, mask, expected):
    for backward in (False, True):
        graph, _ = graph_of(replace(CASES[name], mask=mask), backward)
        attributes = [graph.attributes.get(key) for key in
                      ("diagonal_alignment", "diagonal_band_left_bound", "diagonal_band_right_bound")]
        assert tuple(attributes) == expected
        assert graph.attributes["use_padding_mask"] is True


def test_strides_are_declared_or_refused():
    graph, operation = graph_of(CASES["strided"])  # q, k and v are slices of one [total, 3, H, D]
    assert graph.tensors[Port.Q].stride == [30 * 192, 32, 192, 1]
    with pytest.raises(Unsupported, match="dout has 2"):
        operation.backward_kernel()


def test_wide_offsets_are_int64():
    problem = make_problem(make_case("self", FULL, [2**24] * 3, [2**24] * 3, heads=(4, 1)), "cpu")
    bounds = Bounds(problem)
    assert bounds.offset(False, 128).dtype == torch.int64
    assert bounds.offset(False, 128)[-1].item() == 3 * 2**31
    assert bounds.offset(True, 32).dtype == torch.int32
    strides = {port: (heads * 32, 32, 1) for port, heads in
               ((Port.Q, 4), (Port.K, 1), (Port.V, 1), (Port.OUT, 4))} | {Port.STATS: (4, 1, 1)}
    tensors = RaggedGraph(problem, strides, backward=False)._graph.tensors
    assert tensors[Port.Q].ragged_offset.data_type == "int64"
    assert tensors[Port.K].ragged_offset.data_type == "int32"


def test_graphs_are_kept_for_the_next_preparation_of_a_case():
    backend = registry.create("cudnn")
    inputs = make_inputs(CASES["self"], "cpu")
    FakeGraph.problem = inputs.problem
    first = backend.prepare(inputs)
    first.forward_kernel()
    assert backend.prepare(inputs)._kernels.graphs is first._kernels.graphs
    assert not backend.prepare(make_inputs(CASES["causal"], "cpu"))._kernels.graphs


def test_outputs_have_room_for_whole_tiles():
    kernels = Kernels(make_problem(CASES["self"], "cpu"), {})
    out = kernels._empty(Port.OUT)
    assert out.shape == (48, 2, 32)
    assert out.untyped_storage().nbytes() == 64 * 2 * 32 * 2


def test_declines(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    device, backend = torch.device("cuda"), registry.create("cudnn")
    assert backend.declines(CASES["cross_window"], "bwd", device) is None
    assert "multiple of 8" in backend.declines(make_case("self", FULL, [3], [3], head_dim=12), "fwd", device)
    assert "empty" in backend.declines(CASES["no_keys"], "fwd", device)
