"""pytest fixtures for TLX kernels: ``-p kernels.simulator.pytest_plugin``, or import the fixtures into a conftest.

    def test_my_kernel(tlx_simulate):
        for simulator in tlx_simulate(arch=90):     # one seeded schedule after the other
            with simulator:
                out = my_kernel(...)
            simulator.check_written(out)
            torch.testing.assert_close(out, reference)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernels.simulator.launcher import Simulator
from kernels.simulator.schedules import Schedule, schedules

_DEFAULT_SCHEDULES = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--tlx-schedules``: how many schedules `tlx_simulate` runs."""
    parser.addoption("--tlx-schedules", type=int, default=_DEFAULT_SCHEDULES, metavar="N",
                     help=f"seeded schedules per simulated kernel (default {_DEFAULT_SCHEDULES})")


@pytest.fixture
def tlx_schedules(request: pytest.FixtureRequest) -> list[Schedule]:
    """The schedules of this session."""
    return schedules(request.config.getoption("--tlx-schedules", default=_DEFAULT_SCHEDULES))


@pytest.fixture
def tlx_simulate(tlx_schedules: list[Schedule]) -> Callable[..., Iterator[Simulator]]:
    """A function of `Simulator`'s keyword arguments that yields one simulator per schedule."""

    def simulators(**options: Any) -> Iterator[Simulator]:
        for schedule in tlx_schedules:
            yield Simulator(schedule.seed, schedule.mode, **options)

    return simulators
