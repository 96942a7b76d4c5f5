"""Which implementation computes a problem: a table by name, in order of preference, imported on first use."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass

import torch

from kernels.implementation import DIRECTIONS, Direction, Implementation
from kernels.problem import JaggedProblem

# name -> module with an `IMPLEMENTATION`; `impl="auto"` takes the first that does not decline
IMPLEMENTATIONS: dict[str, str] = {
    "blackwell": "kernels.blackwell",
    "hopper": "kernels.hopper",
    "portable": "kernels.portable",
}


@dataclass(frozen=True)
class Choice:
    """The implementation to call, and the schedule to pass it.

    ``reason`` says why each preferred one was passed over, and that the wanted schedule is not this one's; '' if
    neither is so.
    """

    implementation: Implementation
    reason: str = ""
    schedule: str | None = None


def load(name: str) -> Implementation:
    """The implementation of that name. Raises `ValueError` for an unknown name, `ImportError` if its import fails."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"impl: expected 'auto' or one of {sorted(IMPLEMENTATIONS)}, got {name!r}")
    loaded = _import(IMPLEMENTATIONS[name])
    if isinstance(loaded, str):
        raise ImportError(loaded)
    return loaded


def declines(name: str, problem: JaggedProblem, direction: Direction, device: torch.device) -> str | None:
    """Why the implementation can't run the problem there, as ``name: reason`` in one line; None if it can."""
    try:
        reason = load(name).declines(problem, direction, device)
    except ImportError as error:
        reason = f"can't be imported ({error})"
    return None if reason is None else f"{name}: {reason}"


def schedules(name: str, direction: Direction) -> tuple[str, ...]:
    """The schedules that an implementation knows in a direction; of one that can't be imported, none."""
    try:
        return load(name).schedules[direction]
    except ImportError:
        return ()


def check_schedule(impl: str, direction: Direction, schedule: str | None) -> None:
    """Raises `ValueError` for a schedule that the named implementation doesn't know in that direction.

    With ``auto`` only for one that no implementation knows in either direction: whichever is chosen orders tiles its
    own way if it must. An implementation that can't be imported is not asked; `choose` says so where it is needed.
    """
    if schedule is None:
        return
    if impl == "auto":
        known = [known for name in IMPLEMENTATIONS for way in DIRECTIONS for known in schedules(name, way)]
        whose = ""
    else:
        known = list(schedules(impl, direction))
        whose = f" (those of {impl}'s {direction})"
    if known and schedule not in known:
        raise ValueError(f"schedule: expected None or one of {', '.join(dict.fromkeys(known))}{whose}, "
                         f"got {schedule!r}")


def choose(problem: JaggedProblem, direction: Direction, device: torch.device, impl: str = "auto",
           schedule: str | None = None) -> Choice:
    """The implementation for one direction of a problem on a device, and the schedule that it is to run with.

    The directions are chosen apart: a backward needs no more than the ``(out, lse)`` that every forward returns, so
    any two mix. With ``auto`` an implementation that doesn't know ``schedule`` is passed None instead. Raises
    `ValueError` for an unknown ``impl`` and as `check_schedule` does; `NotImplementedError` with the reason if the
    named one declines, or with all reasons if each does.
    """
    check_schedule(impl, direction, schedule)
    reasons: list[str] = []
    for name in IMPLEMENTATIONS if impl == "auto" else [impl]:
        reason = declines(name, problem, direction, device)
        if reason is None:
            if schedule is not None and schedule not in schedules(name, direction):
                reasons.append(f"{name} has no schedule {schedule!r} and takes its own")
                schedule = None
            return Choice(load(name), "; ".join(reasons), schedule)
        reasons.append(reason)
    raise NotImplementedError("; ".join(reasons))


@functools.cache
def _import(module: str) -> Implementation | str:
    """The module's implementation, or in one line why there is none."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        return " ".join(str(error).split())
    return getattr(found, "IMPLEMENTATION", f"no IMPLEMENTATION in {module}")
