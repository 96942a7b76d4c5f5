"""What the simulator takes for granted of the compiler, in its PTX (from a process without Triton's interpreter)."""

import contextlib
import json
import re
from pathlib import Path

import pytest
import small_kernels
import torch
from offline_script import printed_by
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.simulator import SimulationError, Simulator

_SCRIPT = """
import json, small_kernels, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver
from kernels.offline import OfflineDriver

driver.set_active(OfflineDriver(90))
kernel = small_kernels.store_without_fence
types = {"desc": "tensordesc<fp32[64,64]>", "x": "*fp32", "out": "*fp32", "HOW": "constexpr"}
print(json.dumps({how: triton.compile(ASTSource(kernel, types, {(3,): how}, {}), target=GPUTarget("cuda", 90, 32),
                                      options={"num_warps": 4}).asm["ptx"] for how in ("store", "add", "bulk")}))
"""
_EVENTS = r"mbarrier\.try_wait|mbarrier\.arrive|bar\.sync|fence\.proxy\.async|cp\.(?:reduce\.)?async\.bulk(?=\S*global)"


@pytest.fixture(scope="module")
def ptx():
    return json.loads(printed_by("-c", _SCRIPT, beside=Path(__file__).parent))


def before_the_store(text):
    events = re.findall(_EVENTS, text)
    store = next(position for position, event in enumerate(events) if event.startswith("cp."))
    return events[:store]


@pytest.mark.parametrize("how", ["store", "add"])
def test_a_proxy_fence_precedes_every_tma_store_in_the_task_that_stores(ptx, how):
    """Why a dropped explicit fence before a TMA store is the same kernel."""
    assert before_the_store(ptx[how])[-2:] == ["mbarrier.try_wait", "fence.proxy.async"]


def test_no_proxy_fence_precedes_a_bulk_store(ptx):
    assert "fence.proxy.async" not in before_the_store(ptx["bulk"])


@pytest.mark.parametrize("how", ["store", "add", "bulk"])
def test_the_simulator_agrees(how):
    x, out = torch.ones(64, 64), torch.zeros(64, 64)
    descriptor = TensorDescriptor(out, [64, 64], [64, 1], [64, 64])
    expected = (pytest.raises(SimulationError, match="proxy fence") if how == "bulk"
                else contextlib.nullcontext())
    with expected, Simulator():
        small_kernels.store_without_fence[(1,)](descriptor, x, out, HOW=how)
    assert how == "bulk" or bool((out == 1).all())


def test_an_arrival_waits_for_all_warps_of_its_task(ptx):
    events = re.findall(_EVENTS, ptx["store"])
    arrival = events.index("mbarrier.arrive")
    assert events[arrival - 1] == "bar.sync"
