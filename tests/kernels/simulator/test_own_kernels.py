"""This project's TLX kernels in the simulator: every variant, on layouts that cover masks, heads and poison."""

import pytest

from kernels.hopper.options import VARIANTS
from kernels.simulator.cases import run_schedule, sweep
from kernels.simulator.jagged import LAYOUTS, hopper_backward_cases, hopper_cases
from kernels.simulator.schedules import Schedule, schedules

CASES = hopper_cases()


def chosen() -> list[str]:
    """Two cases a variant, taken in turn from those it can run, so that all layouts have their turn."""
    names = []
    for position, variant in enumerate(VARIANTS):
        cases = [name for name in CASES if name.startswith(f"hopper/{variant}/")]
        names += [cases[(position * 2 + offset) % len(cases)] for offset in (0, len(cases) // 2)]
    return names


@pytest.mark.parametrize(("position", "name"), list(enumerate(chosen())))
def test_hopper_forward(position, name):
    result = sweep(CASES[name], [Schedule("lazy", 1) if position % 2 else Schedule("random", 2)])
    assert not result.failures, "\n".join(outcome.text for outcome in result.failures)
    assert not result.counts  # nothing is on an allow-list


def test_chosen_cases_cover_every_layout_and_both_ways_of_dealing():
    names = chosen()
    covered = {layout for layout in LAYOUTS for name in names if f"/{layout}" in f"{name}/"}
    assert len(covered) >= len(LAYOUTS) * 3 // 4
    assert any(name.endswith("/dynamic") for name in names)
    assert any(not name.endswith("/dynamic") for name in names)


def test_a_schedule_is_the_same_every_time():
    name = next(name for name in CASES if "causal" in name)
    call = CASES[name].prepare()
    for schedule in schedules(2):
        switches = {run_schedule(CASES[name], call, schedule)[1].switches for _ in range(2)}
        assert len(switches) == 1


def test_ctas_that_run_at_the_same_time_share_the_dynamic_counter():
    name = next(name for name in CASES if name.startswith("hopper/solo64/") and name.endswith("/dynamic"))
    result = sweep(CASES[name], schedules(2), resident=4)
    assert not result.failures, result.failures[0].text


@pytest.mark.parametrize("name", ["default/self", "summed/causal-cross", "default/broadcast-32/d64", "two-kv/poison",
                                  "early-dv/gqa/d64", "deterministic/edges"])
def test_hopper_backward(name):
    cases = hopper_backward_cases()
    result = sweep(cases[f"hopper-bwd/{name}"], [Schedule("random", 1)])
    assert not result.failures, result.failures[0].text
