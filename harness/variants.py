"""A config's `jfa` backends as variants of a TLX implementation: what the simulator and the timing model go through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.backends import registry
from harness.backends.jfa import JaggedBackend
from harness.config import BenchConfig
from harness.errors import UserError
from kernels import dispatch
from kernels.implementation import Direction, Implementation
from kernels.problem import JaggedProblem

ARCHITECTURES = {"hopper": 90, "blackwell": 100}


@dataclass(frozen=True)
class Variant:
    """One direction of a backend, ``name`` in the config, with the implementation's ``schedule`` and ``options``.

    ``switches`` are the options as the config has them, None where it has none.
    """

    name: str
    direction: Direction
    schedule: str | None
    options: object | None
    switches: Mapping[str, object] | None


def load_implementation(impl: str) -> Implementation:
    """The TLX implementation of that name. Raises `UserError` for an unknown one and one that can't be imported."""
    if impl not in ARCHITECTURES or impl not in dispatch.IMPLEMENTATIONS:
        known = ", ".join(name for name in ARCHITECTURES if name in dispatch.IMPLEMENTATIONS)
        raise UserError(f"--impl: no TLX implementation {impl!r}; allowed: {known}")
    try:
        return dispatch.load(impl)
    except ImportError as error:
        raise UserError(f"--impl {impl}: can't be imported: {error}") from None


def choose_variants(config: BenchConfig, names: Sequence[str] | None, impl: str,
                    implementation: Implementation) -> list[Variant]:
    """The config's directions x its `jfa` backends that can be ``impl``; ``names`` restricts the backends.

    A backend with switches for one direction only is a variant of that one. Raises `UserError` for a name that isn't
    there, and where nothing is left.
    """
    chosen: list[Variant] = []
    for backend in config.backends:
        made = registry.create(backend.backend, backend.options) if backend.backend == JaggedBackend.name else None
        if not isinstance(made, JaggedBackend) or made.options.implementation not in ("auto", impl):
            continue
        plans = {direction: made.options.plan(direction) for direction in dispatch.DIRECTIONS}
        switched = any(plan.options is not None for plan in plans.values())
        for direction in config.directions:
            plan = plans[direction]
            known = plan.schedule is None or plan.schedule in implementation.schedules[direction]
            if known and (plan.options is not None or not switched):
                switches = made.options.fwd if direction == "fwd" else made.options.bwd
                chosen.append(Variant(backend.name, direction, plan.schedule, plan.options, switches or None))
    there = list(dict.fromkeys(variant.name for variant in chosen))
    if not chosen:
        where = config.source or config.name
        raise UserError(f"{where}: backends: none is {JaggedBackend.name} with impl auto or {impl}")
    for name in names or ():
        if name not in there:
            raise UserError(f"--backend: {name!r} can't be simulated as {impl}; allowed: {', '.join(there)}")
    return [variant for variant in chosen if names is None or variant.name in names]


def distinct(variants: Sequence[Variant], problem: JaggedProblem,
             implementation: Implementation) -> Iterator[tuple[Variant, str]]:
    """The variants with what the implementation calls them on a problem; of those that are the same, the first.

    One whose switches the problem can't have keeps its own name: running it says why.
    """
    seen: set[tuple[str, str]] = set()
    for variant in variants:
        try:
            token = implementation.describe(problem, variant.direction, variant.schedule, variant.options)
        except ValueError:
            token = variant.name
        if (variant.direction, token) not in seen:
            seen.add((variant.direction, token))
            yield variant, token
