"""Options of the Blackwell backward: what is allowed, what excludes what, what is chosen, what a record says."""

from dataclasses import replace

import pytest
import torch

from kernels.blackwell import IMPLEMENTATION
from kernels.blackwell.backward_options import LONG_TILES, PAIR, SHORT_TILES, SMEM_BYTES, select
from kernels.blackwell.backward_options import BlackwellBackwardOptions as Options
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem


def problem(len_q=(900, 600), len_k=(900, 600), **changes):
    broadcast = isinstance(len_q, int)
    layout_q = JaggedLayout.uniform(len(len_k), len_q) if broadcast else JaggedLayout.from_lengths(len_q)
    values = {"num_heads_q": 2, "num_heads_kv": 2, "head_dim": 128, "dtype": torch.bfloat16, "softmax_scale": 0.1,
              "broadcast_q": broadcast}
    return JaggedProblem(layout_q, JaggedLayout.from_lengths(len_k), **(values | changes))


@pytest.mark.parametrize(("values", "message"), [
    ({"stages": 2}, "stages: no such option; allowed: pair, block_m, q_stages"),
    ({"block_m": 96}, "block_m: expected one of 64, 128, got 96"),
    ({"kv_stages": True}, "kv_stages: expected one of 1, 2, got True"),
    ({"owned_blocks": 65}, "owned_blocks: expected 0 to 64, got 65"),
    ({"pair": 1}, "pair: expected true or false, got 1"),
])
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        IMPLEMENTATION.make_options("bwd", values)


@pytest.mark.parametrize(("options", "schedule", "changes", "reason"), [
    (replace(PAIR, block_m=64), "zigzag", {}, "pair: two CTAs share 128 rows of Q, block_m is 64"),
    (replace(PAIR, warp_barriers=True), "zigzag", {}, "warp_barriers: a pair's CTAs"),
    (Options(q_stages=1), "zigzag", {}, "q_stages: S of a step is computed before dK"),
    (replace(LONG_TILES, kv_stages=2), "zigzag", {}, f"needs .* bytes .* head_dim 128, a CTA has {SMEM_BYTES}"),
    (Options(owned_blocks=2), "clc", {}, "deterministic, owned_blocks: a sequence's tiles must meet"),
    (Options(deterministic=True), "clc", {}, "deterministic, owned_blocks: a sequence's tiles must meet"),
    (Options(), "clc", {"len_q": 32}, "broadcast_sums: a CTA's own sums"),
    (Options(deterministic=True, broadcast_sums=False), "zigzag", {"len_q": 32}, "deterministic: with broadcast_sums"),
])
def test_combinations_that_are_refused(options, schedule, changes, reason):
    with pytest.raises(ValueError, match=f"Blackwell backward, {options.token}: {reason}"):
        IMPLEMENTATION.describe(problem(**changes), "bwd", schedule, options)


@pytest.mark.parametrize(("changes", "schedule", "chosen"), [
    ({}, "zigzag", LONG_TILES), ({"len_q": [100, 300], "len_k": [100, 300]}, "zigzag", SHORT_TILES),
    ({"len_k": [900, 1200]}, "clc", PAIR), ({"len_q": 32}, "zigzag", SHORT_TILES),
    ({"len_q": 32}, "clc", replace(SHORT_TILES, broadcast_sums=False)),
    ({"head_dim": 64}, "zigzag", replace(LONG_TILES, do_stages=2, kv_stages=2)),
    ({"len_q": [0], "len_k": [0], "mask": Mask.make(True)}, "none", SHORT_TILES),
])
def test_choice(changes, schedule, chosen):
    case = problem(**changes)
    assert select(case, schedule) == chosen
    assert chosen.why_not(case, schedule) is None


def test_switches_show_in_the_record():
    assert IMPLEMENTATION.describe(problem(), "bwd") == "blackwell/m128q2o1k1s2r1/zigzag"
    options = IMPLEMENTATION.make_options("bwd", {"peel": False, "owned_blocks": 4, "deterministic": True})
    assert IMPLEMENTATION.describe(problem(), "bwd", "none", options) == (
        "blackwell/m64q2o1k1s2r1-own4-no_peel-deterministic/none")
    assert PAIR.token == "pair-m128q1o1k1s2r1-no_warp_barriers"


def test_unknown_schedule():
    with pytest.raises(ValueError, match="schedule: expected one of none, sorted, zigzag, clc, got 'dynamic'"):
        IMPLEMENTATION.describe(problem(), "bwd", "dynamic")
