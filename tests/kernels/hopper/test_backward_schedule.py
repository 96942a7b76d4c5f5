"""The backward's schedule against brute force: who computes what, and who writes each block of dQ."""

import itertools
from dataclasses import replace

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
    "cross": ([65, 128, 1, 0, 64, 200, 129, 300, 400], [64, 0, 130, 70, 128, 257, 700, 5, 260]),
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
    "turns": HopperBackwardOptions(turns=True), "most in turns": HopperBackwardOptions(owned_blocks=1, turns=True),
    "rotated": HopperBackwardOptions(owned_blocks=8, rotate=True),
    "held": HopperBackwardOptions(owned_blocks=8, serpentine=True, hold=True, rotate=True),
    "held beside turns": HopperBackwardOptions(owned_blocks=3, serpentine=True, hold=True, turns=True),
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


def sequence_of(problem, record):
    return int(np.flatnonzero((problem.layout_k.offsets[:-1] == record[bs.K_START])
                              & (problem.layout_k.lengths == record[bs.K_LEN]))[0])


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
        b = sequence_of(problem, record)
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
    turns = bs.takes_turns(problem, OPTIONS[options], 3)
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
                if turns and record[bs.COUNTER] >= 0:  # the rest: see `test_tiles_in_turns_open_add_and_close`
                    written[head, block] += last
                    continue
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


def walk(record):
    """The blocks of rows of a tile's steps, in the order of a serpentine walk."""
    blocks = [*range(record[bs.BLOCK], record[bs.BLOCK] + record[bs.STEPS])]
    return blocks[::-1] if record[bs.AFTER_ITSELF] and record[bs.K_ROW] // 128 % 2 else blocks


@pytest.mark.parametrize(("lengths", "mask", "options", "programs", "block_m"), [*itertools.product(
    ["self", "cross"], ["full", "causal"], ["held", "held beside turns"], [1, 3], [64, 128])])
def test_a_block_is_held_wherever_a_walk_turns(lengths, mask, options, programs, block_m):
    """By following each CTA: from one tile of an owned sequence to the next, if it begins where that one ended."""
    made = bs.build(make(lengths, mask), OPTIONS[options], "zigzag", programs, block_m)
    held = 0
    for begin, end in itertools.pairwise(made.bounds):
        touched, left = set(), None
        for i in range(begin, end):
            record, steps = made.tiles[i], walk(made.tiles[i])
            owned = made.blocks[record[bs.ROW_BLOCK], 5] < 0 and record[bs.COUNTER] <= 0
            key = record[bs.ROW_BLOCK], record[bs.HEAD]
            follower = made.tiles[i + 1] if i + 1 < end else None
            next_steps = walk(follower) if follower is not None and follower[bs.AFTER_ITSELF] else []
            leaves = bool(owned and steps and next_steps and steps[-1] == next_steps[0])
            takes = left is not None
            fetches = leaves and (key, steps[-1]) in touched
            assert record[bs.HOLDS] == takes + 2 * leaves + 4 * fetches
            assert not takes or left == (key, steps[0])
            left = (key, steps[-1]) if leaves else None
            touched |= {(key, block) for block in steps}
            held += leaves
        assert left is None
    assert held > (1 if options == "held" else 0)


@pytest.mark.parametrize(("order", "options", "programs"), [*itertools.product(
    ["none", "sorted", "zigzag"], ["rotated", "held"], [1, 2, 3, 5, 9])])
