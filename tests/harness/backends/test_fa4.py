"""FlashAttention-4 behind a fake of its interface: arguments, encodings, trial, scopes."""

from __future__ import annotations

import types

import pytest
import torch
from reference_rival import PackedReference, attend
from small_cases import CASES, CAUSAL, FULL, assert_close, make_case

from harness.backends import fa4, registry
from harness.backends.base import Unsupported
from harness.inputs import make_inputs
from kernels.mask import Mask


class FakeInterface:
    """`flash_attn.cute.interface` that computes with the oracle; ``fails`` are the calls that an encoding refuses."""

    def __init__(self, problem, fails=()):
        self.problem, self.fails = problem, set(fails)
        self.reference = PackedReference(problem)
        self.calls = []

    def _note(self, name, q, arguments):
        self.calls.append((name, "dense_q" if q.ndim == 4 else "varlen", arguments))
        assert ("cu_seqlens_q" in arguments) == (q.ndim == 3)
        if self.calls[-1][:2] in self.fails:
            raise AssertionError("_compute_tile_cumsum requires num_m_blocks")

    def _packed(self, tensor):
        return tensor.flatten(0, 1) if tensor.ndim == 4 else tensor

    def _flash_attn_fwd(self, q, k, v, scheduler_metadata=None, **arguments):
        self._note("fwd", q, arguments | {"scheduler_metadata": scheduler_metadata})
        out, lse = self.reference.forward(self._packed(q), k, v)
        if q.ndim == 4:
            lse = lse.unflatten(1, q.shape[:2]).transpose(0, 1)
        return out.reshape(q.shape), lse, None, None, None

    def _flash_attn_bwd(self, q, k, v, out, dout, lse, **arguments):
        self._note("bwd", q, arguments)
        assert out.shape == dout.shape == q.shape
        dq, dk, dv = self.reference.backward(self._packed(q), k, v, self._packed(dout))
        return dq.reshape(q.shape), dk, dv

    def flash_attn_varlen_func(self, q, k, v, **arguments):
        self._note("operation", q, arguments)
        return attend(self.problem, self._packed(q), k, v).reshape(q.shape), None

    def get_scheduler_metadata(self, **arguments):
        self.calls.append(("metadata", "varlen", arguments))
        return (None, torch.zeros(1))


@pytest.fixture
def prepare(monkeypatch):
    """``(operation, interface)`` of a case; trials take ``times`` in ms by encoding."""

    def make(case, options=None, fails=(), times=(2.0, 1.0)):
        inputs = make_inputs(case, "cpu")
        interface = FakeInterface(inputs.problem, fails)
        monkeypatch.setattr(fa4, "_interface", lambda: interface)

        def milliseconds(run):
            run()
            return times[1 if interface.calls[-1][1] == "dense_q" else 0]

        monkeypatch.setattr(fa4, "_milliseconds", milliseconds)
        backend = registry.create("fa4", options)
        return backend.prepare(inputs), interface, inputs, backend

    return make


def run_all(operation):
    operation.forward_kernel()
    operation.backward_kernel()
    operation.forward_operation()
    operation.backward_operation()


@pytest.mark.parametrize("name", ["causal", "window", "gqa", "cross", "broadcast_q"])
def test_matches_the_oracle(prepare, name):
    operation, _, inputs, _ = prepare(CASES[name])
    run_all(operation)
    for scope in ("kernel", "operation"):
        assert_close(operation.outputs(scope), inputs)


def test_masks_and_lengths_are_passed(prepare):
    for mask, causal in ((FULL, False), (CAUSAL, True), (Mask(5, 0), True), (Mask(5, 3), False)):
        operation, interface, inputs, _ = prepare(make_case("self", mask, [30, 4], [30, 4]))
        run_all(operation)
        arguments = {name: arguments for name, _, arguments in interface.calls}
        for name in ("fwd", "bwd"):
            assert arguments[name]["causal"] == causal
            assert arguments[name]["window_size_left"] == mask.left
            assert arguments[name]["window_size_right"] == mask.right
        assert arguments["operation"]["window_size"] == (mask.left, mask.right)
        for call in ("fwd", "bwd", "operation"):
            assert arguments[call]["max_seqlen_q"] == 30
            assert arguments[call]["cu_seqlens_k"] is inputs.problem.layout_k.cu_seqlens


