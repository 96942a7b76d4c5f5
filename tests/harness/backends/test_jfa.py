"""Our own kernels as backends, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from small_cases import CASES, CAUSAL, assert_close, make_case

from harness.backends import jfa, registry
from harness.backends.base import Unsupported
from harness.errors import UserError
from harness.inputs import make_inputs
from kernels import dispatch

TILES = {"BLOCK_M": 16, "BLOCK_N": 16}


@pytest.mark.parametrize("name", ["causal", "cross_window", "broadcast_q", "strided"])
def test_portable_matches_the_oracle(name, device):
    inputs = make_inputs(CASES[name], device)
    backend = registry.create("jfa_triton")
    assert backend.availability(device).available
    assert "cpu" not in backend.timed_on
    assert backend.declines(CASES[name], "bwd", device) is None
    operation = backend.prepare(inputs)
    operation.forward_kernel()
    operation.backward_kernel()
    operation.forward_operation()
    operation.backward_operation()
    for scope in ("kernel", "operation"):
        assert_close(operation.outputs(scope), inputs)
    assert operation.outputs("operation").lse is not None
    assert all(token.startswith("portable") for token in operation.impl.values())
    assert operation.remarks == {"fwd": "", "bwd": ""}


def test_switches_reach_the_kernels(device):
    inputs = make_inputs(CASES["self"], device)
    operation = registry.create("jfa_triton", {"fwd": TILES, "bwd": {"dkdv": TILES, "dq": TILES}}).prepare(inputs)
    operation.forward_operation()
    operation.backward_operation()
    assert operation.impl["fwd"].startswith("portable/16x16")
    assert_close(operation.outputs("operation"), inputs)


def test_auto_says_why_it_falls_back():
    case = make_case("self", CAUSAL, [5, 3], [5, 3], head_dim=96)
    operation = registry.create("jfa").prepare(make_inputs(case, "cpu"))
    assert operation.impl["fwd"].startswith("portable")
    assert "; hopper: " in operation.remarks["fwd"]


def test_a_schedule_under_auto_is_left_out_where_it_is_unknown():
    inputs = make_inputs(CASES["self"], "cpu")
    operation = registry.create("jfa", {"schedule": "zigzag"}).prepare(inputs)
    operation.forward_kernel()
    operation.backward_kernel()
    assert_close(operation.outputs("kernel"), inputs)
    for remark in operation.remarks.values():
        assert "; hopper: " in remark
        assert remark.endswith("; portable has no schedule 'zigzag' and takes its own")


@pytest.mark.parametrize("options", [{"schedule": "zigzga"}, {"impl": "portable", "schedule": "zigzag"}])
def test_a_schedule_that_nobody_knows_is_an_error_of_the_options(options):
    with pytest.raises(UserError, match=f"schedule: expected .*none.* got '{options['schedule']}'"):
        registry.create("jfa", options)


def test_a_schedule_of_one_direction_leaves_the_other_unsupported():
    backend = registry.create("jfa", {"impl": "hopper", "schedule": "dynamic"})
    reason = backend.declines(CASES["self"], "bwd", torch.device("cpu"))
    assert reason == "schedule: expected None or one of none, sorted, zigzag (those of hopper's bwd), got 'dynamic'"
    assert "sm_90" in backend.declines(CASES["self"], "fwd", torch.device("cpu"))


def test_a_named_implementation_declines_with_its_reason(device):
    case = make_case("self", CAUSAL, [5, 3], [5, 3], head_dim=40)
    backend = registry.create("jfa_triton")
    for direction in ("fwd", "bwd"):
        assert backend.declines(case, direction, device) == "portable: head_dim 40 is not one of 32, 64, 96, 128"
    operation = backend.prepare(make_inputs(case, device))
    assert operation.impl == {"fwd": "", "bwd": ""}
    with pytest.raises(Unsupported, match="head_dim 40"):
        operation.forward_kernel()


def test_switches_that_a_case_cannot_have_are_a_reason_to_decline(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    backend = registry.create("jfa", {"impl": "hopper", "bwd": {"dq_stages": 1}})
    reasons = [backend.declines(make_case("self", CAUSAL, [5, 3], [5, 3], head_dim=dim), "bwd", torch.device("cuda"))
               for dim in (64, 128)]
    assert "at D = 64 only with kv_stages 1, dq_stages 2" in reasons[0]
    assert reasons[1] is None


@pytest.mark.parametrize("name", ["causal", "cross", "broadcast_q"])
def test_operation_scope_plans_anew_from_device_offsets(monkeypatch, name, device):
    calls = []

    def record(q, k, v, **arguments):
        calls.append(arguments)
        return q.new_zeros(inputs.problem.out_shape), None

    monkeypatch.setattr(jfa, "jagged_flash_attention", record)
    case = CASES[name]
    inputs = make_inputs(case, device)
    operation = registry.create("jfa_triton").prepare(inputs)
    operation.forward_operation()
    operation.forward_operation()
    layouts = [call["cu_seqlens_k"] for call in calls]
    assert len({id(layout) for layout in (*layouts, inputs.problem.layout_k)}) == 3
    call = calls[0]
    assert call["cu_seqlens_k"].cu_seqlens is inputs.problem.layout_k.cu_seqlens
    assert call["cu_seqlens_k"].max_seqlen == case.max_seqlen_k
    assert call["causal"] == (case.mask == CAUSAL)
    if case.broadcast_q:
        assert call["cu_seqlens_q"] is None
    else:
        assert (call["cu_seqlens_q"] is call["cu_seqlens_k"]) == (case.mode == "self")


def test_the_backward_plans_anew_in_operation_scope(monkeypatch, device):
    plans = []
    implementation = dispatch.load("portable")
    backward = type(implementation).backward

    def planning(self, problem, *args, **kwargs):
        problem.layout_k.cached("a plan", lambda: plans.append(1))
        return backward(self, problem, *args, **kwargs)

    monkeypatch.setattr(type(implementation), "backward", planning)
    operation = registry.create("jfa_triton").prepare(make_inputs(CASES["self"], device))
    operation.forward_operation()
    for _ in range(3):
        operation.backward_operation()
    assert len(plans) == 3
    operation.forward_kernel()
    for _ in range(3):
        operation.backward_kernel()
    assert len(plans) == 4
