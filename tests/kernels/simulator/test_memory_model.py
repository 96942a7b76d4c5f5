"""Global memory, bulk copies, distributed shared memory and reinterpretation."""

import pytest
import small_kernels
import torch

from kernels.simulator import SimulationError, Simulator, schedules


@pytest.mark.parametrize("schedule", schedules(3), ids=str)
def test_bulk_copy_there_and_back(schedule):
    x, y = torch.arange(128.0), torch.zeros(128)
    with Simulator(schedule.seed, schedule.mode):
        small_kernels.bulk[(1,)](x, y, 0, OFFSET=4, COMPLETE=True)
    assert torch.equal(y[:64], x[4:68])
    assert y[64] == 4


def test_store_wait_does_not_make_the_store_visible():
    with pytest.raises(SimulationError, match=r"race.*reads global memory y"), Simulator():
        small_kernels.bulk[(1,)](torch.arange(128.0), torch.zeros(128), 0, OFFSET=0, COMPLETE=False)


def test_bulk_copy_alignment():
    with pytest.raises(SimulationError, match="multiples of 16"), Simulator():
        small_kernels.bulk[(1,)](torch.arange(128.0), torch.zeros(128), 0, OFFSET=1, COMPLETE=True)


def test_reinterpret_sees_the_same_bytes():
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    out = torch.zeros(64, 64, dtype=torch.bfloat16)
    with Simulator():
        small_kernels.reinterpret[(1,)](x, out)
    assert torch.equal(out.view(torch.int16), x.view(torch.int16))  # some halves are NaN as bf16


def test_a_permuted_tile_can_be_stored_through_in_another_shape():
    x, out = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), torch.zeros(64, 64)
    with Simulator():
        small_kernels.permuted[(1,)](x, out, USE="load")
    order = torch.tensor([8 * (row // 8) + [0, 4, 1, 5, 2, 6, 3, 7][row % 8] for row in range(64)])
    assert torch.equal(out, x[order])


@pytest.mark.parametrize("use", ["trans", "slice", "index", "dot", "square"])
def test_and_nothing_else(use):
    with pytest.raises(SimulationError, match="can only be loaded and stored"), Simulator():
        small_kernels.permuted[(1,)](torch.zeros(64, 64), torch.zeros(64, 64), USE=use)


def test_a_column_is_no_row():
    with pytest.raises(SimulationError, match="uninitialised"), Simulator():
        small_kernels.column[(1,)](torch.zeros(64), torch.zeros(64))


@pytest.mark.parametrize("remote", ["copy", "view", "rank"])
@pytest.mark.parametrize("schedule", schedules(3), ids=str)
def test_cluster_exchange(remote, schedule):
    out = torch.zeros(2, 2048)
    with Simulator(schedule.seed, schedule.mode):
        small_kernels.exchange[(2,)](out, REMOTE=remote, ctas_per_cga=(2, 1, 1))
    assert bool((out[0] == 1).all())
    assert bool((out[1] == 0).all())


def test_cluster_exchange_without_a_signal_is_a_race():
    caught = set()
    for schedule in schedules(4):
        with pytest.raises(SimulationError) as error, Simulator(schedule.seed, schedule.mode):
            small_kernels.exchange[(2,)](torch.zeros(2, 2048), REMOTE="nothing", ctas_per_cga=(2, 1, 1))
        caught.add(error.value.check)
    assert caught <= {"race", "uninitialised"}


def launch_writes(grid, step, n=64, atomic=False, size=256, resident=1):
    with Simulator(resident=resident) as simulator:
        x = torch.zeros(size)
        small_kernels.write_global[(grid,)](x, n, STEP=step, ATOMIC=atomic)
    return simulator, x


def test_write_counts():
    simulator, x = launch_writes(4, 64)
    simulator.check_written(x)
    simulator, x = launch_writes(4, 64, n=63)
    with pytest.raises(SimulationError, match=r"never written\] output\[63\]"):
        simulator.check_written(x)
    simulator, x = launch_writes(3, 64)
    inside = torch.arange(256) < 192
    simulator.check_written(x, where=inside)
    with pytest.raises(SimulationError, match=r"output\[0\] was written 1 times.*outside of what it may write"):
        simulator.check_written(x, where=~inside & (torch.arange(256) < 0))
    with pytest.raises(SimulationError, match="never written"):
        simulator.check_written(x)


@pytest.mark.parametrize("resident", [1, 2])
def test_two_ctas_writing_one_element_race_even_one_after_the_other(resident):
    with pytest.raises(SimulationError, match=r"race.*writes global memory x"):
        launch_writes(2, 32, resident=resident)


def test_atomics_do_not_race_among_themselves():
    simulator, x = launch_writes(2, 32, atomic=True)
    assert x[:96].tolist() == [1.0] * 32 + [2.0] * 32 + [1.0] * 32
    with pytest.raises(SimulationError, match="written twice"):
        simulator.check_written(x, where=torch.arange(256) < 96)
    simulator.check_written(x, where=torch.arange(256) < 96, times=None)


def test_out_of_bounds_names_the_argument():
    with pytest.raises(SimulationError, match=r"out of bounds.*of x, which has 100"):
        launch_writes(2, 64, size=100)


@pytest.mark.parametrize("schedule", schedules(3), ids=str)
def test_release_and_acquire_order_global_memory(schedule):
    out = torch.zeros(1)
    with Simulator(schedule.seed, schedule.mode, resident=2):
        small_kernels.hand_over[(2,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1), out, SYNC=True)
    assert out.item() == 7
    racy = Simulator(schedule.seed, schedule.mode, resident=2)
    with pytest.raises(SimulationError, match=r"race.*reads global memory data"), racy:
        small_kernels.hand_over[(2,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1), out, SYNC=False)
