"""A backend that computes with the low-precision twin and goes wrong on purpose, by case name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from harness.backends.base import Availability, Backend, Operation, Options, Outputs, Scope, Unsupported
from harness.backends.packages import find_package
from harness.cases import Case
from harness.inputs import Inputs
from kernels import reference


class FakeOptions(Options):
    """``faults`` maps case names to faults, most of them the backward's; see where each is used."""

    faults: Mapping[str, str] = {}
    missing: bool = False


class FakeOperation(Operation):
    def __init__(self, inputs: Inputs, fault: str) -> None:
        self.inputs, self.fault = inputs, fault
        self.results: dict[str, Outputs] = {}

    @property
    def impl(self) -> dict[str, str]:
        return {"fwd": "twin", "bwd": "twin"}

    @property
    def remarks(self) -> dict[str, str]:
        return {"fwd": "a remark", "bwd": ""}

    def forward_kernel(self) -> None:
        self.forward("kernel")

    def forward_operation(self) -> None:
        self.forward("operation")

    def backward_kernel(self) -> None:
        self.backward("kernel")

    def backward_operation(self) -> None:
        self.backward("operation")

    def forward(self, scope: str) -> None:
        x = self.inputs
        if self.fault == "spoils q":
            x.q.mul_(2)
        self.results[scope] = Outputs(*reference.attention_reference_lowp(x.problem, x.q, x.k, x.v))

    def backward(self, scope: str) -> None:
        if self.fault == "raises":
            raise RuntimeError("first line\nneeds num_m_blocks")
        if self.fault == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "kills its run once" and not Path(os.environ["KILLED_ONCE"]).exists():
            Path(os.environ["KILLED_ONCE"]).touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        if self.fault == "exit":
            print("RuntimeError: the last words", flush=True)  # library prints must not break the protocol
            os._exit(3)
        x, forward = self.inputs, self.results[scope]
        grads = reference.attention_reference_lowp_backward(x.problem, x.q, x.k, x.v, x.dout)
        if self.fault == "spoils dout":
            x.dout.zero_()
        if self.fault == "wrong":
            grads = (grads[0] * 1.5, *grads[1:])
        if self.fault == "unwritten":
            dk = torch.empty_like(grads[1])
            dk[:-1] = grads[1][:-1]
            dk[-1] = torch.nan
            grads = (grads[0], dk, grads[2])
        self.results[scope] = Outputs(forward.out, forward.lse, *grads)

    def outputs(self, scope: Scope | None = None) -> Outputs:
        return self.results[scope or "kernel"]


class FakeBackend(Backend):
    name = "fake"
    timed_on = ("cpu", "cuda")
    options_model = FakeOptions

    @classmethod
    def environment(cls, device_type: str) -> Mapping[str, str]:
        return {"FAKE_DEVICE_TYPE": device_type}

    def availability(self, device: torch.device) -> Availability:
        assert isinstance(self.options, FakeOptions)
        if self.options.missing:
            return Availability(False, "", "fake is not installed:\n  pip install fake", import_failed=True)
        in_place = os.environ.get("FAKE_DEVICE_TYPE", device.type) == device.type
        return Availability(in_place, "1.2.3", "its environment variables were not set")

    def fault(self, case: Case) -> str:
        assert isinstance(self.options, FakeOptions)
        return self.options.faults.get(case.name, "")

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        return "no backward for this" if self.fault(case) == "declined" and direction == "bwd" else None

    def prepare(self, inputs: Inputs) -> Operation:
        if self.fault(inputs.case) == "unsupported":
            raise Unsupported("no graph for this shape")
        if self.fault(inputs.case) == "no_import":
            raise ImportError("no module named fake_kernels")
        return FakeOperation(inputs, self.fault(inputs.case))


class FakeOurs(FakeBackend):
    """Stands in for ours, under its name."""

    name = "jfa"


class FakeRival(FakeBackend):
    """Stands in for the rival, under its name."""

    name = "fa4"


class UntimedBackend(FakeBackend):
    name = "untimed"
    timed_on = ("cuda",)


class VersionedBackend(FakeBackend):
    """Of the version of the package ``pretend-rival``, or that a pretended virtual environment says."""

    name = "versioned"

    def availability(self, device: torch.device) -> Availability:
        if venv := os.environ.get("PRETEND_VENV"):
            return Availability(True, venv)
        return find_package("pretend-rival", "pretend_rival", "make env")
