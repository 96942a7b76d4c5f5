"""Kernels that others wrote and that are known to be good: the installed package's TLX tutorials, unmodified."""

import pytest

from kernels.simulator.cases import sweep
from kernels.simulator.schedules import Schedule
from kernels.simulator.tutorials import TUTORIALS, load_tutorial

# One schedule of each extreme and a random one where it is cheap; `python -m kernels.simulator` runs many.
SCHEDULES = [Schedule("lazy", 0), Schedule("random", 3)]
EXPENSIVE = {"blackwell_gemm_ws", "backward/1-cta/causal", "backward/2-cta/causal", "backward/1-cta/warp-barrier"}


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorial(name):
    result = sweep(TUTORIALS[name], SCHEDULES[1:] if name in EXPENSIVE else SCHEDULES)
    assert not result.failures, "\n".join(outcome.text for outcome in result.failures)


def test_missing_tutorial_is_named():
    with pytest.raises(FileNotFoundError, match=r"no_such\.py: the installed Triton .* has no such TLX tutorial"):
        load_tutorial("no_such.py")
