"""The backward's schedule against brute force: who computes what, and who writes each block of dQ."""

import itertools

import numpy as np
import pytest
import torch

from kernels.hopper import backward_schedule as bs
from kernels.hopper.backward_options import HopperBackwardOptions
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem

LENGTHS = {
    "self": ([0, 300, 64, 129, 1, 200, 900], [0, 300, 64, 129, 1, 200, 900]),
    "cross": ([65, 128, 1, 0, 64, 200, 129, 300], [64, 0, 130, 70, 128, 257, 700, 5]),
    "empty": ([0, 0], [0, 0]),
}
MASKS = {
    "full": Mask(), "causal": Mask.make(True), "window": Mask.make(True, (50, 0)), "both": Mask.make(False, (40, 30)),
    "long": Mask.make(False, (300, None)),
}
OPTIONS = {
    "owned": HopperBackwardOptions(), "shared": HopperBackwardOptions(direct_dq=False),
    "direct": HopperBackwardOptions(owned_blocks=0), "deterministic": HopperBackwardOptions(deterministic=True),
    "counted": HopperBackwardOptions(owned_blocks=2, counted=True),
    "all counted": HopperBackwardOptions(direct_dq=False, counted=True),
    "counted in order": HopperBackwardOptions(owned_blocks=1, counted=True, deterministic=True),
}


def make(lengths, mask, heads_q=2, heads_kv=2, broadcast=0):
    len_q, len_k = LENGTHS[lengths]
    layout_q = JaggedLayout.uniform(len(len_k), broadcast) if broadcast else JaggedLayout.from_lengths(len_q)
    return JaggedProblem(layout_q, JaggedLayout.from_lengths(len_k), heads_q, heads_kv, 128, torch.bfloat16, 0.1,
                         MASKS[mask], bool(broadcast))


def visible(problem, b):
    """bool [len_q, len_k]"""
    len_q, len_k = int(problem.layout_q.lengths[b]), int(problem.layout_k.lengths[b])
    low, high = problem.mask.key_bounds(np.arange(len_q), np.int64(len_q), np.int64(len_k))
    key = np.arange(len_k)
    return (key >= low[:, None]) & (key < high[:, None])


