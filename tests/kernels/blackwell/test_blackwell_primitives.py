"""exp2 on FMA units and by columns, run in the simulator."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.blackwell.primitives import exp2_mixed, exp2_on_fma

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
from kernels.simulator import Simulator


@triton.jit
def powers(x, y, N: tl.constexpr, EMULATED: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * N + tl.arange(0, N)[None, :]
    if EMULATED == 16:
        tl.store(y + at, exp2_on_fma(tl.load(x + at), True))
    else:
        tl.store(y + at, exp2_mixed(tl.load(x + at), EMULATED, True))


def run(x, emulated):
    y = torch.empty_like(x)
    with Simulator(arch=100):
        powers[(1,)](x, y, N=x.shape[1], EMULATED=emulated)
    return y


def relative_error(y, x):
    exact = torch.exp2(x.double())
    return ((y.double() - exact) / exact).abs()


def test_the_cubic_is_within_its_bound():
    x = torch.linspace(-125, 20, 64 * 128).reshape(64, 128)
    assert relative_error(run(x, 16), x).max() <= 7.6e-5
    assert relative_error(run(x, 16), x).max() > 6e-5  # it isn't the library's exp2


def test_what_is_too_small_becomes_next_to_nothing():
    x = torch.tensor([-126.0, -127.0, -1e4, -1e30, -torch.inf] * 64 + [0.0] * 64 * 3).reshape(64, 8)
    small = run(x, 16).flatten()[:320]
    assert (small >= 0).all()
    assert (small < 2.0**-125).all()


@pytest.mark.parametrize("emulated", [0, 2, 4, 6, 8])
def test_only_the_first_columns_of_sixteen_are_emulated(emulated):
    x = torch.linspace(-30, 5, 64 * 64).reshape(64, 64)
    error = relative_error(run(x, emulated), x).reshape(-1, 16).amax(0)
    assert (error[:emulated] > 1e-6).all()
    assert (error[emulated:] < 1e-6).all()
