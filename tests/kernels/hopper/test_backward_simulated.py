"""The Hopper backward in the simulator, in every mode, against the oracle. Races and unwritten elements are errors."""

from dataclasses import replace

import pytest
import torch
import triton.language as tl
from backward_cases import CROSS, SELF, check_gradients, problem, simulate_backward, tensors
from triton import jit

from kernels.hopper import (
    backward,
    backward_counted,
    backward_output,
    backward_plan,
    backward_step,
    backward_writer,
)
from kernels.hopper.backward_options import SHORT_GAP, alternates
from kernels.hopper.backward_options import HopperBackwardOptions as Options
from kernels.hopper.backward_schedule import HOLDS, build, takes_pairs, takes_turns
from kernels.mask import Mask
from kernels.reference import attention_reference, attention_reference_backward
from kernels.simulator import SimulationError

SKIP = Options(skip_half=True)
COUNTED = Options(counted=True, owned_blocks=1)
PAIRS = Options(pairs=True, owned_blocks=8)
TURNS = Options(turns=True, owned_blocks=1)
HOLD = Options(serpentine=True, hold=True, deterministic=True)  # all are owned
WIDE = [300, 520, 1, 0, 129, 128, 70]  # tiles of 256 keys, at D = 64, that are full, half full and less
ONCE = {"dq_stages": 1, "ds_stages": 1}


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
    "all once, causal, shared": (lambda: problem(*CROSS, mask=Mask.make(True)), Options(owned_blocks=0, **ONCE)),
    "D = 64, one Q": (lambda: problem(SELF, SELF, dim=64), Options(q_stages=1, do_stages=1)),
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
    "in turns, D = 64": (lambda: problem(WIDE, WIDE, 2, 2, dim=64), TURNS),
    "serpentine, all once": (lambda: problem(*CROSS), Options(serpentine=True, **ONCE)),
    "one block of shared Q, dQ sent": (lambda: problem(32, [64, 0, 130, 300], 2, 2), replace(SHORT_GAP)),
    "one Q": (lambda: problem(*CROSS), Options(q_stages=1, do_stages=1)),
    "causal": (lambda: problem(SELF, SELF, mask=Mask.make(True)), Options()),
    "causal, shared": (lambda: problem(*CROSS, mask=Mask.make(True)), Options(owned_blocks=0)),
    "causal, rows without keys": (lambda: problem(*CROSS, mask=Mask.make(True)), Options()),
    "window": (lambda: problem(*CROSS, mask=Mask.make(False, (40, 30))), Options()),
    "heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2), Options()),
    "one block of shared Q": (lambda: problem(32, [64, 0, 130, 300], 2, 2), None),
    "shared Q": (lambda: problem(150, [64, 0, 130, 300], 2, 1), None),
    "shared Q, causal": (lambda: problem(70, [64, 0, 130], 2, 2, mask=Mask.make(True)), None),
    "shared Q, causal, keys unseen": (lambda: problem(70, [400, 0, 130, 64], 2, 2, mask=Mask.make(True)), None),
    "shared Q, window, groups": (lambda: problem(150, [300, 64, 0, 200, 130], 4, 2, mask=Mask.make(False, (40, 30))),
                                 None),
    "shared Q, all once": (lambda: problem(150, [64, 0, 130, 300], 4, 2), Options(**ONCE)),
    "shared Q, K and V twice": (lambda: problem(70, [64, 0, 130, 300], 4, 2), SHORT_GAP),
    "shared Q, D = 64": (lambda: problem(150, [64, 0, 130, 300], 4, 2, dim=64), None),
    "shared Q, D = 64, dQ twice": (lambda: problem(150, [64, 0, 300], 2, 2, dim=64, mask=Mask.make(True)), Options()),
    "shared Q, half skipped": (lambda: problem(70, [40, 0, 130, 190], 2, 1), replace(SKIP, l2_hints=True)),
    "cross, all keys seen": (lambda: problem([65, 128, 0, 1, 200, 300], [64, 0, 0, 130, 300, 70]), Options()),
    "cross, all keys seen, in turns": (lambda: problem([65, 128, 200], [300, 0, 400], 2, 2), TURNS),
    "D = 64": (lambda: problem(SELF, SELF, dim=64), Options()),
    "D = 64, one block of keys and two": (lambda: problem(WIDE, WIDE, dim=64), Options()),
    "D = 64, serpentine, causal": (lambda: problem(WIDE, WIDE, dim=64, mask=Mask.make(True)), Options(serpentine=True)),
    "D = 64, cross, heads in groups": (lambda: problem(CROSS[0], CROSS[1], 4, 2, dim=64), Options(owned_blocks=0)),
    "D = 64, shared Q": (lambda: problem(70, WIDE, 2, 2, dim=64), Options()),
    "D = 64, window, shared": (lambda: problem(*CROSS, dim=64, mask=Mask.make(False, (40, 30))),
                               Options(owned_blocks=0)),
    "fp16": (lambda: problem(*CROSS, dtype=torch.float16), Options()),
    "half skipped": (lambda: problem(*CROSS), SKIP),
    "half skipped, all added": (lambda: problem(SELF, SELF), replace(SKIP, direct_dq=False)),
    "half skipped, causal": (lambda: problem([300, 65], [300, 40], mask=Mask.make(True)), SKIP),
    "half skipped, heads in groups": (lambda: problem([65, 70], [130, 60], 4, 2), SKIP),
    "half skipped, K and V twice": (lambda: problem(*CROSS), replace(SHORT_GAP, skip_half=True)),
    "half skipped, window": (lambda: problem([400, 65, 300], [400, 40, 300], mask=Mask.make(True, (100, 0))), SKIP),
    "half skipped, window, cross": (lambda: problem([300, 65, 200], [200, 300, 257], mask=Mask.make(False, (40, 30))),
                                    replace(SKIP, owned_blocks=0)),
    "half skipped, causal, cross, groups": (lambda: problem([65, 300, 1, 0, 40], [257, 300, 130, 70, 400], 2, 1,
                                                            mask=Mask.make(True)), replace(SKIP, serpentine=True)),
    "half skipped, window, all once": (lambda: problem(*CROSS, mask=Mask.make(True, (70, 0))), replace(SKIP, **ONCE)),
    "half skipped, D = 64": (lambda: problem(SELF, SELF, dim=64), SKIP),
    "half skipped, D = 64, window": (lambda: problem(WIDE, WIDE, dim=64, mask=Mask.make(True, (150, 0))),
                                     replace(SKIP, serpentine=True)),
    "take turns, dQ kept": (lambda: problem(32, [64, 0, 130, 300], 2, 2), Options(alternate=True, keep_dq=True)),
    "half skipped, dQ kept": (lambda: problem(32, [64, 0, 130, 300], 2, 2),
                              replace(SHORT_GAP, keep_dq=True, skip_half=True)),
    "half skipped, counted": (lambda: problem(*CROSS), replace(COUNTED, skip_half=True)),
    "counted": (lambda: problem(*CROSS), COUNTED),
    "counted, L2 told": (lambda: problem([65, 200], [65, 400]), replace(COUNTED, l2_hints=True)),
    "all counted": (lambda: problem(SELF, SELF), replace(COUNTED, direct_dq=False)),
    "counted, some owned": (lambda: problem([130, 65], [400, 200]), replace(COUNTED, owned_blocks=2)),
    "counted, all once": (lambda: problem(*CROSS), replace(COUNTED, **ONCE)),
    "counted, K and V twice": (lambda: problem(*CROSS), replace(SHORT_GAP, counted=True, owned_blocks=1)),
    "counted, causal": (lambda: problem([300, 65, 100], [300, 200, 70], mask=Mask.make(True)), COUNTED),
    "counted, heads in groups": (lambda: problem([65], [257], 4, 2), COUNTED),
    "counted, D = 64": (lambda: problem(WIDE, WIDE, dim=64), COUNTED),
    "counted, in order": (lambda: problem([130], [400]), replace(COUNTED, deterministic=True)),
    "negative scale": (lambda: problem(*CROSS, scale=-0.1, mask=Mask.make(True)), Options()),
}


