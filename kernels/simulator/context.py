"""The machine that runs now; set by the launcher, read by the simulated namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.simulator.agents import Task
    from kernels.simulator.scheduler import Machine

current: Machine | None = None


def machine() -> Machine:
    """The machine whose launch is in progress."""
    assert current is not None, "no kernel is being simulated"
    return current


def this_task() -> Task:
    """The task that is running."""
    return machine().current
