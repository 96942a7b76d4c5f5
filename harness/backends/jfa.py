"""This repository's own kernels: `jfa` chooses among them, `jfa_triton` is the portable ones alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, field_validator, model_validator

from harness.backends.autograd_operation import AutogradOperation, Results
from harness.backends.base import Availability, Backend, Operation, Options, Outputs, Unsupported
from harness.backends.packages import last_line, version_of
from harness.cases import Case
from harness.inputs import Inputs, make_problem
from kernels import dispatch
from kernels.api import jagged_flash_attention
from kernels.autograd import Plan, packed
from kernels.implementation import Direction
from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem

DIRECTIONS: tuple[Direction, Direction] = ("fwd", "bwd")


class PortableOptions(Options):
    """``schedule`` is an ordering of `kernels.tile_schedule`; ``fwd`` and ``bwd`` are each direction's switches."""

    schedule: str | None = None
    fwd: Mapping[str, Any] = Field(default_factory=dict)
    bwd: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def implementation(self) -> str:
        """Name of the implementation, or ``auto``."""
        return "portable"

    def plan(self, direction: Direction) -> Plan:
        """How to run a direction. Raises `ValueError` for a bad switch, `ImportError` without the kernels' packages."""
        values = self.fwd if direction == "fwd" else self.bwd
        switches = dispatch.load(self.implementation).make_options(direction, values) if values else None
        return Plan(self.implementation, self.schedule, switches)

    @model_validator(mode="after")
    def _check_switches(self) -> PortableOptions:
        if self.implementation == "auto" and (self.fwd or self.bwd):
            names = ", ".join(dispatch.IMPLEMENTATIONS)
            raise ValueError(f"fwd and bwd switches belong to one implementation; set impl to one of {names}")
        for direction in DIRECTIONS:
            try:
                self.plan(direction)
            except ImportError:  # becomes a status where the backend runs
                continue
            except ValueError as error:
                raise ValueError(f"{direction}: {error}") from None
        self._check_schedule()
        return self

    def _check_schedule(self) -> None:
        """Raises `ValueError` for a schedule that is known in no direction; in one alone, the other is unsupported."""
        errors = []
        for direction in DIRECTIONS:
            try:
                dispatch.check_schedule(self.implementation, direction, self.schedule)
            except ValueError as error:
                errors.append(error)
        if len(errors) == len(DIRECTIONS):
            raise errors[0]


class JaggedOptions(PortableOptions):
    """``impl`` is ``auto`` or the name of an implementation."""

    impl: str = "auto"

    @field_validator("impl")
    @classmethod
    def _known(cls, impl: str) -> str:
        allowed = ("auto", *dispatch.IMPLEMENTATIONS)
        if impl not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return impl

    @property
    def implementation(self) -> str:
        """Name of the implementation, or ``auto``."""
        return self.impl


