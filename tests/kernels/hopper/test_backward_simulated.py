"""The Hopper backward in the simulator, in every mode, against the oracle. Races and unwritten elements are errors."""

from dataclasses import replace

import pytest
import torch
import triton.language as tl
from backward_cases import CROSS, SELF, check_gradients, problem, simulate_backward, tensors
from triton import jit

from kernels.hopper import backward, backward_counted, backward_writer
from kernels.hopper.backward_options import SHORT_GAP
from kernels.hopper.backward_options import HopperBackwardOptions as Options
from kernels.hopper.backward_schedule import takes_pairs, takes_turns
from kernels.mask import Mask
from kernels.reference import attention_reference, attention_reference_backward
from kernels.simulator import SimulationError

SKIP = Options(skip_half=True)
COUNTED = Options(counted=True, owned_blocks=1)
PAIRS = Options(pairs=True, owned_blocks=8)
TURNS = Options(turns=True, owned_blocks=1)
ONCE = {"dq_stages": 1, "ds_stages": 1, "dk_first": False}


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
    "rotated, L2 told": (lambda: problem([65, 128, 1, 0, 200, 300], [64, 0, 130, 70, 257, 300]),
                         Options(rotate=True, l2_hints=True)),
    "rotated, keys without queries": (lambda: problem([128, 0, 200, 0, 0, 0, 64], [300, 70, 257, 64, 130, 5, 130]),
                                       Options(rotate=True)),
    "serpentine": (lambda: problem([65, 128, 200], [64, 130, 520]),
                   Options(serpentine=True, l2_hints=True, rotate=True)),
    "serpentine, half skipped, causal": (lambda: problem([300, 65, 400], [300, 40, 400], mask=Mask.make(True)),
                                         replace(SKIP, serpentine=True)),
    "serpentine, window": (lambda: problem(*CROSS, mask=Mask.make(False, (40, 30))), Options(serpentine=True)),
    "serpentine, heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2), Options(serpentine=True)),
    "in pairs": (lambda: problem([65, 200, 256, 1, 130, 300] * 2, [65, 200, 256, 1, 130, 300] * 2, 2, 2), PAIRS),
    "in pairs, cross": (lambda: problem([65, 200, 0, 1, 130, 250, 320] * 2, [300, 200, 256, 0, 130, 400, 64] * 2, 2, 2),
                        replace(PAIRS, serpentine=True, l2_hints=True, rotate=True)),
    "in pairs, half skipped": (lambda: problem([65, 200, 256, 1, 330, 300] * 2, [65, 190, 140, 1, 300, 320] * 2, 2, 2),
                               replace(PAIRS, serpentine=True, skip_half=True)),
    "in pairs, many blocks": (lambda: problem([200, 130, 70, 190] * 2, [640, 513, 700, 129] * 2, 2, 2), PAIRS),
    "in turns": (lambda: problem([65, 200, 70], [300, 520, 100], 2, 2), TURNS),
    "in turns, self": (lambda: problem([400, 128, 1, 0, 700, 300], [400, 128, 1, 0, 700, 300]),
                       replace(TURNS, owned_blocks=2, l2_hints=True, skip_half=True)),
    "in turns, causal": (lambda: problem([300, 65, 400], [300, 200, 520], 2, 2, mask=Mask.make(True)), TURNS),
    "in turns, heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2), TURNS),
    "in turns, D = 64": (lambda: problem(SELF, SELF, 2, 2, dim=64), replace(TURNS, kv_stages=2, **ONCE)),
    "serpentine, all once": (lambda: problem(*CROSS), Options(serpentine=True, **ONCE)),
    "one block of shared Q, dQ sent": (lambda: problem(32, [64, 0, 130, 300], 2, 2), replace(SHORT_GAP, dk_first=True)),
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
    "half skipped": (lambda: problem(*CROSS), SKIP),
    "half skipped, all added": (lambda: problem(SELF, SELF), replace(SKIP, direct_dq=False)),
    "half skipped, causal": (lambda: problem([300, 65], [300, 40], mask=Mask.make(True)), SKIP),
    "half skipped, heads in groups": (lambda: problem([65, 70], [130, 60], 4, 2), SKIP),
    "half skipped, K and V twice": (lambda: problem(*CROSS), replace(SHORT_GAP, skip_half=True)),
    "half skipped, D = 64": (lambda: problem(SELF, SELF, dim=64), replace(SKIP, **ONCE)),
    "half skipped, dQ kept": (lambda: problem(32, [64, 0, 130, 300], 2, 2),
                              replace(SHORT_GAP, dk_first=True, keep_dq=True, skip_half=True)),
    "half skipped, counted": (lambda: problem(*CROSS), replace(COUNTED, skip_half=True)),
    "counted": (lambda: problem(*CROSS), COUNTED),
    "counted, L2 told": (lambda: problem([65, 200], [65, 400]), replace(COUNTED, l2_hints=True)),
    "all counted": (lambda: problem(SELF, SELF), replace(COUNTED, direct_dq=False)),
    "counted, some owned": (lambda: problem([130, 65], [400, 200]), replace(COUNTED, owned_blocks=2)),
    "counted, all once": (lambda: problem(*CROSS), replace(COUNTED, **ONCE)),
    "counted, K and V twice": (lambda: problem(*CROSS), replace(SHORT_GAP, counted=True, owned_blocks=1)),
    "counted, causal": (lambda: problem([300, 65, 100], [300, 200, 70], mask=Mask.make(True)), COUNTED),
    "counted, heads in groups": (lambda: problem([65], [257], 4, 2), COUNTED),
    "counted, D = 64": (lambda: problem(SELF, SELF, dim=64), replace(COUNTED, kv_stages=2, **ONCE)),
    "counted, in order": (lambda: problem([130], [400]), replace(COUNTED, deterministic=True)),
    "negative scale": (lambda: problem(*CROSS, scale=-0.1, mask=Mask.make(True)), Options()),
}