@pytest.mark.parametrize("name", CASES)
def test_right_in_every_mode(name):
    make, options = CASES[name]
    case = make()
    if options:  # what the case is there for is what is run, with three SMs
        assert takes_turns(case, options, 3) == options.turns
        assert takes_pairs(case, options, 3, backward.BLOCK_M, backward.BLOCK_N[case.head_dim]) == options.pairs
    check(case, *tensors(case), options)


ALTERNATE = [name for name, (make, options) in CASES.items()
             if options and alternates(replace(options, alternate=True), make().head_dim, options.pairs)]


@pytest.mark.parametrize("name", ALTERNATE)
def test_consumers_that_take_turns_at_dq(name):
    make, options = CASES[name]
    case = make()
    check(case, *tensors(case), replace(options, alternate=True))


def test_they_take_turns_in_most_cases():
    assert len(ALTERNATE) > 25


@jit
def _always(n_step, CID: tl.constexpr):
    return n_step >= 0


def test_who_does_not_wait_for_the_last_dq_of_a_tile_is_found(monkeypatch):
    """Who had no part in it would take an older phase of `ready` for the one of dK's slot."""
    monkeypatch.setattr(backward_output, "is_mine", _always)
    case = problem([300, 130], [300, 400])
    with pytest.raises(SimulationError):
        check(case, *tensors(case), Options(alternate=True), mode="lazy")


