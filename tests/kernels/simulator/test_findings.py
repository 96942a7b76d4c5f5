"""Each check finds the fault that it is there for, in every schedule mode, and says nothing about the right kernel."""

import contextlib

import pytest
import small_kernels
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.simulator import Allowed, SimulationError, Simulator, schedules

BLOCKS, BLOCK = 7, 64


def run_pipeline(simulator: Simulator, fault: str) -> torch.Tensor:
    source = torch.randn(BLOCKS * BLOCK, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    with simulator:
        out = torch.empty_like(source)
        descs = [TensorDescriptor(t, list(t.shape), list(t.stride()), [BLOCK, 64]) for t in (source, out)]
        small_kernels.pipeline[(1,)](*descs, BLOCKS, BLOCK=BLOCK, SLOTS=2, FAULT=fault)
    assert torch.equal(out, source + source)
    simulator.check_written(out)
    return out


@pytest.mark.parametrize("schedule", schedules(8), ids=str)
def test_right_pipeline_passes(schedule):
    simulator = Simulator(schedule.seed, schedule.mode)
    run_pipeline(simulator, "none")
    assert not simulator.findings.counts


@pytest.mark.parametrize(("fault", "checks"), [
    ("no wait for full", {"race", "uninitialised"}),
    ("no wait for empty", {"race", "over-arrival"}),
    ("read after release", {"race"}),
    ("two releases", {"over-arrival", "race", "deadlock", "phase overrun"}),
    ("no release", {"deadlock"}),
    ("no wait for store", {"race"}),
    ("no wait at exit", {"unwaited at exit"}),
    ("one block less", {"deadlock"}),
    ("one block more", {"unwaited at exit"}),
    ("too many bytes", {"deadlock"}),
    ("same place", {"race"}),
])
@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
def test_broken_pipeline_is_caught(fault, checks, mode):
    with pytest.raises(SimulationError) as caught:
        run_pipeline(Simulator(1, mode), fault)
    assert caught.value.check in checks, str(caught.value)


def test_report_shows_timeline_and_how_to_reproduce():
    with pytest.raises(SimulationError) as caught:
        run_pipeline(Simulator(5, "random"), "no release")
    text = str(caught.value)
    assert "waits for empty[0]" in text
    assert "parity 1" in text
    assert "last events" in text
    assert "+- cta0/default" in text
    assert "Simulator(seed=5, mode='random', arch=90" in text
    with pytest.raises(SimulationError) as again:
        run_pipeline(Simulator(5, "random"), "no release")
    assert str(again.value) == text


def run_product(simulator: Simulator, fence: bool = True, wait: bool = True) -> None:
    x, b = (torch.randn(64, 64, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(2))
    with simulator:
        out = torch.empty(64, 64)
        desc = TensorDescriptor(b, [64, 64], [64, 1], [64, 64])
        small_kernels.product[(1,)](x, desc, out, FENCE=fence, WAIT=wait)
    torch.testing.assert_close(out, x.float() @ b.float())


def test_wgmma_needs_fence_and_wait():
    run_product(Simulator())
    with pytest.raises(SimulationError, match="proxy fence"):
        run_product(Simulator(), fence=False)
    with pytest.raises(SimulationError, match="before async_dot_wait"):
        run_product(Simulator(), wait=False)


def test_allow_list_counts_instead_of_raising():
    allow = Allowed("proxy fence", "the test wants to see it counted", where="wgmma")
    simulator = Simulator(allow=[allow])
    run_product(simulator, fence=False)
    assert simulator.findings.counts["proxy fence"] == 1
    with pytest.raises(SimulationError, match="proxy fence"):
        run_product(Simulator(allow=[Allowed("proxy fence", "does not match", where="tcgen05")]), fence=False)
    with pytest.raises(ValueError, match="unknown check 'fence'"):
        Allowed("fence", "no such check")


@pytest.mark.parametrize("warp", [True, False])
def test_release_right_after_register_load(warp):
    source = torch.randn(64, 64).bfloat16()

    def go():
        with Simulator() as simulator:
            desc = TensorDescriptor(source, [64, 64], [64, 1], [64, 64])
            small_kernels.early_release[(1,)](desc, torch.empty(1), WARP=warp)
        return simulator

    if warp:  # a task-wide barrier would make the loads land; arriving warp by warp does not
        with pytest.raises(SimulationError, match="early release"):
            go()
    else:
        assert not go().findings.counts


def test_one_task_cannot_stand_in_for_another_at_a_named_barrier():
    x = torch.zeros(1)
    with Simulator() as simulator:
        small_kernels.turns[(1,)](x, TWICE=False)
    simulator.check_written(x)
    with pytest.raises(SimulationError, match=r"barrier 9: .* arrives a second time"), Simulator():
        small_kernels.turns[(1,)](x, TWICE=True)


@pytest.mark.parametrize(("n", "more", "kept"), [(1, 0, True), (0, -1, False), (-1, -9, False), (3, 2, True),
                                                 (3, 3, False), (3, 6, False)])
def test_a_promise_to_the_compiler_has_to_be_kept(n, more, kept):
    """A number's, and each element's of a tensor."""
    x = torch.zeros(1, dtype=torch.int32)
    simulator = Simulator()
    with (contextlib.nullcontext() if kept else pytest.raises(SimulationError)) as caught, simulator:
        small_kernels.promise[(1,)](x, n, MORE=more)
    if kept:
        assert not simulator.findings.counts
        assert x.item() == n
    else:
        assert caught.value.check == "assume"


def test_unwritten_memory_and_capacity():
    with pytest.raises(SimulationError, match="uninitialised"), Simulator():
        small_kernels.uninitialised[(1,)](torch.zeros(1))
    with pytest.raises(SimulationError, match="262144 B of shared memory > 232448"), Simulator():
        small_kernels.too_much_smem[(1,)](torch.zeros(1))


@pytest.mark.parametrize(("fault", "found"), [("none", None), ("no wait", "race"), ("only read", "race"),
                                              ("no count", "deadlock"), ("not all resident", "deadlock")])
@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
def test_a_flag_in_global_memory_orders_what_it_is_waited_for(fault, found, mode):
    flag, total = torch.zeros(4, dtype=torch.int32), torch.zeros(64, 32)

    def go():
        with Simulator(2, mode) as simulator:
            desc = TensorDescriptor(total, [64, 32], [32, 1], [64, 32])
            small_kernels.relay[(2,)](desc, flag, 1, FAULT=fault, launch_cooperative_grid=fault != "not all resident")
        return simulator

    if found:
        with pytest.raises(SimulationError) as caught:
            go()
        assert caught.value.check == found, str(caught.value)
    else:
        assert not go().findings.counts
        assert (total == 2).all()
