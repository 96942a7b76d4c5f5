"""The front end: what the compiler refuses is refused, scalars behave as int32, tasks capture by value."""

import pytest
import small_kernels
import torch

from kernels.simulator import SimulationError, Simulator


def launch(kernel, *args, **kwargs):
    x = torch.zeros(256)
    with Simulator():
        kernel[(1,)](x, *args, **kwargs)
    return x


def test_plain_assignment_loses_constexpr():
    with pytest.raises(SimulationError, match="constexpr"):
        launch(small_kernels.assignment_loses_constexpr, 4)
    assert launch(small_kernels.annotation_keeps_constexpr, 4)[:5].tolist() == [1, 1, 1, 1, 0]


def test_int32_overflow_is_an_error_unless_widened():
    with pytest.raises(SimulationError, match="int32 overflow"):
        launch(small_kernels.overflow, 3)
    assert launch(small_kernels.wide, 3)[0] == 3 * 2.0**32


def test_division_truncates_as_in_c():
    assert launch(small_kernels.c_division, 7)[:3].tolist() == [-3, -1, 4]


def test_replicas_do_not_share_variables():
    assert launch(small_kernels.replicas, 3)[:4].tolist() == [5, 6, 7, 105]


def test_structure():
    with pytest.raises(SimulationError, match="exactly one default"):
        launch(small_kernels.two_defaults)


def test_unknown_launch_option_is_named():
    with pytest.raises(TypeError, match=r"overflow: unknown arguments or launch options \['num_wraps'\]"):
        launch(small_kernels.overflow, 3, num_wraps=4)


def test_arguments_of_the_simulator():
    with pytest.raises(ValueError, match="mode: expected eager, lazy or random"):
        Simulator(mode="late")
    with pytest.raises(ValueError, match="arch: expected 90"):
        Simulator(arch=80)


def test_torch_and_triton_are_left_as_they_were():
    from triton.runtime import driver

    before = (torch.empty, torch.cuda.get_device_properties, driver._active, type(small_kernels.overflow).run)
    with pytest.raises(SimulationError):
        launch(small_kernels.overflow, 3)
    assert (torch.empty, torch.cuda.get_device_properties, driver._active, type(small_kernels.overflow).run) == before


@pytest.mark.parametrize(("tlx", "name"), [(True, r"tlx\.local_gather"), (False, r"tl\.sort")])
def test_what_is_not_simulated_is_named(tlx, name):
    with pytest.raises(SimulationError, match=rf"unsupported\] {name} is not simulated"):
        launch(small_kernels.not_simulated, TLX=tlx)
