"""Kernels that others wrote and that are known to be good: the installed package's TLX tutorials, unmodified."""

import pytest
import torch

from kernels.simulator import SimulationError, Simulator
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


def test_a_public_kernel_with_a_race_is_caught(monkeypatch):
    """blackwell-gdpa reads O before its last MMA is done; its source has a FIXME there."""
    module = load_tutorial("blackwell-gdpa.py")
    monkeypatch.setattr(module, "get_num_sms", lambda: 2)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(rows, 2, 128, generator=generator).bfloat16() for rows in (768, 640, 640))
    bounds = [torch.tensor(each, dtype=torch.int32) for each in ([0, 256, 768], [0, 256, 640])]
    allow = TUTORIALS["blackwell_fa_clc"].allow
    for schedule in SCHEDULES:
        racy = Simulator(schedule.seed, schedule.mode, arch=100, allow=allow)
        with pytest.raises(SimulationError, match=r"race\].*tmem"), racy:
            module.gdpa_forward_tlx(q, k, v, *bounds, 512, 384)
