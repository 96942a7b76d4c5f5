"""Does a Hopper GPU give what the simulator says? The same kernels on the same inputs, in both, beside the oracle."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from kernels.hopper import IMPLEMENTATION
from kernels.hopper.backward_options import SHORT_GAP, HopperBackwardOptions, why_not
from kernels.hopper.options import VARIANTS
from kernels.implementation import Direction
from kernels.mask import Mask
from kernels.reference import (
    attention_reference,
    attention_reference_backward,
    attention_reference_lowp,
    attention_reference_lowp_backward,
)
from kernels.simulator.jagged import Layout
from kernels.simulator.launcher import Simulator

_CAUSAL = Mask.make(causal=True)
_LSE_LIMIT = 1e-3
_INTEGERS = 127  # inputs are n / 32 with |n| up to this: exact in bf16

#: Ten layouts: self and cross, empty sequences, masks, GQA, broadcast-Q, D = 64 and 128, bf16 and fp16.
LAYOUTS: dict[str, Layout] = {
    "self": Layout((320, 65, 64, 1), heads_q=1, heads_kv=1),
    "edges/d64": Layout((65, 128, 1, 64, 0, 129, 63), head_dim=64),
    "cross": Layout((65, 128, 0, 200), (64, 0, 130, 190), heads_q=1, heads_kv=1),
    "causal": Layout((300, 64, 0, 65), heads_q=1, heads_kv=1, mask=_CAUSAL),
    "causal-cross/d64": Layout((70, 128, 200, 3, 64), (200, 64, 100, 0, 1), head_dim=64, mask=_CAUSAL),
    "window": Layout((400, 65), heads_q=1, heads_kv=1, mask=Mask.make(window_size=(100, 30))),
    "gqa": Layout((100, 0, 30), heads_q=4, heads_kv=1),
    "gqa-causal/d64": Layout((150, 0, 70), heads_q=4, heads_kv=2, head_dim=64, mask=_CAUSAL),
    "broadcast": Layout((64, 0, 130, 70), broadcast_q=48),
    "fp16/d64": Layout((257, 130, 64), head_dim=64, dtype=torch.float16),
}

#: Switches of the backward, by the names in the rows.
BACKWARD: dict[str, dict[str, object]] = {
    "default": {"kv_stages": HopperBackwardOptions().kv_stages},
    "kv2": asdict(SHORT_GAP),
    "summed": {"direct_dq": False, "owned_blocks": 0},
}

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Variant:
    """One direction with options; ``name`` is ``rule`` where the implementation's own rule picks them."""

    direction: Direction
    name: str
    options: Mapping[str, object] | None

    def __str__(self) -> str:
        return f"{self.direction}/{self.name}"


@dataclass(frozen=True)
class Row:
    """One output of one variant on one layout.

    ``difference`` is the largest absolute one between simulator and GPU, ``simulated_error`` and ``measured_error``
    the largest of each against the fp64 oracle, ``magnitude`` the oracle's largest value, and ``limit`` what each of
    the three may be: twice the error of textbook attention with operands in the same dtype, and half a unit of the
    result's last place. ``equal`` is the share of elements that are equal bit for bit.
    """

    layout: str
    direction: str
    variant: str
    tensor: str
    difference: float
    equal: float
    simulated_error: float
    measured_error: float
    magnitude: float
    limit: float

    @property
    def agrees(self) -> bool:
        """All three within the limit (and none a NaN)."""
        return all(x <= self.limit for x in (self.difference, self.simulated_error, self.measured_error))


def variants(layout: Layout) -> Iterator[Variant]:
    """Each direction as its rule picks it; the forward in every variant, and `BACKWARD`, that can run the layout."""
    yield Variant("fwd", "rule", None)
    for name, options in VARIANTS.items():
        if options.why_not(layout.head_dim, layout.mask) is None:
            yield Variant("fwd", name, {"variant": name})
    yield Variant("bwd", "rule", None)
    for name, switches in BACKWARD.items():
        if why_not(HopperBackwardOptions.make(switches), layout.head_dim, False) is None:
            yield Variant("bwd", name, switches)


