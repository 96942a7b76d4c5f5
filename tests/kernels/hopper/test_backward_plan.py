"""The backward's schedule that the device builds, against the one that `backward_schedule.build` defines."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.hopper import backward_schedule as bs
from kernels.hopper.backward_options import HopperBackwardOptions
from kernels.hopper.backward_plan import BLOCK_FIELDS, bounds, device_plan
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
from kernels.simulator import Simulator

MASKS = [Mask(), Mask.make(True), Mask.make(True, (50, 0)), Mask.make(False, (40, 30)), Mask.make(False, (300, None))]
OPTIONS = [HopperBackwardOptions(), HopperBackwardOptions(direct_dq=False), HopperBackwardOptions(owned_blocks=0),
           HopperBackwardOptions(owned_blocks=8), HopperBackwardOptions(deterministic=True),
           HopperBackwardOptions(owned_blocks=2, counted=True), HopperBackwardOptions(direct_dq=False, counted=True),
           HopperBackwardOptions(deterministic=True, counted=True), HopperBackwardOptions(turns=True),
           HopperBackwardOptions(owned_blocks=0, turns=True), HopperBackwardOptions(owned_blocks=8, rotate=True),
           HopperBackwardOptions(owned_blocks=8, serpentine=True, hold=True, rotate=True)]
HOLDING = {"serpentine": True, "hold": True}
LENGTHS = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=24)


def make(lengths_q, lengths_k, mask=MASKS[0], heads_q=2, heads_kv=2, broadcast=0, on_host=True):
    layout_k = JaggedLayout.from_lengths(lengths_k)
    layout_q = JaggedLayout.uniform(len(lengths_k), broadcast) if broadcast else JaggedLayout.from_lengths(lengths_q)
    if not on_host:  # as from offsets on a device, which nobody reads
        layout_q, layout_k = (JaggedLayout(layout.cu_seqlens, total=layout.total, max_seqlen=layout.max_seqlen)
                              for layout in (layout_q, layout_k))
    return JaggedProblem(layout_q, layout_k, heads_q, heads_kv, 128, torch.bfloat16, 0.1, mask, bool(broadcast))


def make_of(layout):
    return JaggedProblem(layout, layout, 2, 2, 128, torch.bfloat16, 0.1)


def built(problem, options, order="zigzag", sms=5, block_n=128):
    """Tables as `BackwardSchedule` has them, without the rows that only round them up; reads of unwritten memory and
    double writes are errors."""
    with Simulator(sms=2):
        plan = device_plan(problem, options, order, sms, 64, block_n, 0)
    known = plan.known
    ends = plan.bounds[:known.programs + 1].numpy()
    tiles = plan.tiles[:(ends[-1] + 1) * bs.FIELDS].view(-1, bs.FIELDS).numpy()
    assert not tiles[-1].any()  # what a CTA without a tile reads
    blocks = plan.blocks[:known.num_blocks * BLOCK_FIELDS].view(-1, BLOCK_FIELDS).numpy()
    used = int((-(-problem.layout_q.lengths // 64)).sum())
    assert not blocks[used:, :5].any()
    assert (blocks[used:, 5] == -1).all()
    assert ends[-1] <= known.num_tiles
    assert plan.counters.shape == (problem.batch * problem.num_heads_kv if known.turns else 1,)
    assert not (known.turns and plan.counters.any())
    return SimpleNamespace(known=known, tiles=tiles[:-1], bounds=ends, blocks=blocks[:used])


def same_work(tiles, counting=False, turns=False, pairs=False, holds=False):
    """Tiles without where their partial dQ goes, and without what no step is left to notice."""
    tiles = tiles.copy()
    tiles[:, bs.FIRST_FROM] = np.minimum(tiles[:, bs.FIRST_FROM], tiles[:, bs.STEPS])
    unread = set(range(bs.STORES, bs.FIELDS))
    unread -= set(range(bs.STORES, bs.COUNTER)) if counting else {bs.WANTED, bs.COUNTER} if turns else set()
    unread -= {bs.ROLE, bs.BACK} if pairs else {bs.HOLDS} if holds else set()
    tiles[:, [bs.ACC_BLOCK, bs.ACC_GROUP, *unread]] = 0
    if counting:  # a tile without steps has nothing to wait for or to cast
        tiles[tiles[:, bs.STEPS] == 0, bs.STORES:bs.WANTED + 1] = 0
    return tiles


@given(LENGTHS, st.sampled_from(MASKS), st.sampled_from(OPTIONS), st.sampled_from(["none", "sorted",
       "zigzag"]), st.sampled_from([(2, 2), (4, 2), (3, 1)]), st.sampled_from([128, 256]), st.booleans())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_it_is_the_schedule_that_the_host_would_build(pairs, mask, options, order, heads, block_n, on_host):
    problem = make(*zip(*pairs, strict=True), mask, *heads, on_host=on_host)
    if problem.layout_q.total and problem.layout_k.total:
        check_against_the_host(problem, options, order, 5, block_n)


@given(LENGTHS, st.sampled_from([Mask(), Mask.make(True), Mask.make(False, (None, 30))]), st.integers(0, 4),
       st.sampled_from(["none", "sorted", "zigzag"]), st.sampled_from([(2, 2), (4, 2), (3, 1)]), st.integers(1, 7),
       st.sampled_from([128, 256]), st.booleans(), st.booleans())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_so_it_is_where_tiles_take_turns(pairs, mask, owned, order, heads, sms, block_n, on_host, hold):
    problem = make(*zip(*pairs, strict=True), mask, *heads, on_host=on_host)
    if problem.layout_q.total and problem.layout_k.total:
        options = HopperBackwardOptions(owned_blocks=owned, turns=True, serpentine=hold, hold=hold)
        check_against_the_host(problem, options, order, sms, block_n)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 900)), min_size=1, max_size=24), st.booleans(),
       st.sampled_from(MASKS), st.sampled_from([{"owned_blocks": 8}, {"owned_blocks": 8, "rotate": True},
       {"owned_blocks": 2, "turns": True}, {"deterministic": True}]), st.sampled_from(["none", "sorted", "zigzag"]),
       st.integers(1, 3), st.integers(1, 7), st.sampled_from([128, 256]), st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_so_it_is_where_blocks_are_held(pairs, cross, mask, switches, order, heads, sms, block_n, on_host):
    lengths_q, lengths_k = zip(*pairs, strict=True)
    problem = make(lengths_q if cross else lengths_k, lengths_k, mask, heads, heads, on_host=on_host)
    if problem.layout_q.total and problem.layout_k.total:
        made = check_against_the_host(problem, HopperBackwardOptions(**HOLDING, **switches), order, sms, block_n)
        assert made.known.holds == (mask.left is None)


SELF_LENGTHS = [300, 0, 500, 64, 700, 129, 1, 64, 640, 256]
CROSS_LENGTHS = [300, 0, 500, 64, 700, 400, 130, 1, 64, 60], [900, 300, 0, 128, 130, 257, 520, 900, 640, 256]


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(("lengths", "mask", "heads", "switches", "values"), [
    ("self", Mask(), (2, 2), {"rotate": True}, {0, 1, 2, 7}), ("cross", Mask(), (3, 3), {}, {0, 1, 2, 7}),
    ("self", Mask.make(True), (2, 2), {}, {0, 1, 2, 6}),
    ("self", Mask.make(True), (1, 1), {"rotate": True}, {0, 1, 2, 6}),
    # 7: a walk backwards ends where the next begins, as several KV blocks are seen by the same queries
    ("cross", Mask.make(True), (2, 2), {}, {0, 1, 2, 6, 7}), ("cross", Mask.make(False, (None, 30)), (2, 2),
                                                               {"rotate": True}, {0, 1, 2, 6, 7}),
    ("self", Mask(), (2, 2), {"turns": True, "owned_blocks": 3}, {0, 1, 2, 7}),
    ("cross", Mask.make(True), (2, 2), {"turns": True, "owned_blocks": 3}, {0, 1, 2}),
    ("cross", Mask(), (2, 2), {"deterministic": True}, {0, 1, 2, 7}),
    # here nothing is held
    ("self", Mask(), (4, 2), {}, None), ("self", Mask.make(True, (50, 0)), (2, 2), {}, None),
    ("self", Mask(), (2, 2), {"pairs": True, "owned_blocks": 6}, None), ("self", Mask(), (2, 2), {"serpentine": False},
                                                                          None),
])
def test_held_blocks(lengths, mask, heads, switches, values, on_host):
    """With every value of `HOLDS` that there can be: only a sequence's first tile leaves a block that none touched."""
    lengths_q, lengths_k = (SELF_LENGTHS,) * 2 if lengths == "self" else CROSS_LENGTHS
    problem = make(lengths_q * 2, lengths_k * 2, mask, *heads, on_host=on_host)
    options = HopperBackwardOptions(**{"owned_blocks": 8} | HOLDING | switches)
    made = check_against_the_host(problem, options, "zigzag", 3, 128)
    assert made.known.holds == (values is not None)
    assert made.known.turns == options.turns
    assert made.known.pairs == options.pairs
    if values:
        assert set(made.tiles[:, bs.HOLDS]) == values


