"""The Hopper forward's options, what they refuse, requests from configs, and the selection rule."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forward_cases import ALL, MASKS, problem

from kernels.hopper import IMPLEMENTATION, resolve_forward
from kernels.hopper.options import VARIANTS, HopperForwardOptions, HopperForwardRequest, make_request
from kernels.hopper.select import MASKED_SECTION_MB, select_forward
from kernels.mask import Mask

RANDOM = np.random.default_rng(0)
UNIFORM = {top: RANDOM.integers(1, top + 1, 1152) for top in (256, 512, 1024, 2048)}
LOGNORMAL = np.clip(np.rint(RANDOM.lognormal(4, 1.2, 4096)), 1, 8192).astype(int)

# lengths of Q (an int: broadcast) and K, head dimension, mask, what the rule selects
ROWS = {
    "u256": (UNIFORM[256], UNIFORM[256], 128, "full", "solo64-stale/zigzag"),
    "u512": (UNIFORM[512], UNIFORM[512], 128, "full", "solo64-stale/zigzag"),
    "u1024": (UNIFORM[1024], UNIFORM[1024], 128, "full", "pair128-stale/zigzag"),
    "mean 384": ([384] * 1152, [384] * 1152, 128, "full", "pair128-stale/zigzag"),
    "u1024 causal": (UNIFORM[1024], UNIFORM[1024], 128, "causal", "duo64-stale/dynamic"),
    "u1024 right": (UNIFORM[1024], UNIFORM[1024], 128, "right", "duo64-stale/dynamic"),
    "u1024 window": (UNIFORM[1024], UNIFORM[1024], 128, "window", "solo64-stale/dynamic"),
    "u1024 left": (UNIFORM[1024], UNIFORM[1024], 128, "left", "solo64-stale/dynamic"),
    "u2048 causal": (UNIFORM[2048], UNIFORM[2048], 128, "causal", "pair128-stale/dynamic"),
    "3000 window": ([3000] * 64, [3000] * 64, 128, "window", "pair128-stale/dynamic"),
    "u256 causal": (UNIFORM[256], UNIFORM[256], 128, "causal", "solo64-stale/dynamic"),
    "u2048": (UNIFORM[2048], UNIFORM[2048], 128, "full", "pair128-stale/zigzag"),
    "all 1024": ([1024] * 1152, [1024] * 1152, 128, "full", "pair128-stale/zigzag"),
    "full": ([3900] * 512, [3900] * 512, 128, "full", "pair128-stale/zigzag"),
    "short kv": (UNIFORM[2048], [256] * 1152, 128, "full", "trio64-stale/zigzag"),
    "half-long q, short kv": (UNIFORM[512], [256] * 1152, 128, "full", "solo64-stale/zigzag"),
    "broadcast 32": (32, UNIFORM[1024], 128, "full", "solo64-stale/zigzag"),
    "broadcast 192": (192, UNIFORM[2048], 128, "full", "trio64-stale/zigzag"),
    "lognormal": (LOGNORMAL, LOGNORMAL, 128, "full", "solo64-stale/zigzag"),
    "dense": ([4096] * 4, [4096] * 4, 128, "full", "pair128-stale/zigzag"),
    "dense causal": ([4096] * 4, [4096] * 4, 128, "causal", "pair128-stale/dynamic"),
    "d64": (UNIFORM[1024], UNIFORM[1024], 64, "full", "tri64c-stale/dynamic"),
    "d64 causal": (UNIFORM[1024], UNIFORM[1024], 64, "causal", "tri64c-stale/dynamic"),
    "d64 window": (UNIFORM[1024], UNIFORM[1024], 64, "window", "tri64c-stale/dynamic"),
}


def describe(case, **how):
    return IMPLEMENTATION.describe(case, "fwd", **how)


@pytest.mark.parametrize("name", ROWS)
def test_selection(name):
    len_q, len_k, dim, mask, expected = ROWS[name]
    assert describe(problem(len_q, len_k, 4, 4, dim=dim, mask=MASKS[mask])) == f"hopper/{expected}"


def test_only_masked_problems_keep_the_heads_of_long_sequences_together():
    causal, full = (select_forward(problem([4096] * 4, [4096] * 4, mask=MASKS[mask])) for mask in ("causal", "full"))
    assert (causal.section_mb, full.section_mb) == (MASKED_SECTION_MB, VARIANTS["pair128"].section_mb)
    assert MASKED_SECTION_MB == 40


@pytest.mark.parametrize("lengths", [[], [0, 0], [1], [100_000]])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dim", [64, 128])
def test_what_is_selected_can_run(lengths, mask, dim):
    case = problem(lengths, lengths, 8, 2, dim=dim, mask=MASKS[mask])
    assert select_forward(case).why_not(dim, case.mask) is None


def test_every_variant_runs_at_some_head_dim_and_every_switched_one_without_mask():
    for name, options in ALL.items():
        assert None in [options.why_not(dim, Mask()) for dim in (64, 128)], name


@pytest.mark.parametrize(("changes", "word"), [
    ({"block_n": 96}, "block_n"),
    ({"consumer_groups": 4}, "consumer_groups"),
    ({"consumer_groups": 2, "streams": 3}, "consumer_groups"),
    ({"loader_warps": 2}, "loader_warps"),
    ({"streams": 2, "ctas_per_sm": 1, "loader_warps": 4}, "loader_warps"),
    ({"ctas_per_sm": 4}, "ctas_per_sm"),
    ({"consumer_groups": 2}, "ctas_per_sm"),
    ({"k_buffers": 0}, "k_buffers"),
    ({"ping_pong": True}, "ping_pong"),
    ({"o_in_v": True, "v_buffers": 1}, "v_buffers"),
    ({"o_in_v": True, "block_n": 128, "k_buffers": 1}, "block_n"),
    ({"consumer_groups": 2, "ctas_per_sm": 1, "o_in_v": True}, "o_in_v"),
    ({"o_in_q": True}, "q_buffers"),
    ({"o_in_q": True, "o_in_v": True}, "o_in_v"),
    ({"o_in_q": True, "q_buffers": 2, "prefetch_next_tile": False}, "prefetch_next_tile"),
    ({"apart": True}, "apart"),
    ({"consumer_groups": 2, "ctas_per_sm": 1, "apart": True, "ping_pong": True}, "apart"),
    ({"prefetch_next_tile": False, "q_buffers": 2}, "prefetch_next_tile"),
    ({"section_mb": -1}, "section_mb"),
    ({"schedule": "best"}, "schedule"),
    ({"ctas_per_sm": 3}, "head_dim 64"),
    ({"k_buffers": 4}, "shared memory"),
])
def test_refusals_name_the_switch(changes, word):
    assert word in replace(HopperForwardOptions(), **changes).why_not(128, Mask())


def test_three_workers_with_a_left_bound_are_refused_where_they_would_spill():
    assert "left bound" in VARIANTS["tri64"].why_not(128, MASKS["window"])
    assert "left bound" in VARIANTS["trio64"].why_not(128, MASKS["window"])
    assert VARIANTS["tri64"].why_not(64, MASKS["window"]) is None


def test_other_head_dims_are_refused():
    assert "96" in HopperForwardOptions().why_not(96, Mask())


def test_forward_refuses_what_cannot_run_before_it_launches():
    from kernels.hopper.forward import forward

    case = problem([3], [3])
    tensors = [torch.zeros(shape, dtype=case.dtype) for shape in (case.q_shape, case.kv_shape, case.kv_shape)]
    with pytest.raises(ValueError, match=r"variant tri64c: .*head_dim 64"):
        forward(case, *tensors, VARIANTS["tri64c"])


def test_requests():
    request = make_request({"variant": "pair128", "ping_pong": False, "section_mb": 0})
    assert request == HopperForwardRequest("pair128", (("ping_pong", False), ("section_mb", 0)))
    case = problem([5], [5])
    assert describe(case, options=request) == "hopper/pair128-stale/zigzag+ping_pong=False+section_mb=0"
    assert describe(case, options=request, schedule="none").startswith("hopper/pair128-stale/none+")
    assert resolve_forward(case, None, VARIANTS["trio64"]) is VARIANTS["trio64"]


@pytest.mark.parametrize(("values", "message"), [
    ({"variant": "octo"}, "variant: expected one of solo64, .*'octo'"),
    ({"warp_speed": True}, "warp_speed: no such switch .*ping_pong"),
    ({"ping_pong": 1}, "ping_pong: expected bool, got 1"),
    ({"schedule": "best"}, "schedule: expected one of none, sorted, zigzag, dynamic"),
])
def test_bad_requests_say_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        make_request(values)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule: expected one of"):
        resolve_forward(problem([5], [5]), "best")


@pytest.mark.parametrize(("change", "word"), [
    ({"dim": 96}, "head_dim 96"), ({"dtype": torch.float32}, "float32")])
def test_problems_it_declines(change, word, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    case = problem([5], [5], **change)
    assert word in IMPLEMENTATION.declines(case, "fwd", torch.device("cuda"))
    assert IMPLEMENTATION.declines(problem([5], [5]), "fwd", torch.device("cuda")) is None


def test_devices_it_declines(monkeypatch):
    assert "cpu" in IMPLEMENTATION.declines(problem([5], [5]), "fwd", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert "sm_100" in IMPLEMENTATION.declines(problem([5], [5]), "fwd", torch.device("cuda"))