def blocks_seen(problem, b, block_m, row):
    """Blocks of Q with a row that sees a key of the KV block, and those all of whose rows see all of 128 keys."""
    seen = visible(problem, b)
    n = -(-seen.shape[0] // block_m)
    some = [m for m in range(n) if seen[m * block_m:(m + 1) * block_m, row:row + 128].any()]
    whole = [m for m in range(n) if seen.shape[1] >= row + 128
             and seen[m * block_m:(m + 1) * block_m, row:row + 128].all()]
    return some, whole


@pytest.mark.parametrize(("lengths", "mask", "options", "block_m"), [
    *itertools.product(LENGTHS, MASKS, OPTIONS, (64, 128))])
def test_tiles_cover_what_is_visible_once(lengths, mask, options, block_m):
    problem = make(lengths, mask)
    made = bs.build(problem, OPTIONS[options], "zigzag", 3, block_m)
    seen = set()
    for record in made.tiles:
        b = int(np.flatnonzero((problem.layout_k.offsets[:-1] == record[bs.K_START])
                               & (problem.layout_k.lengths == record[bs.K_LEN]))[0])
        key = (int(record[bs.K_START]), int(record[bs.K_ROW]), int(record[bs.HEAD]))
        assert key not in seen
        seen.add(key)
        some, whole = blocks_seen(problem, b, block_m, int(record[bs.K_ROW]))
        steps = range(record[bs.BLOCK], record[bs.BLOCK] + record[bs.STEPS])
        assert list(steps) == some  # visible blocks of Q are next to each other
        free = steps[record[bs.CUT_END]:record[bs.CUT_FROM]]
        assert set(free) <= set(whole)
    assert len(seen) == problem.num_heads_kv * int((-(-problem.layout_k.lengths // 128)).sum())
    assert made.bounds[-1] == len(made.tiles)
    assert (np.diff(made.bounds) > 0).all() or not len(made.tiles)  # a CTA reads its first record unasked


@pytest.mark.parametrize(("lengths", "mask", "options"), [*itertools.product(LENGTHS, MASKS, OPTIONS)])
def test_every_row_of_dq_has_one_writer(lengths, mask, options):
    """Follow each CTA through its tiles: a partial is stored before it is added to or read, and each dq leaves once."""
    problem = make(lengths, mask, heads_q=4, heads_kv=2)
    made = bs.build(problem, OPTIONS[options], "zigzag", 3, 64)
    group = problem.group_size
    written = np.zeros((problem.num_heads_q, len(made.blocks)), dtype=int)
    written += made.blocks[:, 4][None]  # zeroed beforehand
    if bs.counted(problem, OPTIONS[options]):
        for record, g in itertools.product(made.tiles, range(group)):
            block = record[bs.ROW_BLOCK] + record[bs.CAST_FROM]
            written[record[bs.HEAD] * group + g, block:block + record[bs.CASTS]] += 1
    else:
        written += (made.blocks[:, 5] >= 0)[None]  # cast afterwards
    for program in range(len(made.bounds) - 1):
        holds = {}  # block of the accumulator -> (head, block of rows) whose partial it is
        for record in made.tiles[made.bounds[program]:made.bounds[program + 1]]:
            for g, i in itertools.product(range(group), range(record[bs.STEPS])):
                head, block = record[bs.HEAD] * group + g, record[bs.ROW_BLOCK] + record[bs.BLOCK] + i
                at = record[bs.ACC_BLOCK] + g * record[bs.ACC_GROUP] + record[bs.BLOCK] + i
                first, last = i >= record[bs.FIRST_FROM], i < record[bs.LASTS]
                if made.blocks[block, 5] >= 0:
                    assert not first
                    assert not last
                    assert at == made.shared_at + head * made.shared_blocks + made.blocks[block, 5]
                    continue
                assert (i < record[bs.PARTIALS]) == (last and not first)
                if not first:
                    assert holds[at] == (head, block)
                    assert record[bs.AFTER_ITSELF]
                if last:
                    written[head, block] += 1
                elif first:
                    holds[at] = (head, block)
                    assert at < made.shared_at
                if made.acc_blocks:
                    assert at < made.acc_blocks or last
    assert (written == 1).all()


@pytest.mark.parametrize(("lengths", "mask", "options", "order", "programs"), [
    *itertools.product(["self", "cross"], ["full", "causal"], ["counted", "all counted"], ["none", "sorted", "zigzag"],
                       [1, 2, 3, 7, 40]),
    *itertools.product(["self", "cross"], ["full"], ["counted in order"], ["none", "zigzag"], [1, 3, 7])])
def test_counted_tiles_never_wait_in_a_circle(lengths, mask, options, order, programs):
    """One CTA goes on for as long as it can, then another: a block is stored once, before others add; all come in."""
    problem = make(lengths, mask, heads_q=4, heads_kv=2)
    made = bs.build(problem, OPTIONS[options], order, programs, 64)
    counters, adds = {}, {}

    def steps(record):
        for g, i in itertools.product(range(problem.group_size), range(record[bs.STEPS])):
            key = (record[bs.HEAD] * problem.group_size + g, record[bs.ROW_BLOCK] + record[bs.BLOCK] + i)
            if record[bs.TOUCHED]:
                while i >= record[bs.STORES] and counters.get(key, 0) < record[bs.WANTED]:
                    yield False
                assert (i < record[bs.STORES]) == (key not in counters)
                if OPTIONS[options].deterministic:
                    adds.setdefault(key, []).append(record[bs.K_ROW])
                counters[key] = counters.get(key, 0) + 1
            yield True

    rounds = [itertools.chain.from_iterable(map(steps, made.tiles[a:b])) for a, b in itertools.pairwise(made.bounds)]
    while rounds:
        for cta in list(rounds):
            went = next(cta, None)
            if went is None:
                rounds.remove(cta)
            if went is not False:
                break
        else:
            pytest.fail("everybody waits")
    touched = {}
    for record, g in itertools.product(made.tiles, range(problem.group_size)):
        for m in range(record[bs.CAST_FROM], record[bs.CAST_FROM] + record[bs.CASTS]):
            touched[record[bs.HEAD] * problem.group_size + g, record[bs.ROW_BLOCK] + m] = record[bs.TOUCHED]
    assert touched == counters
    assert touched
    assert all(order == sorted(order, reverse=True) for order in adds.values())


def test_counted_is_left_out_where_it_has_no_meaning():
    for mask, options in (("window", "counted"), ("causal", "counted in order"), ("long", "all counted")):
        made = bs.build(make("self", mask), OPTIONS[options], "zigzag", 3, 64)
        assert not made.tiles[:, bs.STORES:].any()


@pytest.mark.parametrize(("mask", "heads_kv"), [("full", 2), ("causal", 2), ("full", 4), ("window", 1)])
def test_broadcast_copies(mask, heads_kv):
    problem = make("cross", mask, heads_q=4, heads_kv=heads_kv, broadcast=100)
    made = bs.build(problem, HopperBackwardOptions(), "zigzag", 8, 64)
    assert len(made.bounds) == heads_kv * made.copies + 1
    per_program = problem.group_size * 2  # 100 rows are 2 blocks
    for program in range(len(made.bounds) - 1):
        tiles = made.tiles[made.bounds[program]:made.bounds[program + 1]]
        assert len(tiles)
        assert set(tiles[:, bs.HEAD]) == {program // made.copies}
        assert set(tiles[:, bs.ACC_BLOCK]) == {program * per_program}
        assert not tiles[:, bs.LASTS].any()
        assert made.zero_first or (tiles[:, bs.FIRST_FROM] == 0).sum() == 1
        assert tiles[0, bs.AFTER_ITSELF] == 0
        assert tiles[1:, bs.AFTER_ITSELF].all()
    assert made.acc_blocks == heads_kv * made.copies * per_program


def test_owned_sequences_do_not_outgrow_a_fair_share():
    lengths = [128 * 4] + [64] * 6
    layout = JaggedLayout.from_lengths(lengths)
    problem = JaggedProblem(layout, layout, 1, 1, 128, torch.bfloat16, 0.1)
    made = bs.build(problem, HopperBackwardOptions(owned_blocks=8), "zigzag", 4, 64)
    assert made.shared_blocks == 8
    assert bs.build(problem, HopperBackwardOptions(deterministic=True), "zigzag", 4, 64).shared_blocks == 0
    in_order = bs.build(problem, HopperBackwardOptions(deterministic=True, counted=True), "zigzag", 4, 64)
    assert in_order.shared_blocks == 8
    assert sorted(in_order.tiles[in_order.tiles[:, bs.TOUCHED] > 0, bs.WANTED]) == [0, 1, 2, 3]


@pytest.mark.parametrize(("order", "spread"), [("none", 4.0), ("zigzag", 0.35)])
def test_zigzag_balances(order, spread):
    lengths = np.random.default_rng(0).integers(1, 1025, 64)
    layout = JaggedLayout.from_lengths(lengths)
    problem = JaggedProblem(layout, layout, 2, 2, 128, torch.bfloat16, 0.1)
    made = bs.build(problem, HopperBackwardOptions(), order, 16, 64)
    loads = [made.tiles[a:b, bs.STEPS].sum() for a, b in itertools.pairwise(made.bounds)]
    assert max(loads) <= (1 + spread) * np.mean(loads)