@pytest.mark.parametrize("name", CASES)
def test_right_in_every_mode(name):
    make, options = CASES[name]
    case = make()
    if options:  # what the case is there for is what is run, with three SMs
        assert takes_turns(case, options, 3) == options.turns
        assert takes_pairs(case, options, 3, 128 if case.head_dim == 64 else 64, 128) == options.pairs
    check(case, *tensors(case), options)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dim", "options"), [(64, None), (128, SHORT_GAP), (128, Options())])
def test_tiles_without_steps_in_a_row(dim, options, seed):
    case = problem([64, 0, 0, 70], [64, 512, 300, 130], dim=dim)
    for mode in ("lazy", "random"):
        check(case, *tensors(case), options, sms=1, mode=mode, seed=seed)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("options", [Options(), SKIP])
def test_other_schedules(options, mode):
    case = problem(*CROSS)
    check(case, *tensors(case), options, mode=mode)


def test_scores_so_low_that_a_missing_key_would_overflow():
    case = problem(SELF, SELF)
    q, k, v, dout = tensors(case)
    q, k = q.abs() * 32, -k.abs()
    assert attention_reference(case, q, k, v)[1][:, 1:].min() < -88
    check(case, q, k, v, dout, Options())
    check(case, q, k, v, dout, Options(owned_blocks=0))
    check(case, q, k, v, dout, COUNTED)
    check(case, q, k, v, dout, SKIP)
    check(case, q, k, v, dout, SHORT_GAP)


@pytest.mark.parametrize("options", [Options(owned_blocks=0), Options(), COUNTED, SKIP])
def test_a_sequence_of_nan_stays_among_itself(options):
    case = problem(SELF, SELF)
    q, k, v, dout = tensors(case)
    clean = attention_reference_backward(case, q, k, v, dout)
    rows = slice(*case.layout_q.offsets[2:4])
    for tensor, value in ((q, "nan"), (k, "nan"), (v, "inf"), (dout, "nan")):
        tensor[rows] = float(value)
    grads = simulate(case, q, k, v, dout, options)
    others = torch.ones(case.layout_q.total, dtype=torch.bool)
    others[rows] = False
    for grad, exact in zip(grads, clean, strict=True):
        assert (grad[others].double() - exact[others]).abs().max() <= 0.02 * exact[others].abs().max()


@pytest.mark.parametrize("options", [Options(), SHORT_GAP])
def test_nan_in_keys_shows_in_every_gradient(options):
    case = problem([100, 70], [100, 70])
    q, k, v, dout = tensors(case)
    k[10] = float("nan")
    for grad in simulate(case, q, k, v, dout, options):
        assert grad[:100].isnan().any()
        assert not grad[100:].isnan().any()


@pytest.mark.parametrize(("lengths", "options"), [([300, 520], Options(deterministic=True)),
                                                  ([70, 390], replace(COUNTED, deterministic=True))])
def test_deterministic_does_not_depend_on_the_schedule(lengths, options):
    case = problem(lengths, lengths)
    inputs = tensors(case)
    first = simulate(case, *inputs, options, mode="eager")
    second = simulate(case, *inputs, options, mode="random", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
@pytest.mark.parametrize(("order", "sms"), [("zigzag", 2), ("none", 3), ("sorted", 8)])
def test_counted_in_other_schedules(order, sms, mode):
    case = problem([130, 65], [257, 130])
    check(case, *tensors(case), COUNTED, schedule=order, sms=sms, mode=mode, seed=sms)


@jit
def _no_wait(counter, wanted):
    return counter


@jit
def _no_completion(counter):
    tl.atomic_add(counter, 1)


@pytest.mark.parametrize(("part", "broken"), [("await_adds", _no_wait), ("await_all_adds", _no_wait),
                                              ("count_add", _no_completion)])
def test_a_counter_that_is_not_waited_for_is_a_race(part, broken, monkeypatch):
    for module in (backward_counted, backward_writer):
        if hasattr(module, part):
            monkeypatch.setattr(module, part, broken)
    case = problem([130], [300])
    with pytest.raises(SimulationError, match=r"global memory (desc_)?acc|unwaited at exit"):
        simulate(case, *tensors(case), COUNTED, sms=4)