def test_plans_with_held_blocks_are_kept_apart():
    problem = make([300] * 9, [300] * 9)
    small = JaggedProblem(problem.layout_q, problem.layout_k, 2, 2, 64, torch.bfloat16, 0.1)
    groups = JaggedProblem(problem.layout_q, problem.layout_k, 4, 2, 128, torch.bfloat16, 0.1)
    for chosen, options, held in ((problem, {}, True), (groups, {}, False), (problem, {"hold": False}, False),
                                  (problem, {"pairs": True}, False), (small, {"pairs": True}, True),
                                  (problem, {"serpentine": False}, False), (problem, {}, True),
                                  (problem, {"kv_stages": 2, "dq_stages": 1}, False),
                                  (problem, {"dq_stages": 1}, False), (problem, {"counted": True}, False),
                                  (problem, {"rotate": True}, True), (problem, {"turns": True}, True)):
        made = check_against_the_host(chosen, HopperBackwardOptions(**HOLDING | options), "zigzag", 4, 128)
        assert made.known.holds == held
        assert not held or made.tiles[:, bs.HOLDS].any()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("on_host", [False, True])
def test_every_query_of_one_layout_sees_a_key(on_host, mask):
    layout = make(SELF_LENGTHS, SELF_LENGTHS, on_host=on_host).layout_k
    problem = JaggedProblem(layout, layout, 2, 2, 128, torch.bfloat16, 0.1, mask)
    made = check_against_the_host(problem, HopperBackwardOptions(), "zigzag", 3, 128)
    assert made.known.all_seen
    assert (made.tiles[:, bs.STEPS] > 0).all()


