"""Options of the Hopper backward: what is allowed, what is chosen, what a record says."""

import pytest
import torch

from kernels.hopper import IMPLEMENTATION, backward
from kernels.hopper.backward_options import HopperBackwardOptions, select
from kernels.hopper.backward_schedule import holds
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem


def problem(**changes):
    layout = JaggedLayout.from_lengths([100, 200])
    values = {"layout_q": layout, "layout_k": layout, "num_heads_q": 2, "num_heads_kv": 2, "head_dim": 128,
              "dtype": torch.bfloat16, "softmax_scale": 0.1}
    return JaggedProblem(**(values | changes))


def make_options(values):
    return IMPLEMENTATION.make_options("bwd", values)


@pytest.mark.parametrize(("values", "message"), [
    ({"stages": 2}, "stages: no such option; allowed: q_stages, do_stages, kv_stages"),
    ({"kv_stages": 3}, "kv_stages: expected 1 to 2, got 3"),
    ({"kv_stages": True}, "kv_stages: expected 1 to 2, got True"),
    ({"q_stages": 3}, "q_stages: expected 1 to 2, got 3"),
    ({"turns": 1}, "turns: expected true or false, got 1"),
    ({"hold": 1}, "hold: expected true or false, got 1"),
    ({"counted": True, "rotate": True}, "counted: not with rotate"),
    ({"turns": True, "counted": True}, "turns: not with counted"),
    ({"turns": True, "rotate": True}, "turns: not with rotate"),
])
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        make_options(values)


def test_no_values_leave_the_choice_to_the_rule():
    assert make_options({}) is None
    assert IMPLEMENTATION.describe(problem(), "bwd") == f"hopper/{select(problem()).token}/zigzag"


FULL, SHORT = "q2o2k1s2d2-alt-own4-turn", "q2o2k1s2d2-alt-skip-l2-serp-hold-rot-own4"
MIDDLE, SHORT_K = "q2o2k1s2d2-alt-l2-serp-hold-own4-turn", "q2o2k1s2d2-alt-l2-serp-hold-rot-own4"
MANY, SKEWED = "q2o2k1s2d2-alt-l2-own4-turn", "q2o2k1s2d2-alt-skip-l2-serp-own4-turn"
MASKED, SHARED_Q = "q2o2k1s2d2-alt-skip-l2-serp-hold-rot-own8", "q2o2k1s2d2-alt-l2-own4"
PAIRED = "q2o2k1s2d2-l2-serp-pair-rot-own4"
WINDOW, CAUSAL = Mask.make(True, (256, 0)), Mask.make(True)


@pytest.mark.parametrize(("len_q", "len_k", "changes", "token"), [
    ([1900, 600], [1900, 600], {}, FULL), ([900, 600], [900, 600], {}, MIDDLE),
    ([500, 300], [500, 300], {}, SHORT), ([200, 250], [200, 250], {}, PAIRED),
    ([100, 250], [100, 250], {}, SHORT),
    ([512], [512], {}, SHORT), ([513], [513], {}, MIDDLE), ([1024], [1024], {}, MIDDLE), ([1025], [1025], {}, FULL),
    ([400, 500], [256, 256], {}, PAIRED),
    ([400, 500], [256, 256], {"num_heads_q": 8}, SHORT.replace("hold-", "").replace("own4", "own2")),
    ([400, 2000], [256, 256], {}, PAIRED), ([400, 2000], [257, 256], {}, SHORT_K),
    ([64, 100, 300, 40, 2000], [64, 100, 300, 40, 2000], {}, FULL),
    ([64, 100, 300, 40, 1500], [64, 100, 300, 40, 1500], {}, FULL),
    ([64, 100, 30, 40, 1500], [64, 100, 30, 40, 1500], {}, SKEWED),
    ([2000, 1000], [100, 100], {}, SHORT_K), ([100, 100], [2000, 1000], {}, SKEWED),
    ([1900] * 131, [1900] * 131, {}, FULL), ([1900] * 132, [1900] * 132, {}, MANY),
    ([1900] * 263, [1900] * 263, {"num_heads_kv": 1}, FULL.replace("own4", "own2")),
    ([1900] * 264, [1900] * 264, {"num_heads_kv": 1}, MANY.replace("own4", "own2")),
    ([1900], [1900], {"num_heads_q": 8}, FULL.replace("own4", "own2")),
    ([900], [900], {"num_heads_q": 8}, MIDDLE.replace("hold-", "").replace("own4", "own2")),
    ([900], [900], {"mask": CAUSAL}, MASKED),
    ([900], [900], {"mask": CAUSAL, "num_heads_q": 8}, MASKED.replace("hold-", "")),
    ([900], [900], {"mask": WINDOW}, "q2o2k1s2d2-alt-skip-l2-rot-own8"),
    ([2000], [2000], {"mask": WINDOW}, "q2o2k1s2d2-alt-l2-own8"),
    ([1024], [1024], {"mask": CAUSAL}, MASKED), ([1025], [1025], {"mask": CAUSAL}, "q2o2k1s2d2-alt-l2-own8"),
    ([2000], [2000], {"mask": CAUSAL}, "q2o2k1s2d2-alt-l2-own8"),
    ([900], [900], {"head_dim": 64}, "q2o2k1s2d2-alt-serp-own4-turn"),
    ([2000], [2000], {"head_dim": 64}, FULL),
    (32, [900, 200], {}, "q2o1k2s1d1-keep-own4"), (64, [900, 200], {}, "q2o1k2s1d1-keep-own4"),
    (65, [900, 200], {}, SHARED_Q), (192, [900, 200], {}, SHARED_Q),
    (192, [900, 200], {"mask": CAUSAL}, SHARED_Q), (32, [900, 200], {"head_dim": 64}, SHARED_Q),
    ([0], [0], {}, SHORT),
])
def test_choice(len_q, len_k, changes, token):
    assert choice(len_q, len_k, **changes).token == token


