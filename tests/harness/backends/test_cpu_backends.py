"""`padded` and `sdpa_loop`, which are timed on CPUs, against the oracle in both scopes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from small_cases import CASES, FULL, assert_close, make_case

from harness.backends import registry
from harness.inputs import make_inputs

CPU = torch.device("cpu")


def run_all(operation):
    operation.forward_kernel()
    operation.backward_kernel()
    operation.forward_operation()
    operation.backward_operation()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("key", ["padded", "sdpa_loop"])
def test_matches_the_oracle(key, case):
    inputs = make_inputs(case, "cpu")
    backend = registry.create(key)
    assert backend.availability(CPU).available
    assert "cpu" in backend.timed_on
    assert backend.declines(case, "fwd", CPU) is None
    operation = backend.prepare(inputs)
    run_all(operation)
    for scope in ("kernel", "operation"):
        assert_close(operation.outputs(scope), inputs)


@pytest.mark.parametrize("key", ["padded", "sdpa_loop"])
def test_backwards_can_be_repeated(key):
    inputs = make_inputs(CASES["causal"], "cpu")
    operation = registry.create(key).prepare(inputs)
    run_all(operation)
    first = [operation.outputs(scope).dk.clone() for scope in ("kernel", "operation")]
    operation.backward_kernel()
    operation.backward_operation()
    for before, scope in zip(first, ("kernel", "operation"), strict=True):
        torch.testing.assert_close(operation.outputs(scope).dk, before, atol=0, rtol=0)


@pytest.mark.parametrize("key", ["padded", "sdpa_loop", "jfa_triton"])
def test_nothing_outlives_an_operation(key):
    inputs = make_inputs(CASES["broadcast_q"], "cpu")
    operation = registry.create(key).prepare(inputs)
    run_all(operation)
    kept = weakref.ref(operation)
    tensor = weakref.ref(operation.outputs("operation").out)
    gc.disable()
    try:
        del operation
        assert kept() is None
        assert tensor() is None
    finally:
        gc.enable()


def test_outputs_are_the_kernel_scopes_where_both_ran():
    inputs = make_inputs(CASES["self"], "cpu")
    operation = registry.create("padded").prepare(inputs)
    with pytest.raises(RuntimeError, match="forward_kernel"):
        operation.outputs("kernel")
    operation.forward_operation()
    assert operation.outputs().out is not None
    assert operation.outputs().dq is None
    operation.forward_kernel()
    operation.backward_kernel()
    assert operation.outputs().dq is not None
    assert operation.outputs("operation").dq is None


def test_padded_declines_what_no_memory_holds():
    lengths = [1_000_000] + [1] * 4096
    case = make_case("self", FULL, lengths, lengths, heads=(8, 8), head_dim=64)
    reason = registry.create("padded").declines(case, "bwd", CPU)
    assert reason is not None
    assert "padded tensors need" in reason
    assert registry.create("sdpa_loop").declines(case, "bwd", CPU) is None
