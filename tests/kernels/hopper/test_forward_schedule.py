"""The tile list that the device builds is the one that `tile_records` defines, record by record."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.hopper.forward_schedule import device_tiles, most_tiles
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.tile_schedule import TileShape, tile_records

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
from kernels.simulator import Simulator

MASKS = [Mask(), Mask.make(True), Mask(100, None), Mask(64, 10)]


def built(layout_q, layout_k, shape, order, mask=MASKS[0], broadcast=False):
    problem = JaggedProblem(layout_q, layout_k, 2, 2, 128, torch.bfloat16, 0.1, mask, broadcast)
    with Simulator(sms=2):  # reads of unwritten memory and double writes are errors
        tiles = device_tiles(problem, shape, order, 0)
    count = int(tiles.header[2])
    assert tiles.header[:2].tolist() == [0, 0]
    assert count <= tiles.at_most == most_tiles(layout_q, shape.rows)
    return tiles.records[:count * 8].view(-1, 8).numpy()


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700)), min_size=1, max_size=40),
       st.sampled_from(["none", "sorted"]), st.sampled_from(MASKS), st.sampled_from([64, 128, 192]),
       st.sampled_from([64, 128]), st.booleans())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_it_is_the_list_that_the_host_would_build(pairs, order, mask, rows, block, on_host):
    layouts = [JaggedLayout.from_lengths(lengths) for lengths in zip(*pairs, strict=True)]
    given = layouts if on_host else [JaggedLayout(layout.cu_seqlens, total=layout.total, max_seqlen=layout.max_seqlen)
                                     for layout in layouts]
    shape = TileShape(rows, block)
    np.testing.assert_array_equal(built(*given, shape, order, mask), tile_records(*layouts, shape, order, mask))


def test_more_sequences_than_one_program_compares_at_once():
    lengths = np.random.default_rng(0).integers(0, 400, 600)
    layout, shape = JaggedLayout.from_lengths(lengths), TileShape(64, 64)
    np.testing.assert_array_equal(built(layout, layout, shape, "sorted"), tile_records(layout, layout, shape, "sorted"))


def test_a_shared_q_is_read_at_zero_and_written_apart():
    layouts = JaggedLayout.uniform(3, 130), JaggedLayout.from_lengths([5, 70, 0])
    shape = TileShape(64, 64)
    np.testing.assert_array_equal(built(*layouts, shape, "sorted", broadcast=True),
                                  tile_records(*layouts, shape, "sorted", broadcast_rows=True))


def test_layouts_keep_their_list_for_each_stream():
    layout = JaggedLayout.from_lengths([5, 70])
    problem = JaggedProblem(layout, layout, 2, 2, 128, torch.bfloat16, 0.1)
    with Simulator(sms=2):
        first, again, other = (device_tiles(problem, TileShape(64, 64), "sorted", stream) for stream in (0, 0, 1))
    assert first is again is not other


def test_offsets_that_only_the_device_knows_are_not_read_by_the_host(monkeypatch):
    known = JaggedLayout.from_lengths([5, 70])
    layout = JaggedLayout(known.cu_seqlens, total=known.total, max_seqlen=known.max_seqlen)
    monkeypatch.setattr(JaggedLayout, "offsets", property(lambda self: pytest.fail("the host reads the offsets")))
    assert len(built(layout, layout, TileShape(64, 64), "sorted")) == 3


def test_a_sequence_longer_than_was_said_is_cut_rather_than_listed_beyond_the_list():
    layout = JaggedLayout(torch.tensor([0, 300, 305], dtype=torch.int32), total=305, max_seqlen=200)
    made = built(layout, layout, TileShape(64, 64), "none")
    assert made[:, 1].tolist() == [200] * 4 + [5]