def make_inputs(layout: Layout, seed: int = 0) -> dict[str, torch.Tensor]:
    """``q, k, v, dout`` on the CPU: roughly normal multiples of 1/32, which both dtypes hold exactly."""
    problem = layout.problem()
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.kv_shape, "dout": problem.out_shape}
    return {name: (torch.randn(shape, generator=generator) * 32).round().clamp(-_INTEGERS, _INTEGERS).div(32)
            .to(problem.dtype) for name, shape in shapes.items()}


def run(layout: Layout, variant: Variant, inputs: Tensors, device: str) -> dict[str, torch.Tensor]:
    """The variant's outputs, on the CPU. The backward starts from the oracle's O and LSE."""
    problem = layout.problem(device)
    q, k, v, dout = (inputs[name].to(device) for name in ("q", "k", "v", "dout"))
    options = None if variant.options is None else IMPLEMENTATION.make_options(variant.direction, variant.options)
    if variant.direction == "fwd":
        names, got = ("out", "lse"), IMPLEMENTATION.forward(problem, q, k, v, options=options)
    else:
        out, lse = attention_reference(layout.problem(), inputs["q"], inputs["k"], inputs["v"])
        names, got = ("dq", "dk", "dv"), IMPLEMENTATION.backward(  # type: ignore[assignment]
            problem, q, k, v, out.to(problem.dtype).to(device), lse.float().to(device), dout, options=options)
    return {name: tensor.cpu() for name, tensor in zip(names, got, strict=True)}


def simulate(layout: Layout, variant: Variant, inputs: Tensors) -> dict[str, torch.Tensor]:
    """The same in the simulator, by one random schedule."""
    with Simulator(seed=1, mode="random", arch=90, sms=3):
        return run(layout, variant, inputs, "cpu")


def compare(name: str, layout: Layout, variant: Variant, inputs: Tensors, simulated: Tensors,
            measured: Tensors) -> list[Row]:
    """A row per output."""
    problem = layout.problem()
    q, k, v, dout = (inputs[each] for each in ("q", "k", "v", "dout"))
    if variant.direction == "fwd":
        exact, twin = attention_reference(problem, q, k, v), attention_reference_lowp(problem, q, k, v)
    else:
        exact = attention_reference_backward(problem, q, k, v, dout)  # type: ignore[assignment]
        twin = attention_reference_lowp_backward(problem, q, k, v, dout)  # type: ignore[assignment]
    rows = []
    for (tensor, ours), oracle, lowp in zip(simulated.items(), exact, twin, strict=True):
        theirs, magnitude = measured[tensor], _largest(oracle, torch.zeros_like(oracle))
        limit = (_LSE_LIMIT if tensor == "lse" else
                 2 * _largest(lowp, oracle) + torch.finfo(problem.dtype).eps / 2 * magnitude)
        rows.append(Row(name, variant.direction, variant.name, tensor, _largest(ours, theirs),
                        float((ours == theirs).double().mean()), _largest(ours, oracle), _largest(theirs, oracle),
                        magnitude, limit))
    return rows


def measure(name: str) -> Iterator[Row]:
    """The rows of one of `LAYOUTS`, simulated and run on the current GPU in this process."""
    layout = LAYOUTS[name]
    inputs = make_inputs(layout)
    for variant in variants(layout):
        simulated = simulate(layout, variant, inputs)
        yield from compare(name, layout, variant, inputs, simulated, run(layout, variant, inputs, "cuda"))


def write_rows(path: Path, rows: Iterable[Row], label: str) -> None:
    """As CSV with six significant digits; ``label`` says of what GPU, in a column of its own."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(field.name for field in fields(Row)), "agrees", "label"])
        for row in rows:
            values = [f"{value:.6g}" if isinstance(value, float) else value for value in asdict(row).values()]
            writer.writerow([*values, str(row.agrees).lower(), label])


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference of finite elements; infinite where only one is finite, or infinities differ."""
    a, b = a.double(), b.double()
    finite = a.isfinite() & b.isfinite()
    if not bool((finite | (a == b)).all()):
        return float("inf")
    return float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0