def choice(len_q, len_k, **changes):
    broadcast = isinstance(len_q, int)
    layout_q = JaggedLayout.uniform(len(len_k), len_q) if broadcast else JaggedLayout.from_lengths(len_q)
    return select(problem(layout_q=layout_q, layout_k=JaggedLayout.from_lengths(len_k), broadcast_q=broadcast,
                          **changes))


@pytest.mark.parametrize(("len_q", "len_k", "changes", "held"), [
    ([500, 300], [500, 300], {}, True), ([900], [900], {}, True), ([900], [900], {"mask": CAUSAL}, True),
    ([400, 2000], [257, 256], {}, True), ([1025], [1025], {}, False), ([2000], [2000], {"mask": CAUSAL}, False),
    ([900], [900], {"num_heads_q": 8}, False), ([900], [900], {"head_dim": 64}, False), (192, [900], {}, False),
    ([200, 250], [200, 250], {}, False),  # by pairs
    ([900], [900], {"mask": WINDOW}, False),
])
def test_where_the_rule_holds_blocks(len_q, len_k, changes, held):
    chosen = choice(len_q, len_k, **changes)
    assert holds(problem(broadcast_q=isinstance(len_q, int), **changes), chosen, chosen.pairs) == held
    assert chosen.hold == held


@pytest.mark.parametrize(("options", "changes", "pairs", "held"), [
    ({}, {}, False, True), ({}, {"mask": CAUSAL}, False, True), ({}, {"mask": WINDOW}, False, False),
    ({}, {"num_heads_q": 4}, False, False), ({}, {"broadcast_q": True}, False, False), ({}, {}, True, False),
    ({"serpentine": False}, {}, False, False), ({"hold": False}, {}, False, False),
    ({"kv_stages": 2, "dq_stages": 1}, {}, False, False), ({"dq_stages": 1}, {}, False, False),
    ({"counted": True}, {}, False, False), ({"turns": True}, {}, False, True),
    ({"counted": True}, {"mask": WINDOW}, False, False), ({"deterministic": True}, {}, False, True),
    # a mask takes counting from deterministic calls, and they own all
    ({"deterministic": True, "counted": True}, {"mask": CAUSAL}, False, True),
    ({"q_stages": 1}, {"head_dim": 64}, False, True),
])
def test_where_blocks_can_be_held(options, changes, pairs, held):
    options = HopperBackwardOptions.make({"hold": True, "serpentine": True} | options)
    assert holds(problem(**changes), options, pairs) == held


def test_switches_show_in_the_record():
    options = make_options({"deterministic": True, "do_stages": 1, "ds_stages": 1})
    assert backward.describe(problem(), "sorted", options) == "hopper/q2o1k1s2d1-own4-det/sorted"
    options = make_options({"turns": True, "serpentine": True, "l2_hints": True})
    assert backward.describe(problem(), None, options) == "hopper/q2o2k1s2d2-l2-serp-own4-turn/zigzag"
    options = make_options({"hold": True, "serpentine": True})
    assert backward.describe(problem(), None, options) == "hopper/q2o2k1s2d2-serp-hold-own4/zigzag"
    with pytest.raises(ValueError, match="schedule: expected one of none, sorted, zigzag, got 'lpt'"):
        backward.describe(problem(), "lpt")
    with pytest.raises(TypeError, match="expected HopperBackwardOptions, got dict"):
        backward.describe(problem(), None, {})


@pytest.mark.parametrize(("switches", "dim", "need"), [
    ({"kv_stages": 2}, 128, "needs 296,960 bytes of shared memory at D = 128, 232,448 are there"),
    ({"kv_stages": 2, "dq_stages": 1, "ds_stages": 1}, 128, "needs 247,808 bytes of shared memory"),
    ({"ds_stages": 1, "skip_half": True}, 128, "needs 247,808 bytes of shared memory"),
    *(({name: value}, 64, "at D = 64 only with kv_stages 1, dq_stages 2, ds_stages 2") for name, value in
      (("kv_stages", 2), ("dq_stages", 1), ("ds_stages", 1))),
])
def test_stages_that_do_not_fit_are_refused(switches, dim, need):
    case = problem(head_dim=dim)
    q, k, lse = torch.ones(case.q_shape), torch.ones(case.kv_shape), torch.ones(2, case.layout_q.total)
    with pytest.raises(ValueError, match=need):
        backward.backward(case, q, k, k, q, lse, q, options=make_options(switches))


@pytest.mark.parametrize(("changes", "reason"), [
    ({"head_dim": 96}, "head_dim 96 is not one of 64, 128"), ({"dtype": torch.float32}, "torch.float32 is neither")])
def test_declines(changes, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert reason in IMPLEMENTATION.declines(problem(**changes), "bwd", torch.device("cuda"))
    assert IMPLEMENTATION.declines(problem(softmax_scale=-1.0), "bwd", torch.device("cuda")) is None
    assert "the device is cpu" in IMPLEMENTATION.declines(problem(), "bwd", torch.device("cpu"))


def test_empty_problems_need_no_kernel():
    none = JaggedLayout.from_lengths([0, 0])
    case = problem(layout_q=none)
    q, k = torch.empty(case.q_shape), torch.ones(case.kv_shape)
    dq, dk, dv = backward.backward(case, q, k, k, q, torch.empty(2, 0), q)
    assert dq.shape == q.shape
    assert not dk.any()
    assert not dv.any()