@pytest.mark.parametrize(("lengths_q", "lengths_k", "mask", "on_host", "seen"), [
    ([5, 300, 0], [300, 5, 0], Mask(), True, True), ([5, 300, 1], [300, 0, 0], Mask(), True, True),
    ([5, 300, 0], [300, 5, 1], Mask(), True, False), ([0, 300], [1, 5], Mask(), True, False),
    ([5, 300], [300, 5], Mask(), False, False),  # as nobody knows
    ([5, 300], [5, 300], Mask.make(True), True, False), ([5, 300], [300, 5], Mask.make(True), True, False),
    ([5, 300], [5, 300], Mask.make(False, (9, 9)), True, False), (32, [300, 5, 0], Mask(), True, True),
    (32, [300, 5, 0], Mask(), False, True), (32, [300, 5, 0], Mask.make(True), True, False),
    (32, [300, 5, 0], Mask.make(False, (9, None)), True, False),
])
def test_keys_that_no_query_may_see(lengths_q, lengths_k, mask, on_host, seen):
    """Two layouts, even equal ones, tell nothing with a mask; without one, lengths on the host do."""
    broadcast = lengths_q if isinstance(lengths_q, int) else 0
    problem = make(lengths_q, lengths_k, mask, broadcast=broadcast, on_host=on_host)
    known = bounds(problem, HopperBackwardOptions(), 3, 64, 128)
    assert known.all_seen == bs.all_seen(problem) == seen
    if seen:
        assert (built(problem, HopperBackwardOptions(), sms=3).tiles[:, bs.STEPS] > 0).all()