class JaggedOperation(AutogradOperation):
    """Kernel scope: the implementation's kernels, on inputs made contiguous beforehand and a layout that keeps its
    schedule. Operation scope: the public call with offsets that only the device knows. Each call plans anew, the
    backward's too, as in the first layer that sees a batch; later ones find the plan on the layout."""

    def __init__(self, inputs: Inputs, options: PortableOptions) -> None:
        super().__init__(inputs)
        self._options = options
        self._plans = {direction: options.plan(direction) for direction in DIRECTIONS}
        self._choices: dict[str, dispatch.Choice] = {}
        self._refusals: dict[str, str] = {}
        for direction in DIRECTIONS:
            try:
                self._choices[direction] = _choose(self.problem, direction, inputs.q.device, options)
            except (NotImplementedError, ValueError) as error:
                self._refusals[direction] = str(error)
        self._packed = packed(inputs.q), packed(inputs.k), packed(inputs.v)
        self._dout = packed(inputs.dout)
        self._kernel = Results()
        self._layouts: tuple[JaggedLayout, ...] = ()  # of the last forward in operation scope

    @property
    def impl(self) -> dict[str, str]:
        """What the implementations call their variants, tuned tile sizes included once they are known."""
        return {direction: self._describe(direction) for direction in DIRECTIONS}

    @property
    def remarks(self) -> dict[str, str]:
        """Why implementations that ``auto`` prefers were passed over, or the schedule left out."""
        return {direction: self._choices[direction].reason if direction in self._choices else ""
                for direction in DIRECTIONS}

    def forward_kernel(self) -> None:
        """The forward kernels."""
        choice, plan = self._chosen("fwd")
        self._kernel = Results()
        self._kernel.out, self._kernel.lse = choice.implementation.forward(
            self.problem, *self._packed, schedule=choice.schedule, options=plan.options)

    def backward_kernel(self) -> None:
        """The backward kernels."""
        choice, plan = self._chosen("bwd")
        out, lse = self._kernel.saved()
        self._kernel.grads = None
        self._kernel.grads = choice.implementation.backward(
            self.problem, *self._packed, out, lse, self._dout, schedule=choice.schedule, options=plan.options)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`jagged_flash_attention`, as a user calls it."""
        problem, mask = self.problem, self.problem.mask
        layout_k = _unseen(problem.layout_k)
        layout_q = layout_k if self.inputs.case.mode == "self" else _unseen(problem.layout_q)
        self._layouts = layout_q, layout_k
        switches: dict[str, object] = {direction: plan.options for direction, plan in self._plans.items()
                                       if plan.options is not None}
        out = jagged_flash_attention(
            q, k, v, cu_seqlens_k=layout_k, cu_seqlens_q=None if problem.broadcast_q else layout_q,
            softmax_scale=problem.softmax_scale, causal=mask.right == 0, window_size=(mask.left, mask.right),
            schedule=self._options.schedule, impl=self._options.implementation, options=switches, return_lse=True)
        assert isinstance(out, tuple)
        return out

    def backward_operation(self) -> None:
        """Autograd's backward of the last forward, on layouts without a plan for it."""
        for layout in self._layouts:
            layout.forget()
        super().backward_operation()

    def kernel_outputs(self) -> Outputs | None:
        """The kernels' own results."""
        return None if self._kernel.out is None else self._kernel.outputs()

    def _chosen(self, direction: Direction) -> tuple[dispatch.Choice, Plan]:
        if direction not in self._choices:
            raise Unsupported(self._refusals[direction])
        return self._choices[direction], self._plans[direction]

    def _describe(self, direction: Direction) -> str:
        if direction not in self._choices:
            return ""
        choice, plan = self._chosen(direction)
        return choice.implementation.describe(self.problem, direction, choice.schedule, plan.options)


def _choose(problem: JaggedProblem, direction: Direction, device: torch.device,
            options: PortableOptions) -> dispatch.Choice:
    """The implementation. Raises `ValueError`, too, for switches that the problem can't have, as too many stages."""
    choice = dispatch.choose(problem, direction, device, options.implementation, options.schedule)
    if switches := options.plan(direction).options:
        choice.implementation.describe(problem, direction, choice.schedule, switches)
    return choice


def _unseen(layout: JaggedLayout) -> JaggedLayout:
    """The same sequences, of which the host knows no more than a caller of FlashAttention says: total and longest."""
    return JaggedLayout.from_cu_seqlens(layout.cu_seqlens, total=layout.total, max_seqlen=layout.max_seqlen)


class PortableBackend(Backend):
    """The portable Triton kernels: what the article started from, and what runs wherever Triton does."""

    name = "jfa_triton"
    options_model = PortableOptions
    options: PortableOptions

    @classmethod
    def environment(cls, device_type: str) -> Mapping[str, str]:
        """Triton reads this when it is imported; without a GPU its interpreter is all that can run."""
        return {"TRITON_INTERPRET": "1"} if device_type == "cpu" else {}

    def availability(self, device: torch.device) -> Availability:
        """Triton must import; the version is that of this repository's distribution, where it is installed."""
        version = version_of("jagged-attention-bench") or "checkout"
        try:
            importlib.import_module("triton")
        except Exception as error:  # whatever triton does while it is imported is the row's message
            return Availability(False, version, f"triton fails to import: {last_line(error)}", import_failed=True)
        return Availability(True, version)

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Why the implementations do, each with its name."""
        try:
            _choose(make_problem(case, "cpu"), "fwd" if direction == "fwd" else "bwd", device, self.options)
        except (NotImplementedError, ValueError) as error:
            return str(error)
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """See `JaggedOperation`."""
        return JaggedOperation(inputs, self.options)


class JaggedBackend(PortableBackend):
    """The best implementation for the device, or the one that ``impl`` names."""

    name = "jfa"
    options_model = JaggedOptions
    options: JaggedOptions
