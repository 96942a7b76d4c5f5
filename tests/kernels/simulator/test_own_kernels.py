"""This project's TLX kernels in the simulator: every variant, on layouts that cover masks, heads and poison."""

import pytest

from kernels.hopper.options import VARIANTS
from kernels.simulator.cases import run_schedule, sweep
from kernels.simulator.jagged import LAYOUTS, hopper_backward_cases, hopper_cases
from kernels.simulator.schedules import Schedule, schedules

CASES = hopper_cases()


def chosen() -> list[str]:
    """Every layout on one variant, taken in turn, and every variant on at least one layout."""
    names = []
    for position, layout in enumerate(LAYOUTS):
        able = [name for name in CASES if name.split("/", 2)[2].removesuffix("/dynamic") == layout]
        names.append(able[position % len(able)])
    for position, variant in enumerate(VARIANTS):
        if not any(name.startswith(f"hopper/{variant}/") for name in names):
            able = [name for name in CASES if name.startswith(f"hopper/{variant}/")]
            names.append(able[position % len(able)])
    return names


@pytest.mark.parametrize(("position", "name"), list(enumerate(chosen())))
def test_hopper_forward(position, name):
    result = sweep(CASES[name], [Schedule("lazy", 1) if position % 2 else Schedule("random", 2)])
    assert not result.failures, "\n".join(outcome.text for outcome in result.failures)
    assert not result.counts  # nothing is on an allow-list


def test_chosen_cases_deal_both_ways():
    assert any(name.endswith("/dynamic") for name in chosen())
    assert any(not name.endswith("/dynamic") for name in chosen())


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