@given(LENGTHS, st.booleans(), st.sampled_from(MASKS), st.integers(0, 2), st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_where_all_keys_are_said_to_be_seen_no_tile_is_without_steps(pairs, same, mask, broadcast, on_host):
    problem = make(*zip(*pairs, strict=True), mask, broadcast=70 * broadcast, on_host=on_host)
    if same and not broadcast:
        problem = JaggedProblem(problem.layout_k, problem.layout_k, 2, 2, 128, torch.bfloat16, 0.1, mask)
    if problem.layout_q.total and problem.layout_k.total and bs.all_seen(problem):
        assert (built(problem, HopperBackwardOptions()).tiles[:, bs.STEPS] > 0).all()


@pytest.mark.parametrize("mask", [Mask(), Mask.make(True)])
@pytest.mark.parametrize("order", ["none", "sorted", "zigzag"])
def test_turns_beside_owned_sequences(mask, order):
    """Cross lengths: sequences without keys, without queries, with tiles without steps; of one to eight tiles."""
    lengths_q = [300, 0, 500, 64, 700, 900, 130, 1, 64, 900]
    lengths_k = [900, 300, 0, 128, 130, 257, 520, 900, 640, 256]
    problem = make(lengths_q, lengths_k, mask, 4, 2, on_host=False)
    made = check_against_the_host(problem, HopperBackwardOptions(owned_blocks=2, turns=True), order, 5, 128)
    counters = made.tiles[:, bs.COUNTER]
    assert made.known.turns
    assert set(counters) == {-1, *(2 * b + head for b in (0, 1, 5, 6, 7, 8) for head in range(2))}


def test_plans_with_and_without_turns_are_kept_apart():
    problem = make([300] * 3, [300] * 3)
    for turns in (False, True, False):
        with Simulator(sms=2):
            plan = device_plan(problem, HopperBackwardOptions(owned_blocks=1, turns=turns), "zigzag", 3, 64, 128, 0)
        assert plan.known.turns == turns


PAIRS = [(order, rotate, serpentine) for order in ("none", "sorted", "zigzag") for rotate in (False, True)
         for serpentine in (False, True)]


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 700)), min_size=12, max_size=48), st.booleans(),
       st.sampled_from(PAIRS), st.integers(1, 3), st.integers(1, 7), st.sampled_from([128, 256]), st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_so_it_is_where_pairs_do_all_tiles(lengths, cross, variant, heads, sms, block_n, on_host):
    lengths_q, lengths_k = zip(*lengths, strict=True)
    problem = make(lengths_q if cross else lengths_k, lengths_k, MASKS[0], heads, heads, on_host=on_host)
    if problem.layout_q.total and problem.layout_k.total:
        order, rotate, serpentine = variant
        options = HopperBackwardOptions(owned_blocks=8, pairs=True, rotate=rotate, serpentine=serpentine, hold=True)
        check_against_the_host(problem, options, order, sms, block_n)


@pytest.mark.parametrize(("order", "rotate", "serpentine"), PAIRS)
@pytest.mark.parametrize(("heads", "sms", "on_host"), [(1, 2, True), (2, 5, False), (3, 8, True),
                                                       (3, 7, False)])
