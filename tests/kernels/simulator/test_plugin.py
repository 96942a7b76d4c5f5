"""The pytest fixtures."""

import small_kernels
import torch

from kernels.simulator.schedules import schedules


def test_simulate_gives_one_simulator_per_schedule(tlx_simulate, tlx_schedules):
    seen = []
    for simulator in tlx_simulate(arch=90):
        out = torch.zeros(2, 2048)
        with simulator:
            small_kernels.exchange[(2,)](out, REMOTE="copy", ctas_per_cga=(2, 1, 1))
        simulator.check_written(out)
        seen.append((simulator.mode, simulator.seed))
    assert seen == [(each.mode, each.seed) for each in tlx_schedules]


def test_first_schedules_are_one_of_each_mode_and_never_repeat():
    assert {each.mode for each in schedules(3)} == {"lazy", "random", "eager"}
    assert len(set(schedules(40))) == 40
    assert schedules(5) == schedules(40)[:5]
