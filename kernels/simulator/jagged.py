"""Cases of this project's own kernels: jagged layouts, masks and poison, checked against the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels.implementation import Implementation
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.reference import attention_reference, attention_reference_backward
from kernels.simulator.cases import Call, Case, Output

_FULL = Mask()


@dataclass(frozen=True)
class Layout:
    """A jagged problem by its lengths. ``lengths_q`` None: as ``lengths_k``; ``broadcast_q``: rows of the shared Q.

    ``poisoned`` sequences have NaN keys and infinite values: nothing of them may reach another sequence.
    """

    lengths_k: Sequence[int]
    lengths_q: Sequence[int] | None = None
    heads_q: int = 2
    heads_kv: int = 2
    head_dim: int = 128
    mask: Mask = _FULL
    broadcast_q: int = 0
    poisoned: Sequence[int] = ()
    dtype: torch.dtype = torch.bfloat16

    def problem(self, device: str = "cpu") -> JaggedProblem:
        """The problem, its layouts on the device."""
        rows = self.lengths_q or self.lengths_k
        if self.broadcast_q:
            rows = [self.broadcast_q] * len(self.lengths_k)
        return JaggedProblem(JaggedLayout.from_lengths(rows, device), JaggedLayout.from_lengths(self.lengths_k, device),
                             self.heads_q, self.heads_kv, self.head_dim, self.dtype, self.head_dim**-0.5, self.mask,
                             bool(self.broadcast_q))


#: Switches of the Hopper backward, by a name for the cases; empty: its rule's.
BACKWARD_VARIANTS: dict[str, dict[str, object]] = {
    "rule": {},
    "summed": {"direct_dq": False, "owned_blocks": 0},
    "short-gap": {"do_stages": 1, "kv_stages": 2, "dq_stages": 1, "ds_stages": 1},
    # much of what the rule picks at D = 128 without a mask: up to 512 keys, up to 1,024 and up to 256; for broadcast-Q
    # of many rows, and of at most 64. Consumers without keys are let off in more of them than by the rule
    "hold": {"alternate": True, "l2_hints": True, "rotate": True, "skip_half": True, "serpentine": True, "hold": True},
    "turns": {"alternate": True, "l2_hints": True, "skip_half": True, "serpentine": True, "hold": True, "turns": True},
    "pairs": {"l2_hints": True, "rotate": True, "skip_half": True, "serpentine": True, "pairs": True},
    "broadcast": {"l2_hints": True},
    "keep": {"do_stages": 1, "kv_stages": 2, "dq_stages": 1, "ds_stages": 1, "keep_dq": True},
}


#: The same of the Blackwell backward.
BLACKWELL_BACKWARD_VARIANTS: dict[str, dict[str, object]] = {
    "m64": {"block_m": 64, "do_stages": 2, "owned_blocks": 4},
    "m128": {"block_m": 128, "owned_blocks": 4},
    "pair": {"pair": True, "block_m": 128, "q_stages": 1, "warp_barriers": False},
}


def make_tensors(layout: Layout, problem: JaggedProblem, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """``q, k, v, dout``, normal in the layout's dtype, poison included."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, dout = (torch.randn(shape, generator=generator).to(problem.dtype) for shape in (
        problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape))
    for sequence in layout.poisoned:
        start, stop = (int(problem.layout_k.offsets[sequence + i]) for i in range(2))
        k[start:stop] = float("nan")
        v[start:stop] = float("inf")
    return q, k, v, dout


def _clean_rows(layout: Layout, bounds: JaggedLayout) -> torch.Tensor:
    """Which rows do not belong to a poisoned sequence, bool ``[total]``."""
    clean = torch.ones(bounds.total, dtype=torch.bool)
    for sequence in layout.poisoned:
        clean[int(bounds.offsets[sequence]) : int(bounds.offsets[sequence + 1])] = False
    return clean


def forward_case(name: str, implementation: Implementation, layout: Layout, arch: int, *,
                 schedule: str | None = None, options: Mapping[str, object] | None = None, sms: int = 3,
                 resident: int = 1) -> Case:
    """The implementation's forward on a layout; every element of O and LSE must be written exactly once."""

    def prepare() -> Call:
        problem = layout.problem()
        q, k, v, _ = make_tensors(layout, problem)
        reference = attention_reference(problem, q, k, v)
        clean = _clean_rows(layout, problem.layout_q)
        made = implementation.make_options("fwd", options) if options is not None else None

        def call() -> list[Output]:
            # A fresh problem: what an implementation keeps with a layout must not live longer than the simulation.
            out, lse = implementation.forward(layout.problem(), q, k, v, schedule=schedule, options=made)
            return [Output("out", out, reference[0], where=clean[:, None, None]),
                    Output("lse", lse, reference[1], tolerance=5e-3, where=clean[None, :])]

        return call

    return Case(name, arch, prepare, sms=sms, resident=resident)


