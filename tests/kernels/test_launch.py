"""A launcher goes through Triton once, and then only where something asks for it."""

from types import SimpleNamespace

import pytest
import torch
from triton import knobs
from triton.backends.driver import GPUDriver
from triton.compiler import CompiledKernel
from triton.runtime import driver

from kernels.launch import Blocks, Launcher

X = torch.zeros(64)


class FakeDriver(GPUDriver):
    """A GPU driver without a GPU."""

    get_current_target = is_active = get_active_torch_device = get_benchmarker = map_python_to_cpp_type = None

    def __init__(self):
        self.get_current_device = lambda: 3
        self.get_current_stream = lambda device: 100 + device


class Compiled(CompiledKernel):
    """What Triton returns from a launch; notes its own launches."""

    function, packed_metadata, module, run = "function", "metadata", None, None

    def __init__(self, log):
        self.run = lambda *args: log.append(("again", args))


class Function:
    """A jit function ``f(x, y, n, BLOCK, WIDE=7)``; notes launches through Triton."""

    __name__ = "f"

    def __init__(self, log, returns):
        names = [("x", False, None), ("y", False, None), ("n", True, None), ("BLOCK", False, None), ("WIDE", False, 7)]
        self.params = [SimpleNamespace(name=name, do_not_specialize=free, default=default)
                       for name, free, default in names]
        self.log, self.returns = log, returns

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            self.log.append(("triton", grid, args, kwargs))
            return self.returns

        return launch


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(driver, "_active", FakeDriver())
    return []


def launcher(log, returns="compiled"):
    function = Function(log, Compiled(log) if returns == "compiled" else returns)
    return Launcher(function, {"BLOCK": 64}, {"num_warps": 2})


def test_the_second_launch_goes_straight_to_the_compiled_kernel(log):
    launch = launcher(log)
    y = Blocks(X, [64], [1], [16])
    launch((5, 2), X, y, 33)
    launch((6, 1), X, y, 34)
    (how, grid, args, named), again = log
    assert (how, grid, named) == ("triton", (5, 2), {"BLOCK": 64, "num_warps": 2})
    assert args[0] is X
    assert type(args[1]).__name__ == "TensorDescriptor"
    assert again == ("again", (6, 1, 1, 103, "function", "metadata", None, None, None, X, y, 34, 64, 7))


def test_a_hook_or_another_driver_gets_its_launches_through_triton(log, monkeypatch):
    launch = launcher(log)
    launch((1, 1), X, X, 1)
    hook = lambda *_: None  # noqa: E731
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        launch((1, 1), X, X, 1)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    monkeypatch.setattr(driver, "_active", FakeDriver())
    launch((1, 1), X, X, 1)
    launch((1, 1), X, X, 1)
    assert [entry[0] for entry in log] == ["triton", "triton", "triton", "again"]


@pytest.mark.parametrize("returns", [None, "no kernel"])
def test_what_an_interpreter_or_a_simulator_ran_is_not_kept(log, returns):
    launch = launcher(log, returns)
    launch((1, 1), X, X, 1)
    launch((1, 1), X, X, 1)
    assert [entry[0] for entry in log] == ["triton", "triton"]


@pytest.mark.parametrize(("args", "message"), [
    ((X, 5, 1), "f: y must be in do_not_specialize"), ((X, 0, 1), "f: y must be in do_not_specialize"),
    ((X[1:], X, 1), "f: x isn't 16-byte aligned")])
def test_what_triton_would_specialise_on_is_refused(log, args, message):
    with pytest.raises(ValueError, match=message):
        launcher(log)((1, 1), *args)


def test_a_specialised_integer_may_be_a_multiple_of_16(log):
    launch = launcher(log)
    for value in (32, 48):
        launch((1, 1), X, value, 1)
    assert [entry[0] for entry in log] == ["triton", "again"]
