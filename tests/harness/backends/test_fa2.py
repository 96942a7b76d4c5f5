"""`varlen_attn` of different torch versions: which arguments it is given."""

from __future__ import annotations

import pytest
import torch
from reference_rival import attend
from small_cases import CASES, CAUSAL, FULL, assert_close, make_case

from harness.backends import fa2, registry
from harness.inputs import make_inputs
from kernels.mask import Mask


@pytest.fixture
def varlen_attn(monkeypatch):
    """Puts a fake in place whose parameters are those of torch 2.10, 2.11 or 2.13."""

    def install(problem, version):
        calls = []

        def record(q, k, v, *positional, **arguments):
            calls.append((positional, arguments))
            return attend(problem, q, k, v)

        if version == "2.10":
            def fake(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
                return record(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=is_causal)
        elif version == "2.11":
            def fake(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
                     window_size=(-1, -1)):
                return record(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale,
                              window_size=window_size)
        else:
            def fake(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
                     window_size=(-1, -1), enable_gqa=False):
                return record(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale,
                              window_size=window_size, enable_gqa=enable_gqa)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", fake)
        fa2._parameters.cache_clear()
        return calls

    yield install
    monkeypatch.undo()
    fa2._parameters.cache_clear()


@pytest.mark.parametrize(("version", "expected"), [
    ("2.10", {"is_causal": True}),
    ("2.11", {"scale": 32**-0.5, "window_size": (-1, 0)}),
    ("2.13", {"scale": 32**-0.5, "window_size": (-1, 0), "enable_gqa": True}),
])
def test_arguments_follow_the_version(varlen_attn, version, expected):
    inputs = make_inputs(CASES["gqa"], "cpu")
    calls = varlen_attn(inputs.problem, version)
    operation = registry.create("fa2").prepare(inputs)
    operation.forward_operation()
    operation.backward_operation()
    positional, arguments = calls[0]
    assert arguments == expected
    assert positional[2:] == (30, 30)
    assert_close(operation.outputs("operation"), inputs)


def test_a_shared_q_is_expanded(varlen_attn):
    inputs = make_inputs(CASES["broadcast_q"], "cpu")
    varlen_attn(inputs.problem, "2.13")
    operation = registry.create("fa2").prepare(inputs)
    operation.forward_operation()
    operation.backward_operation()
    assert_close(operation.outputs("operation"), inputs)
    assert operation.impl["bwd"] == "varlen/expanded"


def test_blind_queries_have_an_lse_of_minus_infinity():
    operation = registry.create("fa2").prepare(make_inputs(CASES["self"], "cpu"))
    lse = operation.packed_lse(torch.tensor([[1.0, float("inf")]]))
    assert lse.tolist() == [[1.0, float("-inf")]]


def test_declines(monkeypatch, varlen_attn):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    device, backend = torch.device("cuda"), registry.create("fa2")
    window = make_case("self", Mask(4, 0), [3], [3])
    varlen_attn(None, "2.11")
    assert backend.declines(window, "fwd", device) is None
    assert "multiple of 8" in backend.declines(make_case("self", FULL, [3], [3], head_dim=264), "fwd", device)
    varlen_attn(None, "2.10")
    assert "has no window_size" in backend.declines(window, "fwd", device)
    assert backend.declines(make_case("self", CAUSAL, [3], [3]), "fwd", device) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "8.0" in backend.declines(window, "fwd", device)