@pytest.mark.parametrize("lengths", ["self", "cross", "odd", "even", "short"])
def test_pairs(lengths, heads, sms, on_host, order, rotate, serpentine):
    """Sequences without keys, without queries; an odd number of KV blocks, an even one, one; odd numbers of items."""
    lengths_q, lengths_k = {
        "self": ([0, 300, 64, 129, 1, 200, 512, 640, 385, 256] * 6 + [130, 64, 200],) * 2,
        "cross": ([65, 128, 1, 0, 64, 200, 129, 300, 400] * 7, [64, 0, 130, 300, 128, 257, 640, 5, 260] * 7),
        "odd": ([300, 128, 640, 1, 256] * 9, [100, 300, 640, 384, 128] * 9),
        "even": ([300, 128, 640, 1, 256] * 9, [256, 512, 130, 768, 129] * 9),
        "short": ([64, 128, 1, 0, 300] * 5, [128, 5, 0, 70, 128] * 5)}[lengths]
    problem = make(lengths_q, lengths_k, MASKS[0], heads, heads, on_host=on_host)
    options = HopperBackwardOptions(owned_blocks=8, pairs=True, rotate=rotate, serpentine=serpentine)
    made = check_against_the_host(problem, options, order, sms, 128)
    assert made.known.pairs
    assert made.known.programs == sms // 2 * 2
    assert made.tiles[:, bs.BACK].any() == (serpentine and lengths != "short")


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(("heads", "sms", "clusters"), [(1, 4, 2), (2, 8, 4)])
def test_more_pairs_than_items(on_host, rotate, heads, sms, clusters):
    problem = make([0] * 50 + [64] + [0] * 50, [0] * 50 + [300] + [0] * 50, MASKS[0], heads, heads, on_host=on_host)
    options = HopperBackwardOptions(owned_blocks=8, pairs=True, rotate=rotate)
    made = check_against_the_host(problem, options, "zigzag", sms, 128)
    assert made.known.pairs
    assert made.known.programs // 2 == min(clusters, made.known.num_tiles // 2)
    assert made.tiles[:, bs.ROLE].tolist() == [0, 1, 2] * heads


def test_plans_with_pairs_are_kept_apart():
    problem = make([300] * 9, [300] * 9)
    small = JaggedProblem(problem.layout_q, problem.layout_k, 2, 2, 64, torch.bfloat16, 0.1)
    one = {"pairs": True}
    for chosen, options, pairs in ((problem, one, True), (problem, {}, False), (small, one, False),
                                   (problem, one | {"kv_stages": 2}, False), (problem, one | {"dq_stages": 1}, False),
                                   (problem, one | {"rotate": True}, True),
                                   (problem, one | {"serpentine": True}, True)):
        made = check_against_the_host(chosen, HopperBackwardOptions(**options), "zigzag", 4, 128)
        assert made.known.pairs == pairs


def check_against_the_host(problem, options, order, sms, block_n):
    made = built(problem, options, order, sms, block_n)
    wanted = bs.build(problem, options, order, made.known.programs, 64, block_n)
    counting, turns = bs.counted(problem, options), made.known.turns
    assert turns == bs.takes_turns(problem, options, made.known.programs)
    pairs = made.known.pairs
    assert pairs == bs.takes_pairs(problem, options, min(sms, made.known.num_tiles), 64, block_n)
    assert made.known.holds == bs.holds(problem, options, pairs)
    kinds = counting, turns, pairs, made.known.holds
    np.testing.assert_array_equal(same_work(made.tiles, *kinds), same_work(wanted.tiles, *kinds))
    if pairs:
        assert made.known.programs % 2 == 0
        scratch = wanted.shared_at // (len(wanted.bounds) - 1)
        assert made.known.scratch >= scratch
        assert made.known.acc_blocks == made.known.shared_at == made.known.programs * made.known.scratch
        regions = wanted.tiles[:, bs.ACC_BLOCK] // max(scratch, 1)
        if scratch:  # else nothing is written there
            np.testing.assert_array_equal(made.tiles[:, bs.ACC_BLOCK], regions * made.known.scratch)
        np.testing.assert_array_equal(made.tiles[:, bs.ACC_GROUP], wanted.tiles[:, bs.ACC_GROUP])
    np.testing.assert_array_equal(made.bounds[:len(wanted.bounds)], wanted.bounds)
    assert (made.bounds[len(wanted.bounds):] == wanted.bounds[-1]).all()  # more CTAs than items
    np.testing.assert_array_equal(made.blocks[:, :5], wanted.blocks[:, :5])
    shared = wanted.blocks[:, 5] >= 0
    np.testing.assert_array_equal(made.blocks[:, 5], np.where(shared, np.arange(len(shared)), -1))
    assert made.known.shared_blocks or not shared.any()
    return made


