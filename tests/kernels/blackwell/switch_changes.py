"""Changes of one and of two switches of the Blackwell kernels, valid or not, from every base that the rules pick.

A change has a direction, a head dimension, a schedule and the options; values that no options allow are among them.
"""

import itertools
import random
from dataclasses import dataclass, fields, replace

import torch
from hopper.forward_cases import MASKS, problem

from kernels.blackwell import backward
from kernels.blackwell.backward_options import LONG_TILES, PAIR, SHORT_TILES, BlackwellBackwardOptions
from kernels.blackwell.options import BlackwellForwardOptions

FORWARD_VALUES = {
    "schedule": ("none", "sorted", "zigzag", "clc", "dynamic"), "kv_slots": (0, 2, 3, 4, 6, 8, 12, 13),
    "p_slices": (1, 2, 3, 4), "emulated_exp2": (0, 2, 3, 8, 16, 18), "section_mb": (-1, 0, 16),
}
BACKWARD_VALUES = {
    "block_m": (32, 64, 128), "q_stages": (0, 1, 2, 3, 4), "do_stages": (1, 2, 3), "kv_stages": (1, 2, 3),
    "dq_stages": (1, 2, 3, 4), "early_release": (0, 1, 2, 3), "owned_blocks": (-1, 0, 4, 65),
    "schedule": ("none", "sorted", "zigzag", "clc", "dynamic"),
}
BACKWARD_BASES = {"short": SHORT_TILES, "64 rows": BlackwellBackwardOptions(), "long": LONG_TILES, "pair": PAIR,
                  "rule at 64": replace(LONG_TILES, do_stages=2, kv_stages=2)}


@dataclass(frozen=True)
class Change:
    """``switches`` changed from a base, at a head dimension, under a mask."""

    direction: str
    base: str
    head_dim: int
    mask: str
    switches: tuple[tuple[str, object], ...]

    def __str__(self):
        changed = ", ".join(f"{name} {value}" for name, value in self.switches)
        return f"{self.direction}, {self.base}, D = {self.head_dim}, {self.mask}: {changed}"

    def problem(self):
        """A small one. What it compiles to does not depend on its lengths."""
        return problem([300], [300], 4, 2, dim=self.head_dim, mask=MASKS[self.mask], dtype=torch.bfloat16)

    def resolved(self):
        """Options and schedule; raises `ValueError` for values that are not allowed."""
        values = dict(self.switches)
        if self.direction == "fwd":
            base = BlackwellForwardOptions(schedule="zigzag" if self.mask == "full" else "clc")
            options = replace(base, **values)
            return options, options.schedule
        schedule = values.pop("schedule", "zigzag")
        backward._order(schedule)
        return replace(BACKWARD_BASES[self.base], **values), schedule

    def refusal(self):
        """Why it can't run; None if it is declared valid."""
        try:
            options, schedule = self.resolved()
        except ValueError as error:
            return str(error)
        return options.why_not(self.head_dim) if self.direction == "fwd" else options.why_not(self.problem(), schedule)

    def compiled_as(self):
        """Changes with equal values of this compile to the same kernel."""
        options, schedule = self.resolved()
        if self.direction == "fwd":
            from kernels.blackwell.forward import kernel_constants

            windowed = self.mask == "window"
            constants = kernel_constants(options, self.head_dim, windowed, self.mask != "full", options.section_mb == 0)
            return "fwd", tuple(constants.items())
        constants = backward.kernel_constants(self.problem(), options, schedule == "clc")
        return "bwd", tuple(constants.items())


def head_dims(base):
    """Where a base is valid."""
    return (64,) if base == "rule at 64" else (128, 64)


def _values(options, listed):
    return {field.name: listed.get(field.name, (False, True)) for field in fields(options)} | {
        name: values for name, values in listed.items() if name == "schedule"}


def changes(count):
    """Every change of ``count`` switches, in order: bases, head dimensions, then switches; masks in turn."""
    masks = itertools.cycle(("full", "causal", "window"))
    bases = [("fwd", "rule", BlackwellForwardOptions(), FORWARD_VALUES)]
    bases += [("bwd", name, options, BACKWARD_VALUES) for name, options in BACKWARD_BASES.items()]
    for direction, base, options, listed in bases:
        values = _values(options, listed)
        for head_dim, names in itertools.product(head_dims(base), itertools.combinations(values, count)):
            for chosen in itertools.product(*(values[name] for name in names)):
                switches = tuple(zip(names, chosen, strict=True))
                if all(value != getattr(options, name, "zigzag") for name, value in switches):
                    yield Change(direction, base, head_dim, next(masks), switches)


def sample(size, seed=0):
    """Valid changes that compile to different kernels, none to that of its base: as many of the forward as of the
    backward, as many of one switch as of two, drawn with a seed; fewer than ``size`` where there are fewer."""
    rng, seen, drawn = random.Random(seed), set(), []
    for direction, count in itertools.product(("fwd", "bwd"), (1, 2)):
        found = [each for each in changes(count) if each.direction == direction and each.refusal() is None]
        rng.shuffle(found)
        new = []
        for each in found:
            key = each.compiled_as()
            if len(new) < size // 4 and key not in seen and key != replace(each, switches=()).compiled_as():
                seen.add(key)
                new.append(each)
        drawn += new
    return drawn
