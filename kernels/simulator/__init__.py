"""A CPU simulator for TLX kernels: runs the source that is compiled, and catches its races.

    from kernels.simulator import Simulator, schedules

    for schedule in schedules(20):
        with Simulator(schedule.seed, schedule.mode, arch=90) as simulator:
            out, lse = attention(q, k, v)
        simulator.check_written(out)

See docs/simulator.md for what it models and what it does not.
"""

from kernels.simulator.errors import CHECKS, Allowed, SimulationError
from kernels.simulator.launcher import Simulator
from kernels.simulator.schedules import Schedule, schedules

__all__ = ["CHECKS", "Allowed", "Schedule", "SimulationError", "Simulator", "schedules"]
