"""What every backend offers: who it is, what it declines, and an `Operation` that computes one case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict

from harness.cases import Case
from harness.inputs import Inputs


class Unsupported(Exception):
    """Raised by `Backend.prepare` when only trying shows that the case can't run; becomes status `unsupported`."""


Scope = Literal["kernel", "operation"]


@dataclass(frozen=True)
class Availability:
    """Whether a backend can run on this machine; `reason` says why not, `version` is its package's version.

    ``import_failed`` tells a missing or broken package (status `import_error`) from a machine that can't run the
    backend, such as one without a GPU (status `unsupported`).
    """

    available: bool
    version: str
    reason: str = ""
    import_failed: bool = False


class Options(BaseModel):
    """Options of a backend that has none; others derive from it. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Results in the packed shapes of `kernels.problem.JaggedProblem`; None for what a backend doesn't give.

    ``lse`` is fp32 ``[num_heads_q, total_q]``. Views are fine: they are compared, not timed.
    """

    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None


class Operation(ABC):
    """One case, bound to one backend, ready to be run any number of times.

    Kernel scope: what the device must do given prepared inputs; host scheduling, Q expansion (broadcast-Q without a
    native mode), the sum of an expanded dQ over the batch and autograd are prepared outside. Operation scope: what
    a user's training step pays, from packed tensors with device offsets to results in packed shapes.
    """

    @property
    @abstractmethod
    def impl(self) -> dict[str, str]:
        """``{"fwd": ..., "bwd": ...}``: which variant runs, one short token each, for the record."""

    @property
    def remarks(self) -> dict[str, str]:
        """``{"fwd": ..., "bwd": ...}``: what else the record's message should say, such as why a fallback runs."""
        return {"fwd": "", "bwd": ""}

    @abstractmethod
    def forward_kernel(self) -> None:
        """Kernel-scope forward; keeps its result for `outputs` and `backward_kernel`."""

    @abstractmethod
    def backward_kernel(self) -> None:
        """Kernel-scope backward alone, of the last `forward_kernel`; may be called again and again."""

    @abstractmethod
    def forward_operation(self) -> None:
        """Operation-scope forward, with whatever a training forward keeps for the backward."""

    @abstractmethod
    def backward_operation(self) -> None:
        """Operation-scope backward alone, of the last `forward_operation`; may be called again and again."""

    @abstractmethod
    def outputs(self, scope: Scope | None = None) -> Outputs:
        """Results of the last calls of a scope, reduced and reshaped to packed shapes.

        Without ``scope``: of the kernel scope if it was run, else of the operation scope.
        """


class Backend(ABC):
    """A way to compute jagged attention. Stateless; made once in a worker process by `registry.create`.

    ``timed_on`` names the device types where its times mean something; elsewhere rows are `untimed`.
    """

    name: ClassVar[str]
    timed_on: ClassVar[tuple[str, ...]] = ("cuda",)
    options_model: ClassVar[type[Options]] = Options

    def __init__(self, options: Options | None = None) -> None:
        self.options = self.options_model() if options is None else options

    @classmethod
    def environment(cls, device_type: str) -> Mapping[str, str]:
        """Environment variables that a worker process needs before it imports anything (torch, triton)."""
        return {}

    @abstractmethod
    def availability(self, device: torch.device) -> Availability:
        """Can it run here at all? Imports its packages; never raises."""

    @abstractmethod
    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Why it can't run the case in that direction (``fwd``, ``bwd``), in one line; None if it can."""

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Operation:
        """Bind a case. Compiles nothing yet if it can be helped: the first calls do, and are timed apart."""
