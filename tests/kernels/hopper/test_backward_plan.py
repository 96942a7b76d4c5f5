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
           HopperBackwardOptions(deterministic=True, counted=True)]
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


def built(problem, options, order="zigzag", sms=5, block_m=64):
    """Tables as `BackwardSchedule` has them, without the rows that only round them up; reads of unwritten memory and
    double writes are errors."""
    with Simulator(sms=2):
        plan = device_plan(problem, options, order, sms, block_m, 128, 0)
    known = plan.known
    ends = plan.bounds[:known.programs + 1].numpy()
    tiles = plan.tiles[:(ends[-1] + 1) * bs.FIELDS].view(-1, bs.FIELDS).numpy()
    assert not tiles[-1].any()  # what a CTA without a tile reads
    blocks = plan.blocks[:known.num_blocks * BLOCK_FIELDS].view(-1, BLOCK_FIELDS).numpy()
    used = int((-(-problem.layout_q.lengths // block_m)).sum())
    assert not blocks[used:, :5].any()
    assert (blocks[used:, 5] == -1).all()
    assert ends[-1] <= known.num_tiles
    return SimpleNamespace(known=known, tiles=tiles[:-1], bounds=ends, blocks=blocks[:used])


def same_work(tiles, counting=False):
    """Tiles without where their partial dQ goes, and without what no step is left to notice."""
    tiles = tiles.copy()
    tiles[:, bs.FIRST_FROM] = np.minimum(tiles[:, bs.FIRST_FROM], tiles[:, bs.STEPS])
    tiles[:, [bs.ACC_BLOCK, bs.ACC_GROUP, *range((bs.WANTED if counting else bs.AFTER_ITSELF) + 1, bs.FIELDS)]] = 0
    if counting:  # a tile without steps has nothing to wait for or to cast
        tiles[tiles[:, bs.STEPS] == 0, bs.STORES:bs.WANTED + 1] = 0
    return tiles


@given(LENGTHS, st.sampled_from(MASKS), st.sampled_from(OPTIONS), st.sampled_from(["none", "sorted",
       "zigzag"]), st.sampled_from([(2, 2), (4, 2), (3, 1)]), st.sampled_from([64, 128]), st.booleans())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_it_is_the_schedule_that_the_host_would_build(pairs, mask, options, order, heads, block_m, on_host):
    problem = make(*zip(*pairs, strict=True), mask, *heads, on_host=on_host)
    if not problem.layout_q.total or not problem.layout_k.total:
        return
    made = built(problem, options, order, block_m=block_m)
    wanted = bs.build(problem, options, order, made.known.programs, block_m)
    counting = bs.counted(problem, options)
    np.testing.assert_array_equal(same_work(made.tiles, counting), same_work(wanted.tiles, counting))
    np.testing.assert_array_equal(made.bounds[:len(wanted.bounds)], wanted.bounds)
    assert (made.bounds[len(wanted.bounds):] == wanted.bounds[-1]).all()  # more CTAs than items
    np.testing.assert_array_equal(made.blocks[:, :5], wanted.blocks[:, :5])
    shared = wanted.blocks[:, 5] >= 0
    np.testing.assert_array_equal(made.blocks[:, 5], np.where(shared, np.arange(len(shared)), -1))
    assert made.known.shared_blocks or not shared.any()


@given(LENGTHS, st.sampled_from(MASKS), st.sampled_from(OPTIONS))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_partial_dq_has_a_place_of_its_own(pairs, mask, options):
    """No two CTAs, heads or sequences share a block of the accumulator, and none is outside of it."""
    problem = make(*zip(*pairs, strict=True), mask, 4, 2)
    if not problem.layout_q.total or not problem.layout_k.total:
        return
    made = built(problem, options)
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
                    if made.blocks[row, 5] >= 0:
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


def test_more_items_than_a_program_deals_at_once():
    lengths = np.random.default_rng(0).integers(0, 300, 700)
    problem = make(lengths, lengths, heads_q=4, heads_kv=4)
    made = built(problem, HopperBackwardOptions(), sms=4)
    wanted = bs.build(problem, HopperBackwardOptions(), "zigzag", 4, 64)
    np.testing.assert_array_equal(same_work(made.tiles), same_work(wanted.tiles))
    np.testing.assert_array_equal(made.bounds, wanted.bounds)


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
