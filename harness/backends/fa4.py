"""FlashAttention-4: `flash_attn.cute`, with both ways to give it a Q that all sequences share."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

import torch

from harness.backends.autograd_operation import AutogradOperation, Results
from harness.backends.base import Availability, Backend, Operation, Options, Outputs, Scope, Unsupported
from harness.backends.packages import find_gpu_package, last_line
from harness.backends.rival import expand_queries, refusals, sum_queries
from harness.cases import Case
from harness.inputs import Inputs
from kernels.problem import JaggedProblem

INSTALL = "pip install --pre 'flash-attn-4[cu13]'"
TRIAL_RUNS = 5


class FlashAttention4Options(Options):
    """``encoding`` is how broadcast-Q is given: expanded by a copy, or as a dense stride-0 view. Left out: the
    faster that runs, in each direction. ``scheduler_metadata``: ``tiles`` passes the table from tiles to sequences
    (what FA4 would compute in each call), ``dynamic`` all that `get_scheduler_metadata` gives, ``none`` nothing."""

    encoding: Literal["varlen", "dense_q"] | None = None
    scheduler_metadata: Literal["tiles", "dynamic", "none"] = "tiles"


@cache
def _interface() -> ModuleType:
    """Beside the public function it has forward and backward without autograd."""
    return importlib.import_module("flash_attn.cute.interface")


@dataclass(frozen=True)
class Encoding:
    """A way to give FA4 the queries. Queries are packed, or (broadcast-Q alone) ``[B, Sq, Hq, D]``."""

    name: str
    queries: Callable[[JaggedProblem, torch.Tensor], torch.Tensor]
    dense: bool = False

    def offsets(self, problem: JaggedProblem) -> dict[str, Any]:
        """Offsets and longest lengths, as keyword arguments of all of FA4's functions."""
        arguments: dict[str, Any] = {"cu_seqlens_k": problem.layout_k.cu_seqlens,
                                     "max_seqlen_k": problem.layout_k.max_seqlen}
        if not self.dense:
            arguments |= {"cu_seqlens_q": problem.layout_q.cu_seqlens, "max_seqlen_q": problem.layout_q.max_seqlen}
        return arguments

    def like_queries(self, problem: JaggedProblem, packed: torch.Tensor) -> torch.Tensor:
        """Packed ``out`` or ``dout`` as a view that goes with the queries."""
        return packed.unflatten(0, (problem.batch, problem.q_shape[0])) if self.dense else packed

    def packed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The inverse of `like_queries`."""
        return tensor.flatten(0, 1) if self.dense else tensor

    def packed_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """``[Hq, total_q]`` from FA4's ``[Hq, total_q]`` or ``[B, Hq, Sq]``."""
        return lse.transpose(0, 1).flatten(1) if self.dense else lse


def _view_queries(problem: JaggedProblem, q: torch.Tensor) -> torch.Tensor:
    return q.expand(problem.batch, *q.shape)


PACKED = Encoding("varlen", expand_queries)
EXPANDED = Encoding("varlen/expanded", expand_queries)
DENSE_VIEW = Encoding("dense_q/expand", _view_queries, dense=True)


def encodings(problem: JaggedProblem, options: FlashAttention4Options) -> list[Encoding]:
    """Those that the problem and the options leave."""
    if not problem.broadcast_q:
        return [PACKED]
    return {None: [EXPANDED, DENSE_VIEW], "varlen": [EXPANDED], "dense_q": [DENSE_VIEW]}[options.encoding]


