"""`predict`: one call of an implementation on a machine."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.implementation import Direction
from kernels.problem import JaggedProblem
from kernels.simulator.timing.machine import Machine
from kernels.simulator.timing.prediction import Prediction


def predict(implementation: str, problem: JaggedProblem, direction: Direction, machine: Machine,
            options: Mapping[str, object] | None = None, schedule: str | None = None, *,
            events: bool = False, budget: int = 1500) -> Prediction:
    """How long ``implementation`` (``hopper`` or ``blackwell``) takes for the problem on the machine: modelled.

    Args:
        problem: with layouts on the CPU (`harness.inputs.make_problem(case, "cpu")`).
        options: plain values of the implementation's switches, as in a config's ``fwd`` or ``bwd``; None: its rule's.
        schedule: an order of tiles, as in a config; None: the implementation's own.
        events: collect `Prediction.events`, of the first ``budget`` steps at most.
        budget: steps (matmul rounds of a task) of one SM to simulate at most, about; the rest is extended linearly.

    Takes seconds. Raises `ValueError` for a machine of another architecture than the implementation's, and for
    options or a problem that the implementation refuses, with its reason.
    """
    raise NotImplementedError
