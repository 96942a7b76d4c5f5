"""The shipped configs hold what they promise, and gem's case ids never change."""

from pathlib import Path

import numpy as np
import pytest

from harness.backends import registry
from harness.cases import HAZARDS, MODES, expand
from harness.config import load_config
from harness.flops import attention_flops

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ALL = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
# Committed results refer to these.
GEM_IDS = {
    "self_u256": "a38224f33a8a",
    "self_u512": "277fab20d243",
    "self_u1024": "8b42afaa63b6",
    "self_u2048": "21b643153061",
    "self_1024": "6d1f9cc6d396",
    "self_u1024_causal": "6a67e2a95aa6",
    "self_u1024_window256": "4e11f468e997",
    "self_u1024_gqa": "bb62a7e3e680",
    "self_u1024_d64": "57f47a2ece79",
    "self_long": "81f160231093",
    "self_lognormal": "a38175a59b70",
    "kv256_q_u512": "f1ec63d737fa",
    "kv256_q_u2048": "4c5cfe93093f",
    "bcast32_kv_u1024": "138072564959",
    "bcast192_kv_u2048": "2daecb65ea16",
    "dense_4x4096": "c1f25039dc9e",
}
GPU_BACKENDS = ["jfa", "jfa_triton", "fa4", "cudnn", "fa2", "flex", "padded"]


def cases(name):
    return {case.name: case for case in expand(load_config(CONFIGS / f"{name}.yaml"))}


@pytest.mark.parametrize("name", ALL)
def test_loads_expands_and_names_known_backends(name):
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config.name == name
    assert config.description
    assert expand(config)
    for backend in config.backends:
        assert backend.backend in registry.BACKENDS


@pytest.mark.parametrize("name", ALL)
def test_is_found_by_anyone_who_reads_the_ids(name):
    found = cases(name)
    assert len({case.case_id for case in found.values()}) == len(found)


def test_gem_is_these_cases():
    assert {name: case.case_id for name, case in cases("gem").items()} == GEM_IDS


def test_gem_measures_everything_on_every_gpu_backend():
    config = load_config(CONFIGS / "gem.yaml")
    assert [backend.name for backend in config.backends] == GPU_BACKENDS
    assert (config.directions, config.scopes) == (("fwd", "bwd"), ("kernel", "operation"))
    assert config.timing.cold_l2
    assert config.timing.min_samples >= 30


@pytest.mark.parametrize(("name", "batch", "heads", "head_dim", "pairs"), [
    ("self_u256", 1152, 4, 128, 256**2 / 3), ("self_u512", 1152, 4, 128, 512**2 / 3),
    ("self_u1024", 1152, 4, 128, 1024**2 / 3), ("self_u1024_causal", 1152, 4, 128, 1024**2 / 6),
    ("self_u1024_gqa", 1152, 8, 128, 1024**2 / 3), ("self_u1024_d64", 1152, 8, 64, 1024**2 / 3),
    ("self_u2048", 1152, 4, 128, 2048**2 / 3), ("self_1024", 1152, 4, 128, 1024**2),
    ("self_long", 512, 4, 128, (4096**3 - 3686**3) / 3 / (4096 - 3686)),
    ("self_lognormal", 4096, 4, 128, np.exp(2 * 4 + 2 * 1.2**2)),
    ("kv256_q_u512", 1152, 4, 128, 256 * 512 / 2), ("kv256_q_u2048", 1152, 4, 128, 256 * 2048 / 2),
    ("bcast32_kv_u1024", 1152, 4, 128, 32 * 1024 / 2), ("bcast192_kv_u2048", 1152, 4, 128, 192 * 2048 / 2),
    ("dense_4x4096", 4, 16, 128, 4096**2)])
def test_gem_draws_typical_lengths(name, batch, heads, head_dim, pairs):
    case = cases("gem")[name]
    assert (case.batch, case.num_heads_q, case.head_dim, case.dtype) == (batch, heads, head_dim, "bf16")
    expected = 4 * heads * head_dim * batch * pairs
    assert attention_flops(case, "fwd") == pytest.approx(expected, rel=0.25 if "lognormal" in name else 0.05)


def test_gem_has_a_window_and_shared_heads():
    gem = cases("gem")
    assert (gem["self_u1024_window256"].mask.left, gem["self_u1024_window256"].mask.right) == (256, 0)
    assert gem["self_u1024_gqa"].num_heads_kv == 2


