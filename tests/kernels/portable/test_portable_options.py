from __future__ import annotations

import pytest

from kernels.portable import IMPLEMENTATION
from kernels.portable.options import BackwardOptions, TileOptions
from kernels.portable.tiles import _CANDIDATES, length_class, select


def test_options_from_plain_values():
    assert IMPLEMENTATION.make_options("fwd", {}) is None
    assert IMPLEMENTATION.make_options("bwd", {}) is None
    assert IMPLEMENTATION.make_options("fwd", {"BLOCK_M": 128, "num_warps": 8}) == TileOptions(128, 64, 8, 2)
    assert IMPLEMENTATION.make_options("bwd", {"dq": {"BLOCK_N": 32}, "dkdv": None}) == BackwardOptions(
        dkdv=None, dq=TileOptions(64, 32, 4, 2))


@pytest.mark.parametrize(("direction", "values", "words"), [
    ("fwd", {"BLOCK_K": 64}, ["BLOCK_K", "BLOCK_M, BLOCK_N, num_warps, num_stages"]),
    ("fwd", {"BLOCK_M": 48}, ["BLOCK_M", "48", "16, 32, 64"]),
    ("fwd", {"BLOCK_M": True}, ["BLOCK_M", "True"]),
    ("fwd", {"num_stages": "two"}, ["num_stages", "'two'"]),
    ("bwd", {"BLOCK_M": 64}, ["BLOCK_M", "dkdv, dq"]),
    ("bwd", {"dq": 64}, ["dq", "64", "BLOCK_M, BLOCK_N"]),
    ("bwd", {"dkdv": {"num_warps": 3}}, ["dkdv.num_warps", "3", "1, 2, 4, 8"]),
    ("bwd", {"dkdv": {"warps": 4}}, ["dkdv.warps", "num_warps"]),
])
def test_bad_options_name_the_key_and_what_is_allowed(direction, values, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        IMPLEMENTATION.make_options(direction, values)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("key", _CANDIDATES, ids=str)
def test_candidates_are_few_distinct_and_allowed(key):
    tiles = [TileOptions(*tile) for tile in _CANDIDATES[key]]
    assert 3 <= len(tiles) <= 4
    assert len(set(tiles)) == len(tiles)


def test_candidates_fit_the_lengths():
    long = select("forward", 9, 128, 4096, 4096)
    assert TileOptions(128, 128, 8, 2) in long
    for kernel in ("forward", "dkdv", "dq"):
        for major in (8, 9, 10, 12):
            for head_dim in (32, 64, 96, 128):
                short = select(kernel, major, head_dim, 1, 1)
                assert short
                assert all(tile.BLOCK_M <= 64 and tile.BLOCK_N <= 64 for tile in short)
                assert set(short) <= set(select(kernel, major, head_dim, 129, 129))
    assert {tile.BLOCK_M for tile in select("forward", 9, 128, 128, 4096)} == {64}


def test_lengths_fall_into_three_classes():
    lengths = [0, 1, 128, 129, 1024, 1025, 2**31 - 1]
    assert [length_class(length) for length in lengths] == ["short"] * 3 + ["medium"] * 2 + ["long"] * 2
