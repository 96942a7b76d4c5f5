"""Which schedules to run: first those that find most, then as many seeds as wanted."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.simulator.scheduler import Mode


@dataclass(frozen=True)
class Schedule:
    """One seeded schedule."""

    mode: Mode
    seed: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.seed}"


def schedules(count: int) -> list[Schedule]:
    """``count`` schedules: lazy, eager and random by turns at first, random and lazy ones from there on."""
    found = [Schedule("lazy", 0), Schedule("random", 0), Schedule("eager", 0), Schedule("lazy", 1)]
    for seed in range(1, count):
        found += [Schedule("random", seed), Schedule("lazy", seed + 1)]
    return found[:count]