@given(LENGTHS, st.sampled_from(MASKS), st.sampled_from(OPTIONS), st.sampled_from([2, 5]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_partial_dq_has_a_place_of_its_own(pairs, mask, options, sms):
    """No two CTAs, heads or sequences share a block of the accumulator, and none is outside of it."""
    problem = make(*zip(*pairs, strict=True), mask, 4, 2)
    if not problem.layout_q.total or not problem.layout_k.total:
        return
    made = built(problem, options, sms=sms)
    known, users = made.known, {}
    for program in range(known.programs):
        for record in made.tiles[made.bounds[program]:made.bounds[program + 1]]:
            for g in range(problem.group_size):
                for i in range(record[bs.STEPS]):
                    if record[bs.FIRST_FROM] <= i < record[bs.LASTS]:
                        continue  # it never leaves the CTA
                    block = record[bs.BLOCK] + i
                    at = record[bs.ACC_BLOCK] + g * record[bs.ACC_GROUP] + block
                    head = record[bs.HEAD] * problem.group_size + g
                    row = record[bs.ROW_BLOCK] + block
                    assert 0 <= at < known.acc_blocks
                    if known.turns and record[bs.COUNTER] >= 0:
                        assert made.blocks[row, 5] == -1
                        assert at == known.shared_at + head * known.shared_blocks + row
                        assert users.setdefault(at, (head, row)) == (head, row)
                    elif made.blocks[row, 5] >= 0:
                        assert at == known.shared_at + head * known.shared_blocks + made.blocks[row, 5]
                        assert users.setdefault(at, (head, row)) == (head, row)
                    else:
                        assert at < known.shared_at
                        assert users.setdefault(at, program) == program


@pytest.mark.parametrize(("lengths", "more_rows", "longest"), [([300, 64], 400, 300), ([1500, 70], 0, 512),
                                                               ([520, 300, 520, 640, 70], 0, 512)])
def test_blocks_that_are_not_there_are_said_to_be_none(lengths, more_rows, longest):
    """Rows after the last sequence, and a longest length that is too small: nothing may read what wasn't written."""
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    layout = JaggedLayout(offsets, total=sum(lengths) + more_rows, max_seqlen=longest)
    with Simulator(sms=2):
        plan = device_plan(make_of(layout), HopperBackwardOptions(), "zigzag", 5, 64, 128, 0)
    blocks = plan.blocks[:plan.known.num_blocks * BLOCK_FIELDS].view(-1, BLOCK_FIELDS)
    used = sum(-(-min(length, longest) // 64) for length in lengths)
    assert plan.known.num_blocks > used + len(lengths)
    assert not blocks[used:, :5].any()
    assert (blocks[used:, 5] == -1).all()


def test_a_window_longer_than_everything():
    problem = make([1], [128], Mask.make(False, (300, None)))
    np.testing.assert_array_equal(same_work(built(problem, OPTIONS[0]).tiles),
                                  same_work(bs.build(problem, OPTIONS[0], "zigzag", 2, 64).tiles))


@given(LENGTHS, st.sampled_from(MASKS), st.sampled_from([(2, 2), (4, 1)]), st.sampled_from(["none", "zigzag"]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_broadcast_copies(pairs, mask, heads, order):
    problem = make(None, [k for _, k in pairs], mask, *heads, broadcast=100)
    if not problem.layout_k.total:
        return
    made = built(problem, HopperBackwardOptions(), order, sms=8)
    known = made.known
    wanted = bs.build(problem, HopperBackwardOptions(), order, 8, 64)
    fixed = [bs.Q_START, bs.Q_LEN, bs.OUT_START, bs.K_START, bs.K_LEN, bs.K_ROW, bs.STEPS, bs.CUT_END, bs.CUT_FROM,
             bs.BLOCK, bs.HEAD, bs.ROW_BLOCK, bs.ACC_GROUP]
    assert sorted(map(tuple, made.tiles[:, fixed])) == sorted(map(tuple, wanted.tiles[:, fixed]))
    np.testing.assert_array_equal(made.blocks, wanted.blocks)
    assert known.programs == problem.num_heads_kv * known.copies
    for program in range(known.programs):
        tiles = made.tiles[made.bounds[program]:made.bounds[program + 1]]
        assert len(tiles)
        assert set(tiles[:, bs.HEAD]) == {program // known.copies}
        assert set(tiles[:, bs.ACC_BLOCK]) == {program * problem.group_size * 2}  # 100 rows are 2 blocks
        assert not tiles[:, bs.LASTS].any()
        assert (tiles[:, bs.FIRST_FROM] == 0).sum() == mask.is_full
        assert tiles[:, bs.AFTER_ITSELF].tolist() == [0] + [1] * (len(tiles) - 1)
    assert known.acc_blocks == known.programs * problem.group_size * 2


@pytest.mark.parametrize("options", [HopperBackwardOptions(), HopperBackwardOptions(owned_blocks=1, turns=True),
                                     HopperBackwardOptions(pairs=True, rotate=True, serpentine=True),
                                     HopperBackwardOptions(rotate=True),
                                     HopperBackwardOptions(**HOLDING, owned_blocks=8, rotate=True)])
def test_more_items_than_a_program_deals_at_once(options):
    lengths = np.random.default_rng(0).integers(0, 300, 700)
    problem = make(lengths, lengths, heads_q=4, heads_kv=4)
    made = check_against_the_host(problem, options, "zigzag", 4, 128)
    assert (made.known.turns, made.known.pairs, made.known.holds) == (options.turns, options.pairs, options.hold)
    assert len(made.bounds) == 5
    assert (np.diff(made.bounds) > 640).all()


@pytest.mark.parametrize("order", ["none", "zigzag"])
@pytest.mark.parametrize(("count", "sms"), [(1, 5), (5, 7), (64, 1), (65, 1), (190, 3), (193, 3), (191, 3), (400, 2)])
def test_rotated_lists_of_one_to_200_items(count, sms, order):
    """As many as a program deals at once, one more, and lists of which some are an item longer than others."""
    lengths = np.random.default_rng(count).integers(1, 400, count)
    problem = make(lengths, lengths, heads_q=1, heads_kv=1)
    options = HopperBackwardOptions(**HOLDING, owned_blocks=8, rotate=True)
    made = check_against_the_host(problem, options, order, sms, 128)
    assert len(made.bounds) == min(sms, made.known.num_tiles) + 1


@pytest.mark.parametrize(("lengths", "on_host", "scratch"), [
    ([700, 700], False, 0), ([700, 699], False, 11), ([700, 699], True, 0), ([700, 130, 260], True, 5),
    ([700, 130, 260], False, 11), ([500, 490, 130], True, 8), ([500, 490, 130], False, 8)])
def test_room_for_owned_sequences_is_what_the_longest_may_need(lengths, on_host, scratch):
    known = bounds(make(lengths, lengths, on_host=on_host), HopperBackwardOptions(), 2, 64, 128)
    assert known.scratch == scratch
    assert known.shared_at == known.programs * known.scratch


def test_lengths_on_the_host_leave_no_room_for_blocks_that_are_not_there():
    lengths = [1, 700, 65, 0, 600]
    for on_host, blocks in ((True, 1 + 11 + 2 + 10), (False, sum(lengths) // 64 + 5)):
        known = bounds(make(lengths, lengths, on_host=on_host), HopperBackwardOptions(direct_dq=False), 40, 64, 128)
        assert (known.num_blocks, known.acc_blocks) == (blocks, 2 * blocks)


def test_offsets_that_only_the_device_knows_are_not_read_by_the_host(monkeypatch):
    problem = make([5, 300], [200, 70], on_host=False)
    monkeypatch.setattr(JaggedLayout, "offsets", property(lambda self: pytest.fail("the host reads the offsets")))
    with Simulator(sms=2):
        device_plan(problem, HopperBackwardOptions(), "zigzag", 5, 64, 128, 0)
