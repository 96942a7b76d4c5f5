"""The kernels that are compiled and read without a GPU, as named configurations: what `harness xray` looks at.

An implementation joins by a function in `PROVIDERS` that yields `OfflineConfig`. It says only what to ask the
implementation for; kernels, signatures, constants and compiler options are those of its launcher, which is run with
small CPU tensors (see `kernels.offline.compiled_launches`). So what is read is what a user's call would launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels import dispatch
from kernels.implementation import DIRECTIONS, Direction
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.offline import compiled_launches
from kernels.problem import JaggedProblem

MASKS = {"full": Mask(), "causal": Mask.make(True), "window": Mask.make(True, (256, 0))}
LENGTHS = (640, 129, 384)  # of Q and K; what is compiled does not depend on them
SHARED_Q = 192  # queries of a broadcast Q


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, and the same for every backend. ``str()`` such as ``bwd-d128-causal-gqa4``."""

    direction: Direction
    head_dim: int = 128
    mask: str = "full"
    group_size: int = 1
    broadcast_q: bool = False

    def __str__(self) -> str:
        parts = [self.direction, f"d{self.head_dim}", self.mask]
        parts += [f"gqa{self.group_size}"] * (self.group_size > 1) + ["bcast"] * self.broadcast_q
        return "-".join(parts)

    def problem(self) -> JaggedProblem:
        """A small bf16 problem of this shape."""
        layout_k = JaggedLayout.from_lengths(LENGTHS)
        layout_q = JaggedLayout.from_lengths([SHARED_Q] * len(LENGTHS)) if self.broadcast_q else layout_k
        return JaggedProblem(layout_q, layout_k, 4, 4 // self.group_size, self.head_dim, torch.bfloat16,
                             self.head_dim ** -0.5, MASKS[self.mask], self.broadcast_q)


#: What FlashAttention-4 is compiled for beside ours.
RIVAL_SHAPES = (*(Shape(direction, dim, mask) for direction in DIRECTIONS for dim in (128, 64) for mask in MASKS),
                Shape("bwd", group_size=2))


@dataclass(frozen=True)
class OfflineConfig:
    """One call to an implementation.

    Attributes:
        name: of the variant; unique for a shape.
        shape: see `Shape`.
        values: switches as in a config's ``fwd`` or ``bwd`` section; empty: the implementation's selection rule.
        schedule: order of the tiles; None: the implementation's own.
        quick: whether it belongs to the reduced set that continuous integration compiles.
    """

    name: str
    shape: Shape
    values: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    quick: bool = False


def hopper_configs() -> Iterator[OfflineConfig]:
    """Every variant of the forward in the shapes that the selection rule gives it, and the backward's own choices."""
    from kernels.hopper.options import VARIANTS

    for name, options in VARIANTS.items():
        for dim in (128, 64):
            for mask in MASKS:
                shape = Shape("fwd", dim, mask)
                if options.why_not(dim, MASKS[mask]) is not None or (dim == 64 and name in ("solo64", "tri64")):
                    continue
                values = {"variant": name} if mask == "full" else {"variant": name, "schedule": "dynamic"}
                yield OfflineConfig(name, shape, values, quick=(name, str(shape)) in _HOPPER_QUICK)
    for shape in (Shape("bwd"), Shape("bwd", mask="causal"), Shape("bwd", mask="window"), Shape("bwd", group_size=2),
                  Shape("bwd", broadcast_q=True), Shape("bwd", 64), Shape("bwd", 64, "causal")):
        yield OfflineConfig("selected", shape, quick=("selected", str(shape)) in _HOPPER_QUICK)
    short_gap = {"do_stages": 1, "kv_stages": 2, "dq_stages": 1, "ds_stages": 1}
    yield OfflineConfig("short_gap", Shape("bwd"), short_gap, quick=True)


_HOPPER_QUICK = {("solo64", "fwd-d128-full"), ("pair128", "fwd-d128-full"), ("tri64c", "fwd-d64-full"),
                 ("selected", "bwd-d128-full"), ("selected", "bwd-d128-causal"), ("selected", "bwd-d64-full")}

def blackwell_configs() -> Iterator[OfflineConfig]:
    """The forward, and the backward's classes: one CTA with 64 or 128 rows of Q, a pair of CTAs; both schedules."""
    for dim in (128, 64):
        for mask in MASKS:  # the rule: zigzag without a mask, cluster launch control with one
            yield OfflineConfig("selected", Shape("fwd", dim, mask), quick=mask == "full")
    yield OfflineConfig("clc", Shape("fwd"), schedule="clc")
    classes: dict[str, dict[str, Any]] = {
        "m64": {"block_m": 64},
        "m128": {"block_m": 128},
        "pair": {"block_m": 128, "pair": True, "warp_barriers": False, "q_stages": 1},
    }
    for name, values in classes.items():
        for shape in (Shape("bwd"), Shape("bwd", mask="causal"), Shape("bwd", mask="window"), Shape("bwd", 64)):
            yield OfflineConfig(name, shape, values, quick=str(shape) == "bwd-d128-full")
    for shape in (Shape("bwd", group_size=2), Shape("bwd", broadcast_q=True), Shape("bwd", 64, "causal")):
        yield OfflineConfig("selected", shape)
    yield OfflineConfig("m64_clc", Shape("bwd"), {"broadcast_sums": False}, schedule="clc")


PROVIDERS: dict[str, tuple[int, Callable[[], Iterator[OfflineConfig]]]] = {
    "hopper": (90, hopper_configs),
    "blackwell": (100, blackwell_configs),
}


def configs(arch: int) -> dict[str, list[OfflineConfig]]:
    """The configurations of each implementation for an architecture (90 or 100), by the implementation's name."""
    return {name: list(provider()) for name, (target, provider) in PROVIDERS.items() if target == arch}


def compile_config(impl: str, config: OfflineConfig) -> list[Any]:
    """Triton's compiled kernels of one call, in the order of their launch; `asm` and `metadata` hold all there is.

    Raises `ValueError` for options that the implementation refuses, and whatever compiling raises.
    """
    arch, _ = PROVIDERS[impl]
    implementation = dispatch.load(impl)
    problem = config.shape.problem()
    options = implementation.make_options(config.shape.direction, config.values) if config.values else None
    q, k = (torch.zeros(shape, dtype=problem.dtype) for shape in (problem.q_shape, problem.kv_shape))
    chosen: dict[str, Any] = {"schedule": config.schedule, "options": options}
    with compiled_launches(arch) as launches:
        if config.shape.direction == "fwd":
            implementation.forward(problem, q, k, k, **chosen)
        else:
            out = torch.zeros(problem.out_shape, dtype=problem.dtype)
            lse = torch.zeros(problem.num_heads_q, problem.layout_q.total)
            implementation.backward(problem, q, k, k, out, lse, out, **chosen)
    return launches
