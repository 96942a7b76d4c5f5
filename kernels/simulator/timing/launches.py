"""`TimedSimulator`: within it, a launch of a call's main kernel is timed, and its other kernels are noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels.simulator.frontend import Frontend
from kernels.simulator.global_memory import WriteLedger
from kernels.simulator.launcher import Simulator
from kernels.simulator.runtime import BUILTINS, EQUIVALENTS, Runtime
from kernels.simulator.timing.engine import TimedMachine
from kernels.simulator.timing.ghost_tl import GhostTL
from kernels.simulator.timing.ghost_tlx import GHOST_TLX
from kernels.simulator.timing.ghosts import Ghost, broadcast, charge
from kernels.simulator.timing.machine import Machine as Description
from kernels.simulator.timing.traffic import Traffic


def _packed(*operands: Any) -> Any:
    """Two operations an instruction."""
    if not any(isinstance(each, Ghost) for each in operands):
        return EQUIVALENTS["_fma_f32x2" if len(operands) == 3 else "_mul_f32x2"](*operands)
    shape = broadcast(*operands)
    made = Ghost(shape, torch.float32)
    charge("fma", made.elements)
    charge("other", made.elements, -0.5)  # the units do as much, the issue half
    return made


class _NoLedger(WriteLedger):
    """Counts nothing: the tensors are large and nobody writes them."""

    def counts(self, flat: torch.Tensor) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.int16)


class TimedSimulator(Simulator):
    """Times the launch of ``main``; other kernels are left out.

    Args:
        description, clock_mhz: the GPU and its clock.
        main: name of the main kernel's function.
        arguments: changes its arguments (by name) before the launch: tables of the tiles to run.
        pids: first CTAs of the clusters to run, all on one SM; ``resident`` of them at a time.
        traffic: see there.
        sinks, record: see `TimedMachine`.
    """

    def __init__(self, description: Description, clock_mhz: float, main: str,
                 arguments: Callable[[dict[str, Any]], Mapping[str, Any]], pids: Sequence[int], traffic: Traffic, *,
                 resident: int = 1, sinks: bool = False, record: bool = False):
        super().__init__(0, "eager", arch=description.arch, sms=int(description.sms), resident=resident, races=False)
        self._description, self._clock_mhz, self._main, self._change = description, clock_mhz, main, arguments
        self.ledger = _NoLedger()
        self._pids, self._traffic, self._sinks, self._record = pids, traffic, sinks, record
        self.machine: TimedMachine | None = None
        equivalents = {**EQUIVALENTS, "_fma_f32x2": _packed, "_mul_f32x2": _packed, "_sub_f32x2": _packed}
        self._frontend = Frontend(Runtime, GhostTL, GHOST_TLX, BUILTINS, equivalents)

    def run(self, jit: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        """A launch."""
        if jit.fn.__name__ != self._main:
            return
        bound = dict(zip(jit.arg_names, args, strict=False))
        bound.update(self._change(bound))
        super().run(jit, grid=grid, **bound, **kwargs)

    def _machine(self, grid: tuple[int, int, int], cluster: tuple[int, int, int], num_warps: int) -> TimedMachine:
        made = TimedMachine(grid, cluster, seed=0, mode="eager", arch=self.arch, resident=self.resident,
                            num_warps=num_warps, races=False, commits_in_order=True, findings=self.findings,
                            ledger=self.ledger, description=self._description, clock_mhz=self._clock_mhz,
                            traffic=self._traffic, pids=self._pids, sinks=self._sinks,
                            record=self._record)
        made.drawn = grid[0] * grid[1] / max(len(self._pids), 1)
        self.machine = made
        return made

    def _fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor  # never read, so its pages are never touched
