"""FLOPs, tiles and bytes against counting one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cases import Case
from harness.flops import (
    Ceilings,
    attention_bytes,
    attention_flops,
    floor_ms,
    padded_flops,
    tile_flops,
    visible_tiles,
)
from kernels.mask import Mask


def case(lengths_q, lengths_k, mask=Mask(), mode="cross", heads=(1, 1), head_dim=8, **values):  # noqa: B008
    return Case(name="x", mode=mode, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype="bf16",
                mask=mask, lengths_q=np.asarray(lengths_q), lengths_k=np.asarray(lengths_k), **values)


def visible(mask, len_q, len_k):
    """The mask's definition, pair by pair: bool ``[len_q, len_k]``."""
    see = np.zeros((len_q, len_k), dtype=bool)
    for i in range(len_q):
        for j in range(len_k):
            distance = j - (i + len_k - len_q)
            see[i, j] = (mask.left is None or distance >= -mask.left) and (mask.right is None or distance <= mask.right)
    return see


def tiles(see, block_m, block_n):
    return sum(see[i:i + block_m, j:j + block_n].any()
               for i in range(0, see.shape[0], block_m) for j in range(0, see.shape[1], block_n))


BOUND = st.one_of(st.none(), st.integers(0, 40))
LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pairs=LENGTHS, left=BOUND, right=BOUND, block_m=st.integers(1, 9), block_n=st.integers(1, 9))
def test_flops_and_tiles_match_a_count_of_pairs(pairs, left, right, block_m, block_n):
    mask = Mask(left, right)
    lengths_q, lengths_k = np.array(pairs).T
    seen = [visible(mask, *each) for each in pairs]
    this = case(lengths_q, lengths_k, mask, heads=(6, 2), head_dim=16)
    n_pairs, n_tiles = sum(see.sum() for see in seen), sum(tiles(see, block_m, block_n) for see in seen)
    assert attention_flops(this, "fwd") == 4 * 6 * 16 * n_pairs
    assert attention_flops(this, "bwd") == 2.5 * 4 * 6 * 16 * n_pairs
    assert tile_flops(this, "fwd", block_m, block_n) == 4 * 6 * 16 * n_tiles * block_m * block_n
    assert tile_flops(this, "fwd", block_m, block_n) >= attention_flops(this, "fwd")
    padded = visible(mask, lengths_q.max(), lengths_k.max()).sum() * len(pairs)
    assert padded_flops(this, "bwd") == 2.5 * 4 * 6 * 16 * padded


def test_tiles_by_hand():
    count = visible_tiles(Mask(), np.array([128, 129, 1, 0, 5]), np.array([128, 129, 300, 5, 0]), 128, 128)
    assert count.tolist() == [1, 4, 3, 0, 0]
    assert visible_tiles(Mask(right=0), np.array([256]), np.array([256]), 128, 128).tolist() == [3]
    assert visible_tiles(Mask(left=0, right=0), np.array([256]), np.array([256]), 128, 128).tolist() == [2]
    # 256 queries over 64 keys: the first 192 see none.
    assert visible_tiles(Mask(right=0), np.array([256]), np.array([64]), 128, 128).tolist() == [1]


def test_tile_flops_of_whole_tiles_are_the_flops():
    this = case([128, 256], [128, 256])
    assert tile_flops(this, "bwd") == attention_flops(this, "bwd") == padded_flops(case([128], [128]), "bwd") * 5


def test_bytes_of_a_packed_case():
    this = case([3, 2], [4, 0], heads=(4, 2), head_dim=8)
    q, k, lse = 5 * 4 * 8 * 2, 4 * 2 * 8 * 2, 5 * 4 * 4
    assert attention_bytes(this, "fwd") == (q + 2 * k) + (q + lse)
    assert attention_bytes(this, "bwd") == (q + 2 * k + 2 * q + lse) + (q + 2 * k)


def test_a_dense_query_block_moves_once():
    this = case([3, 3], [4, 0], mode="broadcast_q", heads=(4, 4), head_dim=8)
    q, out, k, lse = 3 * 4 * 8 * 2, 6 * 4 * 8 * 2, 4 * 4 * 8 * 2, 6 * 4 * 4
    assert attention_bytes(this, "fwd") == (q + 2 * k) + (out + lse)
    assert attention_bytes(this, "bwd") == (q + 2 * k + 2 * out + lse) + (q + 2 * k)


def test_an_empty_batch_costs_nothing():
    this = case([0, 0], [0, 0], Mask(right=0))
    assert [each(this, "fwd") for each in (attention_flops, tile_flops, padded_flops, attention_bytes)] == [0] * 4


def test_the_floor_is_the_slower_of_computing_and_moving():
    ceilings = Ceilings(matmul_tflops=500, copy_tbps=2)
    assert floor_ms(10**12, 10**9, ceilings) == pytest.approx(2.0)
    assert floor_ms(10**11, 10**9, ceilings) == pytest.approx(0.5)


def test_an_unknown_direction_is_an_error():
    with pytest.raises(ValueError, match="direction: must be fwd or bwd, got 'both'"):
        attention_flops(case([1], [1]), "both")


def test_counts_beyond_int32_are_exact():
    this = case([4096] * 512, [4096] * 512, heads=(64, 64), head_dim=128)
    assert attention_flops(this, "fwd") == 4 * 64 * 128 * 512 * 4096**2
    assert tile_flops(this, "bwd") == attention_flops(this, "bwd")
