from __future__ import annotations

import sys
import types

import pytest
import torch
from fake_implementation import FakeImplementation, install

from kernels import dispatch
from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem

CPU = torch.device("cpu")


@pytest.fixture
def problem():
    layout = JaggedLayout.from_lengths([2, 3])
    return JaggedProblem(layout, layout, 2, 2, 64, torch.bfloat16, 0.125)


@pytest.fixture(autouse=True)
def fresh_imports():
    dispatch._import.cache_clear()
    yield
    dispatch._import.cache_clear()


def test_auto_takes_the_first_that_does_not_decline(monkeypatch, problem):
    best, second = FakeImplementation("best"), FakeImplementation("second")
    install(monkeypatch, best, second)
    choice = dispatch.choose(problem, "fwd", CPU)
    assert choice.implementation is best
    assert choice.reason == ""


def test_auto_says_why_it_passed_over(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("best", {"bwd": "head_dim 96 is not one of 64, 128"}),
            FakeImplementation("second", {"bwd": "no backward yet"}), FakeImplementation("third"))
    assert dispatch.choose(problem, "fwd", CPU).implementation.name == "best"
    choice = dispatch.choose(problem, "bwd", CPU)
    assert choice.implementation.name == "third"
    assert choice.reason == "best: head_dim 96 is not one of 64, 128; second: no backward yet"


def test_nobody_left(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("best", {"fwd": "needs sm_90"}),
            FakeImplementation("second", {"fwd": "dtype float64"}))
    with pytest.raises(NotImplementedError, match=r"^best: needs sm_90; second: dtype float64$"):
        dispatch.choose(problem, "fwd", CPU)


def test_a_named_one_is_not_replaced(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("best", {"fwd": "needs sm_90"}), FakeImplementation("second"))
    assert dispatch.choose(problem, "fwd", CPU, "second").reason == ""
    with pytest.raises(NotImplementedError, match=r"^best: needs sm_90$"):
        dispatch.choose(problem, "fwd", CPU, "best")


def test_auto_leaves_out_a_schedule_that_the_chosen_one_does_not_know(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("best", {"bwd": "no backward yet"}),
            FakeImplementation("second", schedules={"bwd": ("none",)}))
    assert dispatch.choose(problem, "fwd", CPU, schedule="zigzag").schedule == "zigzag"
    choice = dispatch.choose(problem, "bwd", CPU, schedule="zigzag")
    assert choice.implementation.name == "second"
    assert choice.schedule is None
    assert choice.reason == "best: no backward yet; second has no schedule 'zigzag' and takes its own"
    assert dispatch.choose(problem, "bwd", CPU, schedule="none").schedule == "none"


def test_a_named_one_must_know_the_schedule(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("best"), FakeImplementation("second", schedules={"bwd": ("none",)}))
    assert dispatch.choose(problem, "fwd", CPU, "second", "zigzag").schedule == "zigzag"
    with pytest.raises(ValueError, match=r"^schedule: expected None or one of none \(those of second's bwd\), got 'z"):
        dispatch.choose(problem, "bwd", CPU, "second", "zigzag")


@pytest.mark.parametrize("schedule", ["zigzga", ""])
def test_a_schedule_that_nobody_knows(monkeypatch, problem, schedule):
    install(monkeypatch, FakeImplementation("best"), FakeImplementation("second", schedules={"bwd": ("none",)}))
    dispatch.IMPLEMENTATIONS["absent"] = "no_such_module"
    with pytest.raises(ValueError, match=f"^schedule: expected None or one of sorted, zigzag, none, got '{schedule}'$"):
        dispatch.choose(problem, "fwd", CPU, schedule=schedule)


@pytest.mark.parametrize("name", dispatch.IMPLEMENTATIONS)
def test_shipped_implementations_declare_their_schedules(name):
    for direction in ("fwd", "bwd"):
        assert "none" in dispatch.schedules(name, direction)
        for schedule in (None, *dispatch.schedules(name, direction)):
            dispatch.check_schedule(name, direction, schedule)
            dispatch.check_schedule("auto", direction, schedule)


def test_an_unknown_name(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("best"), FakeImplementation("second"))
    with pytest.raises(ValueError, match=r"impl: expected 'auto' or one of \['best', 'second'\], got 'bset'"):
        dispatch.choose(problem, "fwd", CPU, "bset")


def test_a_failed_import_is_a_reason(monkeypatch, problem):
    install(monkeypatch, FakeImplementation("second"))
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS",
                        {"absent": "no_such_module", "hollow": "fake_hollow", **dispatch.IMPLEMENTATIONS})
    monkeypatch.setitem(sys.modules, "fake_hollow", types.ModuleType("fake_hollow"))
    choice = dispatch.choose(problem, "fwd", CPU)
    assert choice.implementation.name == "second"
    assert choice.reason == ("absent: can't be imported (No module named 'no_such_module'); "
                             "hollow: can't be imported (no IMPLEMENTATION in fake_hollow)")
    with pytest.raises(NotImplementedError, match="absent: can't be imported"):
        dispatch.choose(problem, "fwd", CPU, "absent")
    with pytest.raises(ImportError, match="no_such_module"):
        dispatch.load("absent")


def test_another_error_at_import_is_not_swallowed(monkeypatch, tmp_path, problem):
    (tmp_path / "fake_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS", {"broken": "fake_broken"})
    with pytest.raises(ZeroDivisionError):
        dispatch.choose(problem, "fwd", CPU)


def test_a_module_is_imported_on_first_use_and_once(monkeypatch, tmp_path, problem):
    (tmp_path / "fake_counted.py").write_text(
        "import builtins\nbuiltins.fake_imports = getattr(builtins, 'fake_imports', 0) + 1\n"
        "from fake_implementation import FakeImplementation\nIMPLEMENTATION = FakeImplementation('counted')\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, FakeImplementation("first"))
    dispatch.IMPLEMENTATIONS["counted"] = "fake_counted"
    dispatch.choose(problem, "fwd", CPU)
    assert "fake_counted" not in sys.modules
    for _ in range(2):
        assert dispatch.choose(problem, "fwd", CPU, "counted").implementation.name == "counted"
    assert sys.modules["builtins"].fake_imports == 1
    del sys.modules["builtins"].fake_imports, sys.modules["fake_counted"]


def test_the_shipped_table_prefers_the_architectures_own():
    names = list(dispatch.IMPLEMENTATIONS)
    assert names[-1] == "portable"
    assert "hopper" in names[:-1]
    assert all(module.startswith("kernels.") for module in dispatch.IMPLEMENTATIONS.values())