def test_the_gate_is_ten_of_gems_cases():
    gate, gem = cases("gate"), cases("gem")
    assert len(gate) == 10
    assert {name: case.case_id for name, case in gate.items()} == {name: gem[name].case_id for name in gate}
    assert {case.mode for case in gate.values()} >= {"self", "short_kv", "broadcast_q"}
    assert [backend.name for backend in load_config(CONFIGS / "gate.yaml").backends] == ["jfa", "fa4"]


def test_smoke_covers_every_mode_and_stays_small():
    smoke = cases("smoke")
    assert {case.mode for case in smoke.values()} == set(MODES)
    assert {case.mask.is_full for case in smoke.values()} == {True, False}
    assert any(case.num_heads_kv < case.num_heads_q for case in smoke.values())
    assert all("cpu" in case.devices for case in smoke.values())
    assert sum(case.visible_pairs * case.num_heads_q for case in smoke.values()) < 500_000
    assert [backend.name for backend in load_config(CONFIGS / "smoke.yaml").backends] == [
        "sdpa_loop", "padded", "jfa_triton"]


def test_hstu_sweeps_the_density():
    found = [case for case in cases("hstu").values() if case.name.startswith("hstu_")
             and case.max_seqlen_q <= 1024 and case.head_dim == 128]
    densities = sorted(float(case.lengths_q.mean() / 1024) for case in found)
    assert densities == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], abs=0.06)
    assert all(case.mask.right == 0 for case in cases("hstu").values())


def test_longtail_is_long_tailed():
    for case in cases("longtail").values():
        assert case.lengths_k.mean() / case.max_seqlen_k < 0.2
    assert any((case.lengths_k == 0).mean() > 0.25 for case in cases("longtail").values())


def test_poison_covers_each_trap():
    poison = list(cases("poison").values())
    anywhere = [case for case in poison if "cpu" in case.devices]
    every = {
        "zero-length sequences": any((case.lengths_q == 0).any() and case.total_q for case in anywhere),
        "no rows at all": any(case.total_q == 0 and case.total_k == 0 for case in anywhere),
        "no keys": any(case.total_q and case.total_k == 0 for case in anywhere),
        "no queries": any(case.total_q == 0 and case.total_k for case in anywhere),
        "length one": any(case.max_seqlen_q == 1 and case.batch > 1 for case in anywhere),
        "tile edges": any({63, 64, 65, 127, 128, 129, 191, 193} <= set(case.lengths_q.tolist()) for case in anywhere),
        "one sequence": any(case.batch == 1 for case in anywhere),
        "4096 sequences": any(case.batch == 4096 for case in anywhere),
        "more than 256 sequences of a broadcast": any(case.batch > 256 and case.broadcast_q for case in anywhere),
        "causal, more queries than keys": any(case.mask.right == 0 and (case.lengths_q > case.lengths_k).any()
                                              for case in anywhere),
        "causal broadcast": any(case.mask.right == 0 and case.broadcast_q for case in anywhere),
        "windows": len({case.mask for case in anywhere}) >= 6,
        "shared heads": any(case.num_heads_kv < case.num_heads_q for case in anywhere),
        "short keys": any(case.mode == "short_kv" for case in anywhere),
        "every hazard in every shape": {(case.hazard, case.mode) for case in anywhere} >= {
            (hazard, mode) for hazard in HAZARDS for mode in ("self", "cross", "broadcast_q")},
        "head dimensions": {case.head_dim for case in anywhere} == {32, 64, 96, 128},
        "types": {case.dtype for case in anywhere} == {"bf16", "fp16"},
        "beyond int32": {(case.mode, case.hazard) for case in poison
                         if case.total_q * case.num_heads_q * case.head_dim > 2**31} == {
                             ("self", "none"), ("self", "noncontiguous"), ("broadcast_q", "none")},
    }
    assert [trap for trap, is_there in every.items() if not is_there] == []


def test_poison_is_light_enough_for_a_cpu():
    for case in cases("poison").values():
        if "cpu" in case.devices:
            assert case.visible_pairs * case.num_heads_q < 200_000, case.name
            assert (case.total_q + case.total_k) * case.num_heads_q < 20_000, case.name