def test_rotated_lists_are_the_same_from_another_item_on(order, options, programs):
    lengths = np.random.default_rng(programs).integers(1, 600, 37)
    layout = JaggedLayout.from_lengths(lengths)
    problem = JaggedProblem(layout, layout, 2, 2, 128, torch.bfloat16, 0.1)
    plain, turned = (bs.build(problem, replace(OPTIONS[options], rotate=rotate), order, programs, 64)
                     for rotate in (False, True))
    np.testing.assert_array_equal(turned.bounds, plain.bounds)
    np.testing.assert_array_equal(turned.blocks, plain.blocks)
    for program, (begin, end) in enumerate(itertools.pairwise(plain.bounds)):
        tiles = plain.tiles[begin:end]
        starts = np.flatnonzero(tiles[:, bs.AFTER_ITSELF] == 0)  # of items: an owned sequence, or one tile of another
        first = starts[len(starts) * (program * 37 % 64) // 64]
        np.testing.assert_array_equal(turned.tiles[begin:end], np.roll(tiles, -first, axis=0))
    assert programs == 1 or (turned.tiles != plain.tiles).any()


TURNS = [*itertools.product(["self", "cross"], ["full", "causal"], ["turns", "most in turns"],
                            ["none", "sorted", "zigzag"], [1, 2, 3, 6])]


def turning(lengths, mask, options, order, programs):
    problem = make(lengths, mask, heads_q=4, heads_kv=2)
    assert bs.takes_turns(problem, OPTIONS[options], programs)
    return problem, bs.build(problem, OPTIONS[options], order, programs, 64)


def as_dealt(made, order):
    """Tiles in the order in which they were dealt: a round to all CTAs, then the next."""
    programs, places = len(made.bounds) - 1, []
    for program, (begin, end) in enumerate(itertools.pairwise(made.bounds)):
        turn = -1
        for i in range(begin, end):
            turn += made.tiles[i, bs.AFTER_ITSELF] == 0  # else of the same item as the tile before
            back = order == "zigzag" and turn % 2 == 1
            places.append((turn * programs + (programs - 1 - program if back else program), i))
    return made.tiles[[i for _, i in sorted(places)]]


@pytest.mark.parametrize(("lengths", "mask", "options", "order", "programs"), TURNS)
def test_tiles_in_turns_open_add_and_close(lengths, mask, options, order, programs):
    """As they were dealt: a block of Q is stored, added to, and written, and all that a tile waits for is before it."""
    problem, made = turning(lengths, mask, options, order, programs)
    steps, dealt, alone = {}, {}, 0
    for place, record in enumerate(as_dealt(made, order)):
        if record[bs.COUNTER] < 0:
            alone += 1
            assert record[bs.WANTED] == 0
            continue
        b = sequence_of(problem, record)
        assert record[bs.COUNTER] == b * problem.num_heads_kv + record[bs.HEAD]
        assert not record[bs.AFTER_ITSELF]
        assert record[bs.ACC_GROUP] == made.shared_blocks
        before = dealt.setdefault(record[bs.COUNTER], [])
        tile, count = record[bs.K_ROW] // 128, -(-record[bs.K_LEN] // 128)
        assert record[bs.WANTED] == (0 if tile == 0 else count - 1 if tile == 1 else 1)
        assert len(before) >= record[bs.WANTED]
        assert tile == 0 or before[0][0] == 0  # the one that it waits for is the one that opens
        before.append((tile, place))
        for g, i in itertools.product(range(problem.group_size), range(record[bs.STEPS])):
            first, last = i >= record[bs.FIRST_FROM], i < record[bs.LASTS]
            assert (i < record[bs.PARTIALS]) == (last and not first)
            at = record[bs.ACC_BLOCK] + g * record[bs.ACC_GROUP] + record[bs.BLOCK] + i
            assert first & last or made.shared_at <= at < made.acc_blocks
            key = record[bs.HEAD] * problem.group_size + g, record[bs.ROW_BLOCK] + record[bs.BLOCK] + i
            steps.setdefault(key, []).append((first, last, at))
    for kinds in steps.values():
        assert [first for first, _, _ in kinds] == [True] + [False] * (len(kinds) - 1)
        assert [last for _, last, _ in kinds] == [False] * (len(kinds) - 1) + [True]
        assert len({at for _, _, at in kinds}) == 1
    assert len({kinds[0][2] for kinds in steps.values()}) == len(steps)  # no two share a block of the accumulator
    for tiles in dealt.values():
        assert tiles[-1][0] == 1
        assert sorted(tile for tile, _ in tiles) == list(range(len(tiles)))
    openings, closings = ([place for tiles in dealt.values() for tile, place in tiles if tile == n] for n in (0, 1))
    assert sorted(openings) == list(range(len(openings)))
    assert sorted(closings) == list(range(len(made.tiles) - len(closings), len(made.tiles)))
    assert alone
    assert any(len(kinds) > 2 for kinds in steps.values())
    assert (made.blocks[:, 5] == -1).all()


@pytest.mark.parametrize(("lengths", "mask", "options", "order", "programs"), TURNS)
def test_tiles_in_turns_never_wait_in_a_circle(lengths, mask, options, order, programs):
    """CTAs begin and end their tiles in a random order: all come to an end, and all counters are 0 again."""
    _problem, made = turning(lengths, mask, options, order, programs)
    random = np.random.default_rng(programs)
    for favourite in range(programs):
        at, busy, counters, done = made.bounds[:-1].copy(), np.zeros(programs, dtype=bool), {}, {}
        while (at < made.bounds[1:]).any():
            for cta in [favourite, *random.permutation(programs)]:
                if at[cta] == made.bounds[cta + 1]:
                    continue
                record = made.tiles[at[cta]]
                counter, tile, count = record[bs.COUNTER], record[bs.K_ROW] // 128, -(-record[bs.K_LEN] // 128)
                if busy[cta]:
                    busy[cta] = False
                    at[cta] += 1
                    counters[counter] = 0 if tile == 1 else counters.get(counter, 0) + 1
                    done.setdefault(counter, []).append(tile)
                    break
                if counter < 0 or counters.get(counter, 0) >= record[bs.WANTED]:
                    if counter >= 0 and tile:
                        assert 0 in done[counter]
                        assert tile != 1 or len(done[counter]) == count - 1
                    busy[cta] = True
                    break
            else:
                pytest.fail("everybody waits")
        assert not any(counters[counter] for counter in counters if counter >= 0)


def test_turns_are_left_out_where_they_have_no_meaning():
    for mask, options, programs, turns in (("causal", {}, 7, True), ("causal", {}, 8, False), ("window", {}, 3, False),
                                           ("long", {}, 3, False), ("full", {"direct_dq": False}, 3, False),
                                           ("full", {"deterministic": True}, 3, False), ("full", {}, 3, True)):
        problem, chosen = make("self", mask), HopperBackwardOptions(**options, turns=True)
        assert bs.takes_turns(problem, chosen, programs) == turns
        made, without = (bs.build(problem, each, "zigzag", programs, 64)
                         for each in (chosen, HopperBackwardOptions(**options)))
        assert (made.tiles[:, bs.WANTED:].any() and made.shared_blocks != 0) == turns
        if not turns:
            np.testing.assert_array_equal(made.tiles, without.tiles)
            np.testing.assert_array_equal(made.blocks, without.blocks)
    for other in ("counted", "rotate"):
        with pytest.raises(ValueError, match=f"turns: not with {other}"):
            HopperBackwardOptions(turns=True, **{other: True})
    assert not bs.takes_turns(make("cross", "full", broadcast=64), HopperBackwardOptions(turns=True), 1)


PAIRED = {
    "self": ([0, 300, 64, 129, 1, 200, 512, 640, 385, 256] * 6 + [130, 64, 200],) * 2,
    "cross": ([65, 128, 1, 0, 64, 200, 129, 300, 400] * 7, [64, 0, 130, 300, 128, 257, 640, 5, 260] * 7),
    "odd": ([300, 128, 640, 1, 256] * 9, [100, 300, 640, 384, 128] * 9),
    "even": ([300, 128, 640, 1, 256] * 9, [256, 512, 130, 768, 129] * 9),
    "sparse": ([0] * 50 + [64] + [0] * 50, [0] * 50 + [300] + [0] * 50),  # fewer items than pairs
}
PAIRS = [(lengths, of, order, rotate, *others) for lengths, of, order, rotate, others in itertools.product(
    PAIRED, [(1, 3), (1, 4), (2, 5), (3, 7)], ["none", "sorted", "zigzag"], [False, True], [(True, 64), (False, 128)])]


def paired(lengths, heads, programs, order, rotate, serpentine, block_m):
    layout_q, layout_k = (JaggedLayout.from_lengths(each) for each in PAIRED[lengths])
    problem = JaggedProblem(layout_q, layout_k, heads, heads, 128, torch.bfloat16, 0.1)
    options = HopperBackwardOptions(owned_blocks=8, pairs=True, rotate=rotate, serpentine=serpentine)
    assert bs.takes_pairs(problem, options, programs, block_m, 128)
    made = bs.build(problem, options, order, programs, block_m)
    assert len(made.bounds) % 2 == 1
    assert len(made.bounds) <= programs // 2 * 2 + 1
    return problem, made


def lists_of_pairs(made):
    """For each cluster the records of rank 0 and of rank 1."""
    programs = [made.tiles[begin:end] for begin, end in itertools.pairwise(made.bounds)]
    return [*zip(programs[::2], programs[1::2], strict=True)]


def pairs_as_said(problem, clusters, order, rotate, serpentine, block_m):
    """For each cluster the tiles of both ranks, by loops: (sequence, head, block, role, back, partial, last, turn)."""
    len_q, len_k = problem.layout_q.lengths, problem.layout_k.lengths
    n, m = -(-len_k // 128), -(-len_q // block_m)
    sequences = [b for b in range(problem.batch) if n[b]]
    if order != "none":
        sequences.sort(key=lambda b: -(n[b] * m[b] + n[b]))
    dealt = [[] for _ in range(clusters)]
    for i, (b, head) in enumerate(itertools.product(sequences, range(problem.num_heads_kv))):
        turn, place = divmod(i, clusters)
        dealt[clusters - 1 - place if order == "zigzag" and turn % 2 else place].append((b, head))
    for cluster, items in enumerate(dealt):
        couples = [items[i:i + 2] for i in range(0, len(items), 2)]
        first = len(couples) * (cluster * 37 % 64) // 64 if rotate else 0
        ranks = [], []
        for couple in couples[first:] + couples[:first]:
            for turn, (b, head) in enumerate(couple):
                if n[b] % 2:
                    ranks[turn].append((b, head, 0, 0, 0, False, n[b] == 1, turn))
            for turn, (b, head) in enumerate(couple):
                for block in range(n[b] % 2, n[b], 2):
                    back = serpentine and (block // 2 + n[b] % 2) % 2
                    for rank in range(2):
                        ranks[rank].append((b, head, block + rank, 1 + rank, int(back), block > 0, block + 2 == n[b],
                                            turn))
        yield ranks


@pytest.mark.parametrize(("lengths", "of", "order", "rotate", "serpentine", "block_m"), PAIRS)
def test_pairs_do_couples_of_items(lengths, of, order, rotate, serpentine, block_m):
    problem, made = paired(lengths, *of, order, rotate, serpentine, block_m)
    lists = lists_of_pairs(made)
    q_blocks = -(-problem.layout_q.lengths // block_m)
    seen, scratch = set(), made.shared_at // (2 * len(lists))
    for cluster, said in enumerate(pairs_as_said(problem, len(lists), order, rotate, serpentine, block_m)):
        for records, tiles in zip(lists[cluster], said, strict=True):
            for record, (b, head, block, role, back, partial, last, turn) in zip(records, tiles, strict=True):
                steps = q_blocks[b]
                at = (2 * cluster + turn) * scratch
                assert sequence_of(problem, record) == b
                assert record[[bs.HEAD, bs.K_ROW, bs.ROLE, bs.BACK]].tolist() == [head, 128 * block, role, back]
                assert record[[bs.BLOCK, bs.STEPS, bs.FIRST_FROM]].tolist() == [0, steps, 0]
                assert record[[bs.PARTIALS, bs.LASTS]].tolist() == [partial * steps, last * steps]
                assert record[bs.AFTER_ITSELF] == (record[bs.PARTIALS] > 0)
                assert record[[bs.ACC_BLOCK, bs.ACC_GROUP]].tolist() == [at, steps]
                some, whole = blocks_seen(problem, b, block_m, 128 * block)
                assert len(some) == steps
                assert [*range(record[bs.CUT_END], record[bs.CUT_FROM])] == whole
                seen.add((b, head, block))
    count = problem.num_heads_kv * int((-(-problem.layout_k.lengths // 128)).sum())
    assert len(seen) == len(made.tiles) == made.bounds[-1] == count
    assert made.shared_blocks == 0
    assert made.shared_at == made.acc_blocks
    assert (made.blocks[:, 5] == -1).all()


@pytest.mark.parametrize(("lengths", "of", "order", "rotate", "serpentine", "block_m"), PAIRS)
def test_pairs_sum_each_block_of_dq_and_write_it_once(lengths, of, order, rotate, serpentine, block_m):
    """A CTA goes on alone but for rounds, which both begin together: one is ahead, the other, or either by chance."""
    problem, made = paired(lengths, *of, order, rotate, serpentine, block_m)
    for favourite, lists in itertools.product((0, 1, None), lists_of_pairs(made)):
        random = np.random.default_rng(0)
        at, memory, summed = [0, 0], {}, {}

        def touch(records, memory=memory, summed=summed):
            record = records[0]
            b = sequence_of(problem, record)
            new = {int(each[bs.K_ROW]) // 128 for each in records}
            for i in range(record[bs.STEPS]):
                key, place = (b, record[bs.HEAD], i), record[bs.ACC_BLOCK] + i
                blocks = set(new)
                assert key not in summed
                if i < record[bs.PARTIALS]:
                    holder, before = memory[place]
                    assert holder == key
                    assert not before & new
                    assert {block + 1 for block in before} <= before | new  # all that are earlier
                    blocks |= before
                if i < record[bs.LASTS]:
                    summed[key] = blocks
                else:
                    assert place < made.acc_blocks
                    memory[place] = key, blocks

        while any(i < len(records) for i, records in zip(at, lists, strict=True)):
            alone = [rank for rank in range(2) if at[rank] < len(lists[rank]) and not lists[rank][at[rank]][bs.ROLE]]
            if alone:
                rank = favourite if favourite in alone else random.choice(alone)
                touch([lists[rank][at[rank]]])
                at[rank] += 1
                continue
            both = [records[i] for i, records in zip(at, lists, strict=True)]
            assert [record[bs.ROLE] for record in both] == [1, 2]
            fields = [bs.Q_START, bs.Q_LEN, bs.OUT_START, bs.K_START, bs.HEAD, bs.STEPS, bs.BLOCK, bs.PARTIALS,
                      bs.LASTS, bs.ROW_BLOCK, bs.ACC_BLOCK, bs.ACC_GROUP, bs.BACK]
            assert both[0][fields].tolist() == both[1][fields].tolist()
            assert both[0][bs.K_ROW] + 128 == both[1][bs.K_ROW]
            touch(both)
            at = [at[0] + 1, at[1] + 1]
        tiles = {}
        for record in itertools.chain(*lists):
            key = sequence_of(problem, record), record[bs.HEAD]
            tiles.setdefault(key, set()).add(int(record[bs.K_ROW]) // 128)
            assert tiles[key] <= set(range(-(-record[bs.K_LEN] // 128)))
        for key, blocks in tiles.items():
            assert len(blocks) == -(-problem.layout_k.lengths[key[0]] // 128)
            for i in range(-(-problem.layout_q.lengths[key[0]] // block_m)):
                assert summed.pop((*key, i)) == blocks
        assert not summed


def test_pairs_are_left_out_where_they_have_no_meaning():
    lengths = PAIRED["self"][0]
    layout = JaggedLayout.from_lengths(lengths)
    plain = {"owned_blocks": 5}
    for options, heads, head_dim, mask, programs, pairs in (
            ({}, (2, 2), 128, "full", 5, True), ({}, (2, 2), 128, "full", 1, False),
            ({}, (2, 2), 128, "full", 40, False), ({"owned_blocks": 4}, (2, 2), 128, "full", 5, False),
            ({}, (4, 2), 128, "full", 5, False), ({}, (2, 2), 64, "full", 5, False),
            ({}, (2, 2), 128, "causal", 5, False), ({"kv_stages": 2}, (2, 2), 128, "full", 5, False),
            ({"dq_stages": 1}, (2, 2), 128, "full", 5, False), ({"direct_dq": False}, (2, 2), 128, "full", 5, False),
            ({"deterministic": True}, (2, 2), 128, "full", 5, False)):
        problem = JaggedProblem(layout, layout, *heads, head_dim, torch.bfloat16, 0.1, MASKS[mask])
        chosen = HopperBackwardOptions(**plain | options, pairs=True)
        without = HopperBackwardOptions(**plain | options)
        assert bs.takes_pairs(problem, chosen, programs, 64, 128) == pairs
        assert not bs.takes_pairs(problem, without, programs, 64, 128)
        made, other = (bs.build(problem, each, "zigzag", programs, 64) for each in (chosen, without))
        assert bool(made.tiles[:, bs.ROLE].any()) == pairs
        assert not made.tiles[:, bs.BACK].any()
        if pairs:
            assert (len(made.bounds), len(other.bounds)) == (programs // 2 * 2 + 1, programs + 1)
            np.testing.assert_array_equal(made.blocks, other.blocks)
        else:
            for field in ("tiles", "bounds", "blocks"):
                np.testing.assert_array_equal(getattr(made, field), getattr(other, field))
    shared_q = JaggedLayout.uniform(len(lengths), 64)
    broadcast = JaggedProblem(shared_q, layout, 2, 2, 128, torch.bfloat16, 0.1, Mask(), True)
    assert not bs.takes_pairs(broadcast, HopperBackwardOptions(pairs=True), 2, 64, 128)
    for other in ("counted", "turns"):
        with pytest.raises(ValueError, match=f"pairs: not with {other}"):
            HopperBackwardOptions(pairs=True, **{other: True})
    assert HopperBackwardOptions(pairs=True, rotate=True).token == "q2o2k1s2d2-pair-rot-own4"


def test_what_pairs_need_holds_for_an_even_number_of_ctas_if_it_does_for_an_odd_one():
    """The device decides with the number of CTAs that there are, and `build` may be given the even one."""
    for lengths, programs in itertools.product(PAIRED, range(3, 60, 2)):
        layout_q, layout_k = (JaggedLayout.from_lengths(each) for each in PAIRED[lengths])
        problem = JaggedProblem(layout_q, layout_k, 8, 8, 128, torch.bfloat16, 0.1)
        options = HopperBackwardOptions(owned_blocks=8, pairs=True)
        odd, even = (bs.takes_pairs(problem, options, each, 64, 128) for each in (programs, programs - 1))
        assert even or not odd


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
