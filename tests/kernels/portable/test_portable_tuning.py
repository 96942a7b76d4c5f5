from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from portable_problems import check, make_problem, make_tensors
from triton.runtime.autotuner import Autotuner

from kernels.mask import Mask
from kernels.portable import backward, forward, tuning
from kernels.portable.arguments import MAX_GRID, effective_window, grid_1d, num_tiles, unit_stride, wants_search
from kernels.portable.interpreter import hardware_bf16, is_interpreted
from kernels.portable.options import TileOptions

TILES = [TileOptions(32, 32, 4, 1), TileOptions(32, 16, 4, 1), TileOptions(16, 32, 4, 1)]
interpreted_only = pytest.mark.skipif(not is_interpreted(forward.forward_kernel), reason="needs the interpreter")


@pytest.fixture
def fake_timer(monkeypatch):
    """Autotuning without a GPU: every candidate runs twice, the second one is the fastest."""
    timed = []

    def bench(self, *args, config, **meta):
        for _ in range(2):
            self.fn.run(*args, **meta, **config.all_kwargs())
        timed.append(TileOptions(**config.kwargs, num_warps=config.num_warps, num_stages=config.num_stages))
        return [1.0 if timed[-1] == TILES[1] else 2.0] * 3

    monkeypatch.setattr(Autotuner, "_bench", bench)
    monkeypatch.setattr(tuning, "candidates", lambda kernel, problem: TILES)
    monkeypatch.setattr(tuning, "is_interpreted", lambda kernel: False)
    for kernel in (forward.FORWARD, backward.DKDV, backward.DQ):
        monkeypatch.setattr(kernel, "_best", {})
    return timed


@interpreted_only
@pytest.mark.parametrize("broadcast_q", [False, True])
def test_tunes_once_per_kind_of_problem_and_still_computes_right(fake_timer, broadcast_q):
    from kernels.portable import IMPLEMENTATION

    with hardware_bf16():
        for lengths in ([20, 20], [31, 31], [128, 1]):
            problem = make_problem("cpu", lengths, lengths, broadcast_q=broadcast_q)
            q, k, v, dout = tensors = make_tensors(problem)
            out, lse = IMPLEMENTATION.forward(problem, q, k, v)
            check(problem, tensors, (out, lse, *IMPLEMENTATION.backward(problem, q, k, v, out, lse, dout)))
    assert fake_timer == TILES * 3  # forward, dkdv, dq, for the first lengths only
    assert IMPLEMENTATION.describe(problem, "fwd") == "portable/32x16w4s1"
    assert IMPLEMENTATION.describe(problem, "bwd") == "portable/dkdv32x16w4s1-dq32x16w4s1"
    causal = make_problem("cpu", [32], [32], Mask.make(True))
    assert IMPLEMENTATION.describe(causal, "fwd") == "portable"


def test_windows_that_hide_nothing_are_dropped():
    def window(mask, len_q, len_k):
        return effective_window(make_problem("cpu", [len_q, 1], [len_k, 0], mask))

    assert window(Mask(10**12, 10**12), 40, 30) == (None, None)
    assert window(Mask(29, 39), 40, 30) == (None, None)
    assert window(Mask(28, 38), 40, 30) == (28, 38)
    assert window(Mask.make(True), 1, 30) == (None, None)
    assert window(Mask.make(True), 2, 30) == (None, 0)


def test_grids():
    uniform = make_problem("cpu", np.arange(1, 1025), [1]).layout_q
    assert not wants_search(uniform)
    assert num_tiles(uniform, 128, search=False) == 1024 * 8
    tailed = make_problem("cpu", [8192] + [30] * 4095, [1]).layout_q
    assert wants_search(tailed)
    assert num_tiles(tailed, 128, search=True) == tailed.total // 128 + 4096
    assert grid_1d(MAX_GRID) == (MAX_GRID,)
    with pytest.raises(ValueError, match="2147483647"):
        grid_1d(MAX_GRID + 1)


def test_unit_stride_copies_only_what_it_must():
    tensor = torch.zeros(4, 6, 8)
    for view in (tensor, tensor[::2], tensor.permute(1, 0, 2), tensor[:1].expand(4, 6, 8)):
        assert unit_stride(view) is view
    assert unit_stride(tensor.permute(0, 2, 1)).is_contiguous()


@triton.jit
def _round_and_multiply(x, rounded, product, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    values = tl.load(x + offsets).to(tl.bfloat16)
    tl.store(rounded + offsets, values)
    tl.store(product + offsets, tl.dot(values, values))


@interpreted_only
def test_interpreted_bf16_is_the_hardware_s():
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    x[0, :8] = torch.tensor([1.99999, -1.99999, 3.4e38, float("inf"), -0.0, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8])
    rounded, product = torch.empty(32, 32, dtype=torch.bfloat16), torch.empty(32, 32)
    with hardware_bf16():
        _round_and_multiply[(1,)](x, rounded, product, SIZE=32)
    assert torch.equal(rounded, x.bfloat16())
    finite = slice(1, None)
    x[0] = x[1]
    with hardware_bf16():
        _round_and_multiply[(1,)](x, rounded, product, SIZE=32)
    torch.testing.assert_close(product[finite], (x.bfloat16().double() @ x.bfloat16().double()).float()[finite])
    nan = torch.full((32, 32), float("nan"))
    with hardware_bf16():
        _round_and_multiply[(1,)](nan, rounded, product, SIZE=32)
    assert rounded.isnan().all()