class Encoded(AutogradOperation):
    """FA4 on one encoding of the queries.

    Kernel scope: FA4's forward and backward without autograd, on queries expanded before, with scheduler metadata
    where it takes any. Operation scope: `flash_attn_varlen_func`.
    """

    def __init__(self, inputs: Inputs, encoding: Encoding, options: FlashAttention4Options) -> None:
        super().__init__(inputs)
        self.encoding = encoding
        self._options = options
        self._q = encoding.queries(self.problem, inputs.q)
        self._kernel = Results()
        self._metadata: dict[str, Any] | None = None

    @property
    def impl(self) -> dict[str, str]:
        """The encoding."""
        return {"fwd": self.encoding.name, "bwd": self.encoding.name}

    def ran(self, scope: Scope) -> bool:
        """Whether the forward of a scope was called."""
        return (self._kernel if scope == "kernel" else self._operation).out is not None

    def _mask_arguments(self) -> dict[str, Any]:
        mask = self.problem.mask
        return {"softmax_scale": self.problem.softmax_scale, "causal": mask.right == 0,
                "window_size_left": mask.left, "window_size_right": mask.right}

    def forward_kernel(self) -> None:
        """``_flash_attn_fwd``."""
        if self._metadata is None:
            self._metadata = self._scheduler_metadata()
        self._kernel = Results()
        with torch.no_grad():
            out, lse, *_ = _interface()._flash_attn_fwd(
                self._q, self.inputs.k, self.inputs.v, return_lse=True, **self.encoding.offsets(self.problem),
                **self._mask_arguments(), **self._metadata)
        self._kernel.out, self._kernel.lse = out, lse

    def backward_kernel(self) -> None:
        """``_flash_attn_bwd``: its pre- and post-processing kernels included."""
        out, lse = self._kernel.saved()
        self._kernel.grads = None
        dout = self.encoding.like_queries(self.problem, self.inputs.dout)
        with torch.no_grad():
            self._kernel.grads = _interface()._flash_attn_bwd(
                self._q, self.inputs.k, self.inputs.v, out, dout, lse, **self.encoding.offsets(self.problem),
                **self._mask_arguments())

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The queries' copy or view, then `flash_attn_varlen_func`."""
        problem, mask = self.problem, self.problem.mask
        out = _interface().flash_attn_varlen_func(
            self.encoding.queries(problem, q), k, v, **self.encoding.offsets(problem),
            softmax_scale=problem.softmax_scale, causal=mask.right == 0, window_size=(mask.left, mask.right))
        return self.encoding.packed(out[0] if isinstance(out, tuple) else out), None

    def kernel_outputs(self) -> Outputs | None:
        """Packed results; a shared Q's gradients are summed."""
        done = self._kernel
        if done.out is None or done.lse is None:
            return None
        out, lse = self.encoding.packed(done.out), self.encoding.packed_lse(done.lse)
        if done.grads is None:
            return Outputs(out, lse)
        dq, dk, dv = done.grads
        return Outputs(out, lse, sum_queries(self.problem, dq), dk, dv)

    def _scheduler_metadata(self) -> dict[str, Any]:
        """Keyword arguments of the forward; none where this FA4 or the encoding has no use for them."""
        choice, fa4, problem = self._options.scheduler_metadata, _interface(), self.problem
        if (choice == "none" or self.encoding.dense or not hasattr(fa4, "get_scheduler_metadata")
                or "scheduler_metadata" not in inspect.signature(fa4._flash_attn_fwd).parameters):
            return {}
        mask = self._mask_arguments() if choice == "dynamic" else {}  # tiles depend on lengths alone
        mask.pop("softmax_scale", None)
        metadata = fa4.get_scheduler_metadata(
            nheads=problem.num_heads_q, nheads_kv=problem.num_heads_kv, headdim=problem.head_dim, num_splits=1, **mask,
            **self.encoding.offsets(problem))
        return {"scheduler_metadata": metadata} if any(tensor is not None for tensor in metadata) else {}


