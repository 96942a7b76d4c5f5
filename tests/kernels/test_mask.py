from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mask import Mask

bounds = st.none() | st.integers(0, 12)
lengths = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=6)


def visible(mask: Mask, i: int, j: int, len_q: int, len_k: int) -> bool:
    """The definition, one pair at a time."""
    distance = j - (i + len_k - len_q)
    return (mask.left is None or -mask.left <= distance) and (mask.right is None or distance <= mask.right)


@settings(max_examples=200, deadline=None)
@given(bounds, bounds, st.booleans(), st.integers(0, 10), st.integers(0, 10))
def test_key_bounds_are_the_visible_keys(left, right, causal, len_q, len_k):
    mask = Mask.make(causal, (left, right))
    low, high = mask.key_bounds(np.arange(len_q), np.int64(len_q), np.int64(len_k))
    assert low.shape == high.shape == (len_q,)
    assert (high >= low).all()
    for i in range(len_q):
        assert list(range(low[i], high[i])) == [j for j in range(len_k) if visible(mask, i, j, len_q, len_k)]


@settings(max_examples=200, deadline=None)
@given(bounds, bounds, lengths)
def test_visible_pairs_counts_each_sequence(left, right, pairs):
    mask = Mask(left, right)
    counted = mask.visible_pairs(np.array([q for q, _ in pairs], dtype=np.int64),
                                 np.array([k for _, k in pairs], dtype=np.int64))
    assert counted.dtype == np.int64
    assert counted.tolist() == [sum(visible(mask, i, j, len_q, len_k) for i in range(len_q) for j in range(len_k))
                                for len_q, len_k in pairs]


def test_visible_pairs_of_long_sequences_are_exact():
    length = np.array([200_001])
    assert Mask.make(causal=True).visible_pairs(length, length).item() == 200_001 * 200_002 // 2


def test_key_bounds_broadcast():
    low, high = Mask.make(True).key_bounds(np.arange(3)[:, None], np.array([3, 3]), np.array([5, 2]))
    assert low.tolist() == [[0, 0]] * 3
    assert high.tolist() == [[3, 0], [4, 1], [5, 2]]


def test_causal_replaces_the_right_bound():
    assert Mask.make(True, (4, 2)) == Mask(4, 0)
    assert Mask.make(False, (4, 2)) == Mask(4, 2)
    assert Mask.make().is_full
    assert not Mask.make(True).is_full
    assert not Mask(left=0).is_full


@pytest.mark.parametrize(("window", "name"), [((-1, None), "left"), ((None, -3), "right")])
def test_a_negative_bound_is_refused(window, name):
    with pytest.raises(ValueError, match=f"window_size: {name} must be None or >= 0"):
        Mask.make(window_size=window)