def test_metadata_is_made_once_and_only_for_the_kernel_scope(prepare):
    operation, interface, _, _ = prepare(CASES["causal"])
    run_all(operation)
    operation.forward_kernel()
    made = [arguments for name, _, arguments in interface.calls if name == "metadata"]
    assert len(made) == 1
    assert "causal" not in made[0]
    assert [arguments["scheduler_metadata"] is not None for name, _, arguments in interface.calls if name == "fwd"] \
        == [True, True]
    operation, interface, _, _ = prepare(CASES["causal"], {"scheduler_metadata": "none"})
    operation.forward_kernel()
    assert [name for name, _, _ in interface.calls] == ["fwd"]
    operation, interface, _, _ = prepare(CASES["causal"], {"scheduler_metadata": "dynamic"})
    operation.forward_kernel()
    assert interface.calls[0][2]["causal"] is True


def test_the_faster_encoding_is_taken(prepare):
    operation, _, _, _ = prepare(CASES["broadcast_q"], times=(2.0, 1.0))
    run_all(operation)
    assert operation.impl == {"fwd": "dense_q/expand", "bwd": "dense_q/expand"}
    assert operation.remarks["fwd"] == "in a trial varlen/expanded takes 2 ms, dense_q/expand takes 1 ms"
    operation, _, _, _ = prepare(CASES["broadcast_q"], times=(1.0, 2.0))
    operation.forward_operation()
    assert operation.impl == {"fwd": "varlen/expanded", "bwd": ""}


def test_an_encoding_that_fails_in_one_direction_serves_the_other(prepare):
    operation, interface, inputs, _ = prepare(CASES["broadcast_q"], fails=[("bwd", "dense_q")])
    run_all(operation)
    assert operation.impl == {"fwd": "dense_q/expand", "bwd": "varlen/expanded"}
    assert "dense_q/expand fails (AssertionError: _compute_tile_cumsum" in operation.remarks["bwd"]
    for scope in ("kernel", "operation"):
        assert_close(operation.outputs(scope), inputs)
    before = len(interface.calls)
    operation.backward_kernel()
    assert [call[0] for call in interface.calls[before:]] == ["bwd"]


def test_the_trial_is_remembered_for_the_case(prepare):
    operation, interface, inputs, backend = prepare(CASES["broadcast_q"])
    operation.forward_kernel()
    before = len(interface.calls)
    again = backend.prepare(inputs)
    again.forward_kernel()
    assert [call[:2] for call in interface.calls[before:]] == [("fwd", "dense_q")]
    assert again.remarks["fwd"] == operation.remarks["fwd"]


def test_a_forced_encoding_is_not_tried_against_others(prepare):
    operation, interface, _, _ = prepare(CASES["broadcast_q"], {"encoding": "varlen"})
    run_all(operation)
    assert {call[1] for call in interface.calls} == {"varlen"}
    assert operation.remarks == {"fwd": "", "bwd": ""}
    operation, _, _, _ = prepare(CASES["broadcast_q"], {"encoding": "dense_q"}, fails=[("bwd", "dense_q")])
    operation.forward_kernel()
    with pytest.raises(Unsupported, match="_compute_tile_cumsum"):
        operation.backward_kernel()


def test_what_no_encoding_takes_is_unsupported(prepare):
    operation, _, _, _ = prepare(CASES["broadcast_q"], fails=[("fwd", "dense_q"), ("fwd", "varlen")])
    with pytest.raises(Unsupported, match="_compute_tile_cumsum"):
        operation.forward_kernel()


@pytest.mark.parametrize(("capability", "direction", "head_dim", "reason"), [
    ((9, 0), "bwd", 128, None),
    ((9, 0), "fwd", 192, None),
    ((10, 0), "fwd", 192, "up to 128, or 256"),
    ((10, 0), "fwd", 256, None),
    ((9, 0), "fwd", 100, "multiple of 8"),
    ((8, 0), "fwd", 64, None),
    ((8, 0), "bwd", 64, "needs compute capability 9.0"),
    ((7, 5), "fwd", 64, "needs compute capability 8.0"),
])
def test_declines(monkeypatch, capability, direction, head_dim, reason):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    case = make_case("self", FULL, [3], [3], head_dim=head_dim)
    got = registry.create("fa4").declines(case, direction, torch.device("cuda"))
    assert got is None if reason is None else reason in got


def test_a_version_without_metadata_is_called_without(prepare, monkeypatch):
    operation, interface, inputs, _ = prepare(CASES["self"])

    def old_forward(q, k, v, **arguments):
        return interface._flash_attn_fwd(q, k, v, **arguments)[:2]

    monkeypatch.setattr(fa4, "_interface", lambda: types.SimpleNamespace(_flash_attn_fwd=old_forward))
    operation.forward_kernel()
    assert interface.calls[-1][2]["scheduler_metadata"] is None
    assert operation.outputs().out.shape == inputs.problem.out_shape