def _milliseconds(run: Callable[[], None]) -> float:
    """Device time of one of several runs, after a first that compiles."""
    run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(TRIAL_RUNS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / TRIAL_RUNS


# (case_id, direction) -> the best encoding, and what the trial found
Trials = dict[tuple[str, str], tuple[Encoding, str]]


class FlashAttention4Operation(Operation):
    """The encoding that serves each direction best, found by trial at its first call where there is a choice.

    A backward whose encoding isn't the forward's runs that encoding's own forward once, beforehand.
    """

    def __init__(self, inputs: Inputs, options: FlashAttention4Options, trials: Trials) -> None:
        self._inputs = inputs
        self._options = options
        self._trials = trials
        self._encodings = encodings(inputs.problem, options)
        self._encoded: dict[str, Encoded] = {}  # by the name of the encoding
        self._best: dict[str, Encoded] = {}  # by direction
        self._remarks = {"fwd": "", "bwd": ""}

    @property
    def impl(self) -> dict[str, str]:
        """The encoding of each direction; empty before a choice was made."""
        return {direction: self._best[direction].encoding.name if direction in self._best else ""
                for direction in ("fwd", "bwd")}

    @property
    def remarks(self) -> dict[str, str]:
        """What the trial of encodings found."""
        return self._remarks

    def forward_kernel(self) -> None:
        """See `Encoded.forward_kernel`."""
        best = self._choose("fwd")
        with refusals():
            best.forward_kernel()

    def backward_kernel(self) -> None:
        """See `Encoded.backward_kernel`."""
        best = self._choose("bwd")
        with refusals():
            if not best.ran("kernel"):
                best.forward_kernel()
            best.backward_kernel()

    def forward_operation(self) -> None:
        """See `Encoded.attend`."""
        best = self._choose("fwd")
        with refusals():
            best.forward_operation()

    def backward_operation(self) -> None:
        """FA4's autograd."""
        best = self._choose("bwd")
        with refusals():
            if not best.ran("operation"):
                best.forward_operation()
            best.backward_operation()

    def outputs(self, scope: Scope | None = None) -> Outputs:
        """Of each direction's encoding."""
        if scope is None:
            scope = "kernel" if any(encoded.ran("kernel") for encoded in self._best.values()) else "operation"
        forward = self._choose("fwd").outputs(scope)
        if "bwd" not in self._best or not self._best["bwd"].ran(scope):
            return forward
        backward = self._best["bwd"].outputs(scope)
        return Outputs(forward.out, forward.lse, backward.dq, backward.dk, backward.dv)

    def _choose(self, direction: str) -> Encoded:
        if direction not in self._best:
            best = self._encodings[0]
            if len(self._encodings) > 1:
                key = self._inputs.case.case_id, direction
                if key not in self._trials:
                    self._trials[key] = self._try(direction)
                best, self._remarks[direction] = self._trials[key]
            if best.name not in self._encoded:
                self._encoded[best.name] = Encoded(self._inputs, best, self._options)
            self._best[direction] = self._encoded[best.name]
        return self._best[direction]

    def _try(self, direction: str) -> tuple[Encoding, str]:
        """The fastest of those that run, and a remark on the others. Raises the first's error if none does."""
        times: dict[Encoding, float] = {}
        found: list[str] = []
        errors: list[Exception] = []
        for encoding in self._encodings:
            try:
                with refusals():
                    encoded = Encoded(self._inputs, encoding, self._options)
                    if direction == "bwd":
                        encoded.forward_kernel()
                    times[encoding] = _milliseconds(
                        encoded.forward_kernel if direction == "fwd" else encoded.backward_kernel)
                found.append(f"{encoding.name} takes {times[encoding]:.3g} ms")
            except (Unsupported, torch.OutOfMemoryError) as error:
                errors.append(error)
                why = str(error) if isinstance(error, Unsupported) else last_line(error)
                found.append(f"{encoding.name} fails ({why})")
        if not times:
            raise errors[0]
        return min(times, key=times.__getitem__), "in a trial " + ", ".join(found)


class FlashAttention4Backend(Backend):
    """The rival. Hopper and newer in both directions; forward alone from sm_80 on."""

    name = "fa4"
    options_model = FlashAttention4Options
    options: FlashAttention4Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._trials: Trials = {}

    def availability(self, device: torch.device) -> Availability:
        """Imports CuTe DSL too, which takes seconds."""
        return find_gpu_package(device, "flash-attn-4", "flash_attn.cute.interface", INSTALL)

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Head dimensions and devices that FA4 asserts against."""
        major, minor = torch.cuda.get_device_capability(device)
        if major < (8 if direction == "fwd" else 9):
            needed = "8.0" if direction == "fwd" else "9.0"
            return f"FA4's {direction} needs compute capability {needed} or newer, this GPU has {major}.{minor}"
        if case.head_dim % 8:
            return f"head_dim {case.head_dim} is not a multiple of 8"
        if case.head_dim > 128 and not (major == 9 and case.head_dim <= 256) and case.head_dim != 256:
            return f"head_dim {case.head_dim}: FA4 takes up to 128, or 256, on compute capability {major}.{minor}"
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """See `FlashAttention4Operation`."""
        return FlashAttention4Operation(inputs, self.options, self._trials)
