"""What the simulator promises, on a kernel of this project; `harness simulate` and its tests run them all."""

import pytest

from kernels.mask import Mask
from kernels.simulator.cases import run_schedule, sweep
from kernels.simulator.jagged import Layout, hopper_backward_cases, hopper_cases
from kernels.simulator.schedules import schedules

LAYOUTS = {"self": Layout((150, 64, 0, 65), head_dim=64),
           "causal": Layout((200, 0, 65), head_dim=64, mask=Mask.make(causal=True)),
           "poison": Layout((130, 65, 64), head_dim=64, poisoned=(1,))}
CASES = {**hopper_cases("solo64", LAYOUTS), **hopper_backward_cases("rule", LAYOUTS)}


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_is_the_same_every_time(name):
    call = CASES[name].prepare()
    for schedule in schedules(2):
        outcomes = [run_schedule(CASES[name], call, schedule) for _ in range(2)]
        assert all(outcome.ok for outcome, _ in outcomes), outcomes[0][0].text
        assert len({(outcome.worst, simulator.switches) for outcome, simulator in outcomes}) == 1
        assert not outcomes[0][0].counts  # nothing is on an allow-list


def test_schedules_differ():
    call = CASES["hopper/solo64/self"].prepare()
    assert len({run_schedule(CASES["hopper/solo64/self"], call, each)[1].switches for each in schedules(6)}) > 1


def test_ctas_that_run_at_the_same_time_share_the_dynamic_counter():
    (name,) = [name for name in CASES if name.endswith("/dynamic")]
    result = sweep(CASES[name], schedules(2), resident=4)
    assert not result.failures, result.failures[0].text