def backward_case(name: str, implementation: Implementation, layout: Layout, arch: int, *,
                  schedule: str | None = None, options: Mapping[str, object] | None = None, sms: int = 3,
                  resident: int = 1) -> Case:
    """The implementation's backward, from the oracle's O and LSE.

    dK and dV of a poisoned sequence, and broadcast dQ with any poison, are not compared.
    """

    def prepare() -> Call:
        problem = layout.problem()
        q, k, v, dout = make_tensors(layout, problem)
        out, lse = attention_reference(problem, q, k, v)
        out, lse = out.to(problem.dtype), lse.float()
        reference = attention_reference_backward(problem, q, k, v, dout)
        rows_k = _clean_rows(layout, problem.layout_k)[:, None, None]
        rows_q = torch.tensor(not layout.poisoned) if problem.broadcast_q else _clean_rows(layout, problem.layout_q)
        made = implementation.make_options("bwd", options) if options is not None else None

        def call() -> list[Output]:
            grads = implementation.backward(layout.problem(), q, k, v, out, lse, dout, schedule=schedule, options=made)
            where = (rows_q if problem.broadcast_q else rows_q[:, None, None], rows_k, rows_k)
            return [Output(grad_name, grad, wanted, where=rows, times=1) for grad_name, grad, wanted, rows
                    in zip(("dq", "dk", "dv"), grads, reference, where, strict=True)]

        return call

    return Case(name, arch, prepare, sms=sms, resident=resident)


def hopper_cases(variant: str, layouts: Mapping[str, Layout], sms: int = 2) -> dict[str, Case]:
    """A variant of the Hopper forward on the layouts that it can run, ``hopper/<variant>/<layout>``.

    Every other case deals its items dynamically, the others by the variant's own order.
    """
    from kernels.hopper import IMPLEMENTATION
    from kernels.hopper.options import VARIANTS

    found: dict[str, Case] = {}
    for layout_name, layout in layouts.items():
        if VARIANTS[variant].why_not(layout.head_dim, layout.mask) is None:
            schedule = "dynamic" if len(found) % 2 else None
            name = f"hopper/{variant}/{layout_name}" + ("/dynamic" if schedule else "")
            found[name] = forward_case(name, IMPLEMENTATION, layout, 90, schedule=schedule,
                                       options={"variant": variant}, sms=sms)
    return found


def blackwell_cases(options: Mapping[str, object], layouts: Mapping[str, Layout], sms: int = 2) -> dict[str, Case]:
    """The Blackwell forward with some switches on the layouts, ``blackwell/<layout>``; every other by ``clc``."""
    from kernels.blackwell import IMPLEMENTATION

    return {f"blackwell/{name}": forward_case(f"blackwell/{name}", IMPLEMENTATION, layout, 100, options=options,
                                              schedule="clc" if at % 2 else "zigzag", sms=sms)
            for at, (name, layout) in enumerate(layouts.items())}


def blackwell_backward_cases(variant: str, layouts: Mapping[str, Layout], sms: int = 2) -> dict[str, Case]:
    """A variant of the Blackwell backward (of `BLACKWELL_BACKWARD_VARIANTS`), ``blackwell-bwd/<variant>/<layout>``.

    Every other case deals its tiles by ``clc``, which owns no sequences.
    """
    from kernels.blackwell import IMPLEMENTATION

    found: dict[str, Case] = {}
    for at, (layout_name, layout) in enumerate(layouts.items()):
        name = f"blackwell-bwd/{variant}/{layout_name}"
        options = BLACKWELL_BACKWARD_VARIANTS[variant]
        if at % 2:
            options = options | {"owned_blocks": 0, "broadcast_sums": False}
        found[name] = backward_case(name, IMPLEMENTATION, layout, 100, schedule="clc" if at % 2 else None,
                                    options=options, sms=sms)
    return found


def hopper_backward_cases(variant: str, layouts: Mapping[str, Layout], sms: int = 2) -> dict[str, Case]:
    """A variant of the Hopper backward (a key of `BACKWARD_VARIANTS`), ``hopper-bwd/<variant>/<layout>``."""
    from kernels.hopper import IMPLEMENTATION

    names = {name: f"hopper-bwd/{variant}/{name}" for name in layouts}
    return {names[name]: backward_case(names[name], IMPLEMENTATION, layout, 90, options=BACKWARD_VARIANTS[variant],
                                       sms=sms) for name, layout in layouts.items()}
