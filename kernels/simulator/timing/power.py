"""The clock that the power cap leaves."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.simulator.timing.machine import Machine


def clock_under_cap(machine: Machine, shares: Mapping[str, float], ms: float) -> float:
    """SM clock in MHz for a kernel of ``ms`` with such busy shares, called again and again with pauses between."""
    return float(machine.clock_mhz)