def test_a_tile_of_one_step_does_not_overtake_the_wait_of_the_tile_before():
    """Whose dQ isn't due there waits for nobody before the tile's end, and stood in for the other at one barrier."""
    lengths = [280, 64, 0, 200, 65, 150, 200]
    case = problem(lengths, lengths)
    options = Options(alternate=True, skip_half=True, serpentine=True, hold=True, rotate=True, l2_hints=True)
    for seed in range(4, 7):
        check(case, *tensors(case), options, sms=1, mode="random", seed=seed)


SAME = object()
FAIR = {"deterministic": False, "owned_blocks": 8}
HELD = {
    "two tiles": ([200, 256, 130], SAME, {}, {}), "three tiles and more": ([300, 400, 70, 520], SAME, {}, {}),
    "two heads": ([200, 300, 130], SAME, {"heads_q": 2, "heads_kv": 2}, {"rotate": True, **FAIR}),
    "cross": (*CROSS, {}, {}), "cross, by fair shares": (*CROSS, {"heads_q": 2, "heads_kv": 2}, FAIR),
    "one step to a tile": ([60, 1, 64], [300, 500, 257], {}, {"rotate": True}),
    "one step to a tile, half skipped": ([60, 1, 64, 300], [300, 190, 520, 70], {}, {"skip_half": True}),
    "half skipped": ([300, 65, 400], [300, 40, 320], {}, {"skip_half": True, "l2_hints": True, "rotate": True}),
    "causal": ([300, 65, 400], SAME, {"mask": Mask.make(True)}, {"skip_half": True}),
    "causal, cross": ([65, 300, 1, 0, 40], [257, 300, 130, 70, 400], {"mask": Mask.make(True)}, {"rotate": True}),
    "beside turns": ([200, 520, 130], SAME, {"heads_q": 2, "heads_kv": 2}, {"turns": True, **FAIR, "owned_blocks": 3}),
    "beside sums": ([300, 520, 200], SAME, {}, {**FAIR, "owned_blocks": 3}),
    "one Q": (*CROSS, {}, {"q_stages": 1, "do_stages": 1}),
    "one Q, dS once": ([200, 1, 300], [257, 257, 520], {}, {"q_stages": 1, "do_stages": 1, "ds_stages": 1}),
    "two Q, one dO": ([130, 300], [520, 200], {}, {"do_stages": 1}),
    "D = 64": (WIDE, SAME, {"dim": 64}, {}),
    "D = 64, cross": ([300, 65, 1], [800, 513, 300], {"dim": 64}, {"skip_half": True}),
}


def held(name):
    """A case of ``HELD``, its options, and the values of `HOLDS`: blocks are held by one CTA, and by two."""
    len_q, len_k, changes, switches = HELD[name]
    case = problem(len_q, len_q if len_k is SAME else len_k, **changes)
    options = replace(HOLD, **switches)
    blocks = backward.BLOCK_M, backward.BLOCK_N[case.head_dim]
    values = [{*build(case, options, "zigzag", programs, *blocks).tiles[:, HOLDS].tolist()} for programs in (1, 2)]
    assert all(each & {2, 6} for each in values)
    assert all(takes_turns(case, options, programs) == options.turns for programs in (1, 2))
    return case, options, set.union(*values)


def test_cases_of_held_blocks_have_all_that_there_is():
    """A tile leaves, takes over, or both, with dQ in memory already and without; and all of it with steps of one."""
    values = {name: held(name)[2] for name in HELD}
    assert set.union(*values.values()) == {0, 1, 2, 6, 7}
    for name in ("three tiles and more", "one step to a tile", "causal, cross", "one Q, dS once", "D = 64, cross"):
        assert 7 in values[name], name


HELD_IN_TURNS = [(name, True) for name in HELD if name != "one Q, dS once"]


@pytest.mark.parametrize(("name", "alternate"), [*((name, False) for name in HELD if "D = 64" not in name),
                                                 *HELD_IN_TURNS])
def test_held_blocks(name, alternate):
    case, options, _values = held(name)
    options = replace(options, alternate=alternate)
    assert alternates(options, case.head_dim, False) == alternate
    inputs = tensors(case)
    for sms, mode, seed in ((1, "random", 0), (2, "random", 1), (1, "lazy", 2), (2, "eager", 3)):
        check(case, *inputs, options, sms=sms, mode=mode, seed=seed)


