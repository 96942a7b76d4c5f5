"""The simulator's fixtures, without loading the plugin for the whole session."""

from kernels.simulator.pytest_plugin import tlx_schedules, tlx_simulate  # noqa: F401
