"""Tile lists: every row once, in the order that balances work, in runs; fast enough to build for every batch."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.tile_schedule import ORDERS, RECORD_FIELDS, TileShape, deal, tile_records

LENGTHS = st.lists(st.integers(0, 700), max_size=12)
MASKS = st.sampled_from([Mask(), Mask.make(True), Mask(100, None), Mask(64, 10)])


def build(len_q, len_k, *args, **kwargs):
    records = tile_records(JaggedLayout.from_lengths(len_q), JaggedLayout.from_lengths(len_k), *args, **kwargs)
    return {name: records[:, column] for column, name in enumerate(RECORD_FIELDS)}


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700)), max_size=12), st.sampled_from(ORDERS), MASKS,
       st.booleans(), st.sampled_from([64, 128, 192]))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_row_belongs_to_exactly_one_tile(pairs, order, mask, by_tile, rows):
    len_q, len_k = [q for q, _ in pairs], [k for _, k in pairs]
    tiles = build(len_q, len_k, TileShape(rows, 64), order, mask, by_tile=by_tile)
    seen = np.zeros(sum(len_q), dtype=int)
    offsets_q, offsets_k = np.cumsum([0, *len_q]), np.cumsum([0, *len_k])
    for start, length, row, out, walk, walk_len in zip(*(tiles[name] for name in RECORD_FIELDS[:6]), strict=True):
        sequence = next(b for b in range(len(len_q)) if offsets_q[b] == start and len_q[b] == length > 0)
        assert (out, walk, walk_len) == (start, offsets_k[sequence], len_k[sequence])
        assert row % rows == 0
        assert 0 <= row < length
        seen[start + row:start + min(row + rows, length)] += 1
    assert (seen == 1).all()


@given(LENGTHS, st.sampled_from(ORDERS), MASKS, st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_run_is_one_sequence_at_equal_steps(lengths, order, mask, by_tile):
    tiles = build(lengths, lengths, TileShape(64, 64), order, mask, by_tile=by_tile)
    step = 64 if mask.right is None or order == "none" else -64
    for tile in range(len(tiles["row"])):
        first, count = int(tiles["run_first"][tile]), int(tiles["run_len"][tile])
        assert first <= tile < first + count
        run = slice(first, first + count)
        assert len(set(tiles["row_start"][run])) == len(set(tiles["run_first"][run])) == 1
        assert (np.diff(tiles["row"][run]) == step).all()


@given(LENGTHS.filter(any))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_sorted_puts_the_longest_walk_first(lengths):
    tiles = build(lengths, lengths, TileShape(128, 64), "sorted")
    assert (np.diff(-(-tiles["walk_len"] // 64)) <= 0).all()


def test_causal_tiles_with_the_most_keys_come_first_within_a_sequence_and_by_tile_over_all():
    mask = Mask.make(True)
    within = build([300, 200], [300, 200], TileShape(64, 64), "sorted", mask)
    assert within["row"].tolist() == [256, 192, 128, 64, 0, 192, 128, 64, 0]
    over_all = build([300, 200], [300, 200], TileShape(64, 64), "sorted", mask, by_tile=True)
    assert over_all["row"].tolist() == [256, 192, 192, 128, 128, 64, 64, 0, 0]


def test_broadcast_rows_are_read_at_zero_and_written_apart():
    tiles = build([32, 32, 32], [5, 70, 0], TileShape(64, 64), "zigzag", broadcast_rows=True)
    assert tiles["row_start"].tolist() == [0, 0, 0]
    assert tiles["out_start"].tolist() == [32, 0, 64]


@given(st.integers(0, 400), st.integers(1, 50), st.sampled_from(ORDERS))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_dealing_gives_every_item_to_one_worker(items, workers, order):
    hands = deal(items, workers, order)
    assert len(hands) == workers
    assert sorted(np.concatenate(hands).tolist()) == list(range(items))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_zigzag_balances_better_than_taking_sequences_as_they_come():
    lengths = np.random.default_rng(0).integers(1, 513, 1152)
    spread = {}
    for order in ORDERS:
        tiles = build(lengths, lengths, TileShape(64, 64), order)
        work = -(-tiles["walk_len"] // 64)
        loads = [work[hand].sum() for hand in deal(len(work), 264, order)]
        spread[order] = max(loads) / np.mean(loads)
    assert spread["zigzag"] < 1.02
    assert spread["zigzag"] <= spread["sorted"] < spread["none"]


def test_an_unknown_order_and_unequal_batches_are_refused():
    with pytest.raises(ValueError, match="schedule: expected one of none, sorted, zigzag, got 'best'"):
        build([1], [1], TileShape(64, 64), "best")
    with pytest.raises(ValueError, match="same batch size, got 1 and 2"):
        build([1], [1, 1], TileShape(64, 64))


def test_a_batch_of_4096_takes_little_time():
    lengths = np.clip(np.rint(np.random.default_rng(0).lognormal(4, 1.2, 4096)), 1, 8192).astype(int)
    layout = JaggedLayout.from_lengths(lengths)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        tile_records(layout, layout, TileShape(64, 64))
        times.append(time.perf_counter() - began)
    assert min(times) < 1e-3
