"""FlexAttention's block lists against brute force, and its mask against the oracle (forward alone: it has no backward
on a CPU)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_cases import CASES, CAUSAL, FULL, make_case

from harness.backends import flex, registry
from harness.backends.flex_blocks import BLOCK, block_lists, find_segments, visible_range
from harness.inputs import make_inputs, make_problem
from kernels.mask import Mask
from kernels.reference import attention_reference

MASKS = [FULL, CAUSAL, Mask(50, 0), Mask(200, 100), Mask(3, None), Mask(None, 7), Mask(0, 0)]


def score_matrix(mask, lengths_q, lengths_k):
    """bool [total_q, total_k] rounded up to whole blocks."""
    offsets_q, offsets_k = offsets_of(lengths_q), offsets_of(lengths_k)
    visible = np.zeros([-(-int(offsets[-1]) // BLOCK) * BLOCK for offsets in (offsets_q, offsets_k)], dtype=bool)
    for b, (len_q, len_k) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        low, high = mask.key_bounds(np.arange(len_q), len_q, len_k)
        key = np.arange(len_k)
        seen = (key >= low[:, None]) & (key < high[:, None])
        visible[offsets_q[b]:offsets_q[b + 1], offsets_k[b]:offsets_k[b + 1]] = seen
    return visible


def offsets_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def to_dense(counts_and_indices, columns):
    counts, indices = counts_and_indices
    dense = np.zeros((len(counts), columns), dtype=bool)
    for row, count in enumerate(counts):
        listed = indices[row, :count]
        assert (np.diff(listed) > 0).all()
        dense[row, listed] = True
    return dense


def random_lengths(rng):
    batch, longest = int(rng.integers(1, 8)), int(rng.choice([6, 100, 500]))
    lengths_q = rng.integers(0, longest, batch)
    return lengths_q, lengths_q if rng.random() < 0.4 else rng.integers(0, longest, batch)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_lists_are_those_of_the_score_matrix(mask):
    rng = np.random.default_rng(7)
    for _ in range(40):
        lengths_q, lengths_k = random_lengths(rng)
        if not lengths_q.sum() or not lengths_k.sum():
            continue
        visible = score_matrix(mask, lengths_q, lengths_k)
        blocks = visible.reshape(len(visible) // BLOCK, BLOCK, -1, BLOCK).transpose(0, 2, 1, 3)
        some, whole = blocks.any((2, 3)), blocks.all((2, 3))
        segments = find_segments(mask, offsets_of(lengths_q), offsets_of(lengths_k))
        lists = block_lists(segments)
        rows, columns = some.shape
        np.testing.assert_array_equal(to_dense(lists["kv"], columns), some & ~whole)
        np.testing.assert_array_equal(to_dense(lists["full_kv"], columns), whole)
        np.testing.assert_array_equal(to_dense(lists["q"], rows).T, some & ~whole)
        np.testing.assert_array_equal(to_dense(lists["full_q"], rows).T, whole)
        for narrow, full in (("kv", "full_kv"), ("q", "full_q")):  # torch 2.11 uses the stride of the first for both
            assert lists[narrow][1].strides == lists[full][1].strides
            assert lists[narrow][1].shape[1] == max(1, lists[narrow][0].max(), lists[full][0].max())
        index_bytes = sum(indices.nbytes for _, indices in lists.values())
        assert index_bytes <= segments.index_bytes + 2 * 4 * (rows + columns)  # empty lists are one wide


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_the_visible_range_is_the_mask(mask):
    rng = np.random.default_rng(3)
    lengths_q, lengths_k = rng.integers(0, 60, 9), rng.integers(0, 60, 9)
    problem = make_problem(make_case("cross", mask, lengths_q.tolist(), lengths_k.tolist()), "cpu")
    low, high = visible_range(problem)
    key = torch.arange(problem.layout_k.total)
    seen = (key >= low[:, None]) & (key < high[:, None])
    expected = score_matrix(mask, lengths_q, lengths_k)[: problem.layout_q.total, : problem.layout_k.total]
    np.testing.assert_array_equal(seen.numpy(), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["self", "causal", "gqa", "cross_window", "broadcast_q"])
def test_forward_matches_the_oracle(name):
    from torch.nn.attention.flex_attention import flex_attention

    inputs = make_inputs(CASES[name], "cpu")
    operation = flex.FlexOperation(inputs, flex_attention)
    with torch.no_grad():
        out, _ = operation.attend(inputs.q, inputs.k, inputs.v)
    exact, _ = attention_reference(inputs.problem, inputs.q, inputs.k, inputs.v)
    assert torch.linalg.vector_norm(out.double() - exact) <= 0.02 * torch.linalg.vector_norm(exact)


def test_two_million_rows_take_little():
    offsets = offsets_of(np.random.default_rng(0).integers(3686, 4097, 512))
    assert find_segments(FULL, offsets, offsets).index_bytes < 32 * 2**20


def test_declines():
    device, backend = torch.device("cuda"), registry.create("flex")
    assert backend.declines(CASES["self"], "fwd", device) is None
    assert "below 16" in backend.declines(make_case("self", FULL, [3], [3], head_dim=8), "fwd", device)
    assert "empty" in backend.declines(CASES["no_keys"], "fwd", device)
    huge = make_case("self", FULL, [2**22], [2**22])
    assert "more than 2 GiB" in backend.declines(huge, "bwd", device)
