from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.jagged_layout import JaggedLayout


def cu(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int32)


def test_from_lengths(device):
    layout = JaggedLayout.from_lengths([3, 0, 5], device)
    assert layout.cu_seqlens.tolist() == [0, 3, 3, 8]
    assert layout.cu_seqlens.dtype == torch.int32
    assert layout.device.type == device.type
    assert (layout.batch, layout.total, layout.max_seqlen) == (3, 8, 5)
    assert layout.lengths.tolist() == [3, 0, 5]
    assert layout.offsets.dtype == np.int64
    layout.validate()


def test_no_sequences_and_no_rows():
    none = JaggedLayout.from_lengths([])
    assert (none.batch, none.total, none.max_seqlen, none.cu_seqlens.tolist()) == (0, 0, 0, [0])
    empty = JaggedLayout.from_lengths([0, 0])
    assert (empty.batch, empty.total, empty.max_seqlen) == (2, 0, 0)
    for layout in (none, empty):
        layout.validate()


@pytest.mark.parametrize(("lengths", "message"), [([2, -1], "must be >= 0, got -1"), ([2**30, 2**30], "below 2\\^31")])
def test_impossible_lengths_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        JaggedLayout.from_lengths(lengths)


def test_from_cu_seqlens_finds_the_longest_unless_given():
    assert JaggedLayout.from_cu_seqlens(cu(0, 3, 8), total=8).max_seqlen == 5
    assert JaggedLayout.from_cu_seqlens(cu(0, 3, 8), total=8, max_seqlen=64).max_seqlen == 64


@pytest.mark.parametrize(("offsets", "error"), [
    (torch.zeros(2, 2, dtype=torch.int32), ValueError), (torch.zeros(0, dtype=torch.int32), ValueError),
    (torch.zeros(3, dtype=torch.int64), TypeError)])
def test_offsets_of_another_kind_are_refused(offsets, error):
    with pytest.raises(error, match="cu_seqlens: expected"):
        JaggedLayout.from_cu_seqlens(offsets, total=0)


@pytest.mark.parametrize(("offsets", "max_seqlen", "message"), [
    (cu(1, 3, 8), None, r"cu_seqlens_q: expected to start at 0.* end at 8 rows, got \[1, 3, 8\]"),
    (cu(0, 5, 4, 8), None, "cu_seqlens_q"), (cu(0, 3, 7), None, "cu_seqlens_q"),
    (cu(0, 3, 8), 4, "max_seqlen_q: 4 is below the longest length, 5")])
def test_validate_reads_the_values(offsets, max_seqlen, message):
    layout = JaggedLayout.from_cu_seqlens(offsets, total=8, max_seqlen=max_seqlen)
    with pytest.raises(ValueError, match=message):
        layout.validate("_q")


def test_a_long_layouts_error_is_short():
    layout = JaggedLayout.from_cu_seqlens(torch.arange(1000, dtype=torch.int32), total=3)
    with pytest.raises(ValueError, match=r"got \[0, 1, 2, 3, \.\.\., 998, 999\]"):
        layout.validate()


def test_device_offsets_are_copied_once(monkeypatch):
    copies = []
    layout = JaggedLayout(cu(0, 2, 6), total=6, max_seqlen=4)  # as from a GPU: nothing read yet
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(1) or real(self))
    assert not layout.on_host
    assert layout.lengths.tolist() == [2, 4]
    assert layout.offsets.tolist() == [0, 2, 6]
    assert layout.on_host
    assert len(copies) == 1


def test_cached_builds_once():
    built = []
    layout = JaggedLayout.from_lengths([1])
    for _ in range(2):
        assert layout.cached("key", lambda: built.append(1) or "value") == "value"
    assert len(built) == 1


def test_uniform_is_from_equal_lengths(device):
    uniform, listed = JaggedLayout.uniform(3, 4, device), JaggedLayout.from_lengths([4] * 3, device)
    assert torch.equal(uniform.cu_seqlens, listed.cu_seqlens)
    assert uniform.cu_seqlens.dtype == torch.int32
    assert uniform.offsets.tolist() == listed.offsets.tolist()
    assert (uniform.total, uniform.max_seqlen) == (12, 4)
    assert JaggedLayout.uniform(3, 0).total == 0
    assert JaggedLayout.uniform(0, 4).max_seqlen == 4
    with pytest.raises(ValueError, match="not below 2\\^31"):
        JaggedLayout.uniform(2**16, 2**15)


def test_offsets_that_are_not_aligned_are_copied():
    offsets = cu(9, 0, 3, 8)[1:]
    layout = JaggedLayout.from_cu_seqlens(offsets, total=8)
    assert layout.cu_seqlens.data_ptr() % 16 == 0
    assert layout.cu_seqlens.tolist() == [0, 3, 8]
    aligned = cu(0, 3, 8)
    assert JaggedLayout.from_cu_seqlens(aligned, total=8).cu_seqlens is aligned


def test_a_forgotten_plan_is_built_again():
    layout = JaggedLayout.from_lengths([3])
    built = []
    for _ in range(2):
        layout.cached("plan", lambda: built.append(1))
    layout.forget()
    layout.cached("plan", lambda: built.append(1))
    assert len(built) == 2


def test_uniform_sequences_may_be_empty():
    assert JaggedLayout.uniform(3, 0).cu_seqlens.tolist() == [0, 0, 0, 0]
    assert JaggedLayout.uniform(3, 5).cu_seqlens.tolist() == [0, 5, 10, 15]
    assert JaggedLayout.uniform(0, 5).cu_seqlens.tolist() == [0]


def test_the_owner_of_offsets_is_the_living_layout_that_made_them():
    for make in (lambda: JaggedLayout.from_lengths([3, 5]), lambda: JaggedLayout.uniform(2, 4)):
        layout = make()
        offsets = layout.cu_seqlens
        assert JaggedLayout.owner_of(offsets) is layout
        assert JaggedLayout.owner_of(offsets.clone()) is None
        del layout
        assert JaggedLayout.owner_of(offsets) is None
    given = torch.tensor([0, 3, 8], dtype=torch.int32)  # may be changed by whoever made it
    layout = JaggedLayout.from_cu_seqlens(given, total=8, max_seqlen=5)
    assert layout.cu_seqlens is given
    assert JaggedLayout.owner_of(given) is None
