"""An implementation that computes with the oracle, for tests of what stands around implementations."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from kernels import dispatch
from kernels.reference import attention_reference, attention_reference_backward


class FakeImplementation:
    """Declines what ``refuses`` says by direction; keeps in ``calls`` the tensors and arguments of each call.

    Of schedules it knows ``sorted`` and ``zigzag``, but for those that ``schedules`` gives by direction.
    """

    def __init__(self, name: str, refuses: dict[str, str] | None = None,
                 schedules: dict[str, tuple[str, ...]] | None = None):
        self.name = name
        self.schedules = {"fwd": ("sorted", "zigzag"), "bwd": ("sorted", "zigzag"), **(schedules or {})}
        self.refuses = refuses or {}
        self.calls: list[tuple[str, tuple[torch.Tensor, ...], str | None, object]] = []

    def declines(self, problem, direction, device):
        return self.refuses.get(direction)

    def make_options(self, direction, values):
        if set(values) - {"stages"}:
            raise ValueError(f"{direction}: unknown switch {sorted(set(values) - {'stages'})}; allowed: ['stages']")
        return (direction, values.get("stages"))

    def describe(self, problem, direction, schedule=None, options=None):
        return f"{self.name}/only"

    def forward(self, problem, q, k, v, *, schedule=None, options=None):
        self.calls.append(("fwd", (q, k, v), schedule, options))
        out, lse = attention_reference(problem, q, k, v)
        return out.to(problem.dtype), lse.float()

    def backward(self, problem, q, k, v, out, lse, dout, *, schedule=None, options=None):
        self.calls.append(("bwd", (q, k, v, out, lse, dout), schedule, options))
        grads = attention_reference_backward(problem, q, k, v, dout)
        return tuple(grad.to(problem.dtype) for grad in grads)


def install(monkeypatch: pytest.MonkeyPatch, *implementations: FakeImplementation) -> None:
    """Make ``implementations`` the only ones, in that order of preference."""
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS", {})
    dispatch._import.cache_clear()
    for implementation in implementations:
        module = types.ModuleType(f"fake_{implementation.name}")
        module.IMPLEMENTATION = implementation
        monkeypatch.setitem(sys.modules, module.__name__, module)
        dispatch.IMPLEMENTATIONS[implementation.name] = module.__name__
