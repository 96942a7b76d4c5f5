"""Which implementation computes a problem: a table by name, in order of preference, imported on first use."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass

import torch

from kernels.implementation import Direction, Implementation
from kernels.problem import JaggedProblem

# name -> module with an `IMPLEMENTATION`; `impl="auto"` takes the first that does not decline
IMPLEMENTATIONS: dict[str, str] = {
    "hopper": "kernels.hopper",
    "portable": "kernels.portable",
}


@dataclass(frozen=True)
class Choice:
    """The implementation to call. ``reason`` says why each preferred one was passed over ('' if none was)."""

    implementation: Implementation
    reason: str = ""


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


def choose(problem: JaggedProblem, direction: Direction, device: torch.device, impl: str = "auto") -> Choice:
    """The implementation for one direction of a problem on a device.

    The directions are chosen apart: a backward needs no more than the ``(out, lse)`` that every forward returns, so
    any two mix. Raises `ValueError` for an unknown ``impl``; `NotImplementedError` with the reason if the named one
    declines, or with all reasons if each does.
    """
    reasons: list[str] = []
    for name in IMPLEMENTATIONS if impl == "auto" else [impl]:
        reason = declines(name, problem, direction, device)
        if reason is None:
            return Choice(load(name), "; ".join(reasons))
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
