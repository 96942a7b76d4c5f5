"""The clock that the power cap leaves."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.simulator.timing.machine import Machine


def clock_under_cap(machine: Machine, shares: Mapping[str, float], ms: float) -> float:
    """SM clock in MHz for a kernel of ``ms`` with such busy shares, called again and again with pauses between.

    Tensor cores take the power; what a short kernel takes is averaged with the pause after it.
    """
    load = machine.tensor_load * shares["tensor cores"]
    return machine.clock_mhz / (1 + load * ms / (ms + machine.power_window_ms))
