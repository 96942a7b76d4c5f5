"""The Hopper backward in the simulator, in every mode, against the oracle. Races and unwritten elements are errors."""

from dataclasses import replace

import pytest
import torch
from backward_cases import CROSS, SELF, check_gradients, problem, simulate_backward, tensors

from kernels.hopper import backward
from kernels.hopper.backward_options import SHORT_GAP
from kernels.hopper.backward_options import HopperBackwardOptions as Options
from kernels.mask import Mask
from kernels.reference import attention_reference, attention_reference_backward

ONCE = {"dq_stages": 1, "ds_stages": 1, "dk_first": False}
AHEAD = Options(ahead=True)


def simulate(case, q, k, v, dout, options, **how):
    grads, _simulator = simulate_backward(backward, 90, case, q, k, v, dout, options, **how)
    return grads


def check(case, q, k, v, dout, options, **how):
    check_gradients(case, q, k, v, dout, simulate(case, q, k, v, dout, options, **how))


CASES = {
    "self": (lambda: problem(SELF, SELF, 2, 2), Options()),
    "self, all added": (lambda: problem(SELF, SELF), Options(direct_dq=False)),
    "cross": (lambda: problem(*CROSS), Options()),
    "cross, shared": (lambda: problem(*CROSS), Options(owned_blocks=0)),
    "K and V twice": (lambda: problem(*CROSS), SHORT_GAP),
    "all once": (lambda: problem(*CROSS), Options(**ONCE)),
    "all once, heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2), Options(**ONCE)),
    "dQ twice": (lambda: problem(*CROSS), Options(**ONCE | {"dq_stages": 2})),
    "dS twice": (lambda: problem(*CROSS), Options(**ONCE | {"ds_stages": 2})),
    "dK first": (lambda: problem(*CROSS), Options(**ONCE | {"dk_first": True})),
    "all once, causal, shared": (lambda: problem(*CROSS, mask=Mask.make(True)), Options(owned_blocks=0, **ONCE)),
    "D = 64, all once": (lambda: problem(SELF, SELF, dim=64), Options(**ONCE)),
    "D = 64, as chosen": (lambda: problem(SELF, SELF, dim=64), None),
    "causal, as chosen": (lambda: problem([600, 0, 70], [600, 0, 70], mask=Mask.make(True)), None),
    "ahead": (lambda: problem(*CROSS), AHEAD),
    "ahead, all added": (lambda: problem(SELF, SELF), replace(AHEAD, direct_dq=False)),
    "ahead, delta": (lambda: problem(*CROSS), replace(AHEAD, kernel_delta=True)),
    "rotated, L2 told": (lambda: problem([65, 128, 1, 0, 200, 300], [64, 0, 130, 70, 257, 300]),
                         Options(rotate=True, l2_hints=True)),
    "ahead, rotated": (lambda: problem(*CROSS), replace(AHEAD, rotate=True, l2_hints=True)),
    "one block of shared Q, dQ sent": (lambda: problem(32, [64, 0, 130, 300], 2, 2), replace(SHORT_GAP, dk_first=True)),
    "ahead, heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2), AHEAD),
    "ahead, rows without keys": (lambda: problem(*CROSS, mask=Mask.make(True)), AHEAD),
    "ahead, window": (lambda: problem(*CROSS, mask=Mask.make(False, (40, 30))), AHEAD),
    "ahead, one block of shared Q": (lambda: problem(32, [64, 0, 130, 300], 2, 2), AHEAD),
    "one Q": (lambda: problem(*CROSS), Options(q_stages=1, do_stages=1)),
    "causal": (lambda: problem(SELF, SELF, mask=Mask.make(True)), Options()),
    "causal, shared": (lambda: problem(*CROSS, mask=Mask.make(True)), Options(owned_blocks=0)),
    "causal, rows without keys": (lambda: problem(*CROSS, mask=Mask.make(True)), Options()),
    "window": (lambda: problem(*CROSS, mask=Mask.make(False, (40, 30))), Options()),
    "heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2), Options()),
    "one block of shared Q": (lambda: problem(32, [64, 0, 130, 300], 2, 2), None),
    "shared Q": (lambda: problem(150, [64, 0, 130, 300], 2, 1), None),
    "shared Q, causal": (lambda: problem(70, [64, 0, 130], 2, 2, mask=Mask.make(True)), None),
    "D = 64": (lambda: problem(SELF, SELF, dim=64), Options()),
    "D = 64, window, shared": (lambda: problem(*CROSS, dim=64, mask=Mask.make(False, (40, 30))),
                               Options(owned_blocks=0)),
    "fp16": (lambda: problem(*CROSS, dtype=torch.float16), Options()),
    "negative scale": (lambda: problem(*CROSS, scale=-0.1, mask=Mask.make(True)), Options()),
}


@pytest.mark.parametrize("name", CASES)
def test_right_in_every_mode(name):
    make, options = CASES[name]
    case = make()
    check(case, *tensors(case), options)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_other_schedules(mode):
    case = problem(*CROSS)
    check(case, *tensors(case), Options(), mode=mode)


def test_scores_so_low_that_a_missing_key_would_overflow():
    case = problem(SELF, SELF)
    q, k, v, dout = tensors(case)
    q, k = q.abs() * 32, -k.abs()
    assert attention_reference(case, q, k, v)[1][:, 1:].min() < -88
    check(case, q, k, v, dout, Options())
    check(case, q, k, v, dout, Options(owned_blocks=0))
    check(case, q, k, v, dout, AHEAD)


@pytest.mark.parametrize("owned_blocks", [0, 4])
def test_a_sequence_of_nan_stays_among_itself(owned_blocks):
    case = problem(SELF, SELF)
    q, k, v, dout = tensors(case)
    clean = attention_reference_backward(case, q, k, v, dout)
    rows = slice(*case.layout_q.offsets[2:4])
    for tensor, value in ((q, "nan"), (k, "nan"), (v, "inf"), (dout, "nan")):
        tensor[rows] = float(value)
    grads = simulate(case, q, k, v, dout, Options(owned_blocks=owned_blocks))
    others = torch.ones(case.layout_q.total, dtype=torch.bool)
    others[rows] = False
    for grad, exact in zip(grads, clean, strict=True):
        assert (grad[others].double() - exact[others]).abs().max() <= 0.02 * exact[others].abs().max()


@pytest.mark.parametrize("options", [Options(), AHEAD])
def test_nan_in_keys_shows_in_every_gradient(options):
    case = problem([100, 70], [100, 70])
    q, k, v, dout = tensors(case)
    k[10] = float("nan")
    for grad in simulate(case, q, k, v, dout, options):
        assert grad[:100].isnan().any()
        assert not grad[100:].isnan().any()


def test_deterministic_does_not_depend_on_the_schedule():
    case = problem([300, 520], [300, 520])
    inputs = tensors(case)
    first = simulate(case, *inputs, Options(deterministic=True), mode="eager")
    second = simulate(case, *inputs, Options(deterministic=True), mode="random", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
