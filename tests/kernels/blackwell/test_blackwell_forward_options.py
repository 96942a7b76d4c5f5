"""The Blackwell forward's options, what they refuse, requests from configs, and which problems and devices it takes."""

from dataclasses import replace

import pytest
import torch
from hopper.forward_cases import MASKS, problem

from kernels import dispatch
from kernels.blackwell import IMPLEMENTATION
from kernels.blackwell.options import (
    HEAD_DIMS,
    SCHEDULES,
    SMEM_PER_CTA,
    BlackwellForwardOptions,
    BlackwellForwardRequest,
    make_request,
    resolve_forward,
)


def describe(case, **how):
    return IMPLEMENTATION.describe(case, "fwd", **how)


def test_default_has_three_slots_at_128_and_six_at_64_and_fills_tensor_memory():
    options = BlackwellForwardOptions()
    assert [options.slots(dim) for dim in (128, 64)] == [3, 6]
    assert [options.tmem_columns(dim) for dim in (128, 64)] == [512, 384]
    assert all(options.shared_memory(dim) + 1024 <= SMEM_PER_CTA and options.why_not(dim) is None for dim in HEAD_DIMS)


@pytest.mark.parametrize(("changes", "word"), [
    ({"schedule": "dynamic"}, "schedule: 'dynamic'"),
    ({"kv_slots": 2}, "kv_slots: expected 0 or at least 3"),
    ({"kv_slots": 4}, "kv_slots 4 needs 263,168 bytes"),
    ({"p_slices": 3}, "p_slices"),
    ({"emulated_exp2": 3}, "emulated_exp2"),
    ({"emulated_exp2": 18}, "emulated_exp2"),
    ({"section_mb": -1}, "section_mb"),
    ({"alias_tmem": False}, "alias_tmem off needs 640 columns"),
])
def test_refusals_name_the_switch(changes, word):
    assert word in replace(BlackwellForwardOptions(), **changes).why_not(128)


def test_switches_that_only_a_small_head_has_room_for():
    for changes in ({"alias_tmem": False}, {"kv_slots": 8}):
        assert replace(BlackwellForwardOptions(), **changes).why_not(64) is None
    assert "96" in BlackwellForwardOptions().why_not(96)


def test_forward_refuses_what_cannot_run_before_it_launches():
    from kernels.blackwell.forward import forward

    case = problem([3], [3])
    q, k, v = (torch.zeros(shape, dtype=case.dtype) for shape in (case.q_shape, case.kv_shape, case.kv_shape))
    with pytest.raises(ValueError, match="Blackwell forward: alias_tmem"):
        forward(case, q, k, v, BlackwellForwardOptions(alias_tmem=False))


def test_masked_tiles_are_drawn_others_dealt():
    assert describe(problem([5], [5])) == "blackwell/zigzag"
    assert {describe(problem([5], [5], mask=MASKS[mask])) for mask in MASKS if mask != "full"} == {"blackwell/clc"}


def test_requests():
    request = make_request({"skip_rescale": False, "p_slices": 1, "schedule": "sorted"})
    assert request == BlackwellForwardRequest((("p_slices", 1), ("schedule", "sorted"), ("skip_rescale", False)))
    case = problem([5], [5])
    assert describe(case, options=request) == "blackwell/sorted+p_slices=1+skip_rescale=False"
    assert describe(case, options=request, schedule="clc").startswith("blackwell/clc+")
    assert resolve_forward(case, None, BlackwellForwardOptions(p_slices=4)) == BlackwellForwardOptions(p_slices=4)
    assert {resolve_forward(case, name).schedule for name in SCHEDULES} == set(SCHEDULES)
    with pytest.raises(ValueError, match="schedule: expected one of"):
        resolve_forward(case, "best")


@pytest.mark.parametrize(("values", "message"), [
    ({"warp_speed": True}, "warp_speed: no such switch .*skip_rescale"),
    ({"skip_rescale": 1}, "skip_rescale: expected bool, got 1"),
    ({"schedule": "dynamic"}, "schedule: expected one of none, sorted, zigzag, clc"),
])
def test_bad_requests_say_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        make_request(values)


def test_each_gpu_gets_its_own_kernels(monkeypatch):
    for capability, wanted in (((10, 0), "blackwell"), ((9, 0), "hopper"), ((8, 0), "portable")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        for direction in ("fwd", "bwd"):
            assert dispatch.choose(problem([5], [5]), direction, torch.device("cuda")).implementation.name == wanted
    assert "sm_80" in IMPLEMENTATION.declines(problem([5], [5]), "fwd", torch.device("cuda"))
    assert "cpu" in IMPLEMENTATION.declines(problem([5], [5]), "fwd", torch.device("cpu"))
