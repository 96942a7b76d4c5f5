"""The Blackwell backward in the simulator, against the oracle. Races and unwritten elements are errors."""

from dataclasses import replace

import pytest
import torch
from backward_cases import CROSS, SELF, check_gradients, problem, simulate_backward, tensors

from kernels.blackwell import backward
from kernels.blackwell.backward_options import LONG_TILES, PAIR, SHORT_TILES
from kernels.blackwell.backward_options import BlackwellBackwardOptions as Options
from kernels.mask import Mask
from kernels.reference import attention_reference, attention_reference_backward

CAUSAL, WINDOW = Mask.make(True), Mask.make(False, (40, 30))


def simulate(case, q, k, v, dout, options, **how):
    grads, simulator = simulate_backward(backward, 100, case, q, k, v, dout, options, **how)
    assert simulator.tmem_columns <= 512
    return grads


def check(case, q, k, v, dout, options, **how):
    check_gradients(case, q, k, v, dout, simulate(case, q, k, v, dout, options, **how))


CASES = {
    "64 rows": (lambda: problem(*CROSS), Options(), None),
    "64 rows, every switch off": (lambda: problem(*CROSS, mask=WINDOW), Options(
        early_release=0, peel=False, warp_barriers=False, packed=False, direct_dq=False), "none"),
    "K and V twice, dQ in three slots": (lambda: problem(*CROSS, heads_q=2, heads_kv=1), Options(
        kv_stages=2, dq_stages=3, early_release=2), "sorted"),
    "owned": (lambda: problem(*CROSS, 2, 1, mask=WINDOW), Options(owned_blocks=4), None),
    "128 rows, causal": (lambda: problem(*CROSS, mask=CAUSAL), LONG_TILES, None),
    "128 rows, D = 64": (lambda: problem(SELF, SELF, dim=64), None, None),
    "launch control": (lambda: problem(*CROSS, mask=CAUSAL), LONG_TILES, "clc"),
    "shared Q, sums": (lambda: problem(150, [64, 0, 130, 300], 2, 1), None, None),
    "shared Q, added, launch control": (lambda: problem(70, [64, 0, 130], 2, 2, mask=CAUSAL), None, "clc"),
    "pair": (lambda: problem(*CROSS), PAIR, None),
    "pair, causal, groups, launch control": (lambda: problem(*CROSS, 2, 1, mask=CAUSAL), PAIR, "clc"),
    "pair, shared Q": (lambda: problem(150, [64, 0, 130, 300], 2, 1), PAIR, None),
    "pair, D = 64, window, owned": (lambda: problem(SELF, SELF, dim=64, mask=WINDOW), replace(PAIR, owned_blocks=4),
                                    None),
    "fp16, negative scale": (lambda: problem(*CROSS, dtype=torch.float16, scale=-0.1, mask=CAUSAL), SHORT_TILES, None),
}


@pytest.mark.parametrize("name", CASES)
def test_right_whatever_the_variant(name):
    make, options, schedule = CASES[name]
    case = make()
    check(case, *tensors(case), options, schedule=schedule)


@pytest.mark.parametrize("options", [SHORT_TILES, LONG_TILES, PAIR], ids=["64 rows", "128 rows", "pair"])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_other_schedules(options, mode):
    case = problem([130, 0, 64], [257, 0, 70])
    check(case, *tensors(case), options, mode=mode)


@pytest.mark.parametrize("options", [LONG_TILES, PAIR], ids=["one", "pair"])
def test_scores_so_low_that_a_missing_key_would_overflow(options):
    case = problem([130, 64], [130, 64])
    q, k, v, dout = tensors(case)
    q, k = q.abs() * 32, -k.abs()
    assert attention_reference(case, q, k, v)[1].min() < -88
    check(case, q, k, v, dout, options)


@pytest.mark.parametrize("options", [Options(), PAIR], ids=["one", "pair"])
def test_a_sequence_of_nan_stays_among_itself(options):
    case = problem([64, 129, 1], [64, 129, 1])
    q, k, v, dout = tensors(case)
    clean = attention_reference_backward(case, q, k, v, dout)
    rows = slice(*case.layout_q.offsets[1:3])
    for tensor, value in ((q, "nan"), (k, "nan"), (v, "inf"), (dout, "nan")):
        tensor[rows] = float(value)
    grads = simulate(case, q, k, v, dout, options)
    others = torch.ones(case.layout_q.total, dtype=torch.bool)
    others[rows] = False
    for grad, exact in zip(grads, clean, strict=True):
        assert (grad[others].double() - exact[others]).abs().max() <= 0.02 * exact[others].abs().max()


@pytest.mark.parametrize("options", [Options(), PAIR], ids=["one", "pair"])
def test_deterministic_does_not_depend_on_the_schedule(options):
    case = problem([130, 64], [300, 520])
    inputs = tensors(case)
    options = replace(options, deterministic=True)
    first = simulate(case, *inputs, options, mode="eager")
    second = simulate(case, *inputs, options, mode="random", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