@jit
def _not_over(held, i):
    return (held < 0) & (i == 0)


@jit
def _never(held, i, steps):
    return (held < 0) & (i == steps)


@pytest.mark.parametrize("name", ["three tiles and more", "one step to a tile", "D = 64, cross"])
def test_a_block_that_is_left_without_the_dq_in_memory_is_wrong(name, monkeypatch):
    """A middle tile's dQ is added to what it took over or to what it fetches: without the latter some of it is lost."""
    case, options, _values = held(name)
    for module in (backward_step, backward_writer):
        monkeypatch.setattr(module, "fetches_to_leave", _never)
    inputs = tensors(case)
    grads = simulate(case, *inputs, options, sms=1)
    if name == "one step to a tile":  # what a middle tile leaves it has taken over
        check_gradients(case, *inputs, grads)
    else:
        with pytest.raises(AssertionError, match="dq"):
            check_gradients(case, *inputs, grads)


@pytest.mark.parametrize(("part", "broken"), [("takes_over", _not_over), ("leaves", _never)])
@pytest.mark.parametrize("module", [backward_step, backward_writer])
def test_roles_that_disagree_on_what_is_held_are_found(module, part, broken, monkeypatch):
    case, options, _values = held("two tiles")
    monkeypatch.setattr(module, part, broken)
    with pytest.raises(SimulationError):
        simulate(case, *tensors(case), options, sms=1)


@pytest.mark.parametrize(("options", "mask"), [(Options(), Mask()), (HOLD, Mask()), (HOLD, Mask.make(True))])
def test_a_schedule_that_says_that_all_keys_are_seen_is_held_to_it(options, mask, monkeypatch):
    """`all_seen` leaves out the code for tiles without steps: a false one breaks a promise to the compiler."""
    case = problem([65, 0, 40], [64, 200, 300], mask=mask)
    check(case, *tensors(case), options)
    monkeypatch.setattr(backward_plan, "all_seen", lambda case: True)
    with pytest.raises(SimulationError) as caught:
        simulate(case, *tensors(case), options)
    assert caught.value.check == "assume"


def test_keys_are_known_to_be_seen_where_they_are(monkeypatch):
    """What the kernel is compiled with: by lengths, and without a mask also where queries differ from keys."""
    seen = []
    constants = backward.kernel_constants
    monkeypatch.setattr(backward, "kernel_constants", lambda *given: seen.append(constants(*given)) or seen[-1])
    for name in ("cross", "cross, all keys seen", "causal", "self", "one block of shared Q", "shared Q",
                 "shared Q, causal"):
        make, options = CASES[name]
        case = make()
        backward._LAUNCHERS.clear()
        simulate(case, *tensors(case), options)
    assert [each["ALL_SEEN"] for each in seen] == [False, True, True, True, True, True, False]
    assert [each["SUMMED"] for each in seen] == [False] * 5 + [True] * 2


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


@pytest.mark.parametrize("changes", [{"heads_kv": 2}, {"heads_kv": 1}, {"heads_kv": 1, "dim": 64}])
def test_shared_q_does_not_depend_on_the_schedule(changes):
    case = problem(150, [64, 0, 130, 300], 2, **changes)
    inputs = tensors(case)
    first = simulate(case, *inputs, None, mode="eager")
    for mode, seed in (("lazy", 0), ("random", 1), ("random", 2)):
        assert all(torch.equal(a, b) for a, b in zip(first, simulate(case, *inputs, None, mode=mode, seed=seed),
                                                     strict=True))


@jit
def _stores_not_waited_for(x, BLOCKS: tl.constexpr):
    return x


@pytest.mark.parametrize(("make", "options"), [
    (lambda: problem(70, [130, 300, 64]), None), (lambda: problem([200], [300]), Options(deterministic=True)),
    (lambda: problem([200], [300]), HOLD),
    (lambda: problem([65, 200], [300, 520], 2, 2), TURNS)])
def test_partial_dq_that_is_not_waited_for_is_a_race(make, options, monkeypatch):
    """What the CTA's tile before has stored has to be complete before this one fetches it, or adds to it."""
    case = make()
    inputs = tensors(case)
    check(case, *inputs, options, sms=1)
    monkeypatch.setattr(backward_writer, "dq_stores_done", _stores_not_waited_for)
    with pytest.raises(SimulationError, match=r"global memory (desc_)?acc"):
        simulate(case, *inputs, options, sms=1)


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
