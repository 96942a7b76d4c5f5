"""What the model says: times, shares of resources, and events for a trace. All of it is modelled, none measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: The resources that a prediction gives shares of.
RESOURCES = ("tensor cores", "issue slots", "FMA units", "ALU", "exponentials", "shared memory", "tensor memory", "L2",
             "HBM")


class Event(NamedTuple):
    """One span of a trace, in microseconds of kernel time (from the main kernel's start).

    ``lane`` is ``sm0/cta<pid>/<task>`` for what a task does, ``sm0/cta<pid>/<engine>`` for asynchronous work (``tensor
    core``, ``TMA load``, ``TMA store``). ``stall`` is None for work; for a span in which a task waited it says for what
    (``k_full[1]``, ``named barrier 9``, ``wgmma``, ``scalar load``, ...), and ``name`` is then ``wait``.
    """

    lane: str
    name: str
    start_us: float
    duration_us: float
    stall: str | None


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a call: ``ms``, and ``how`` it was found: ``simulated``, or ``bytes`` over bandwidth."""

    name: str
    ms: float
    how: str


@dataclass(frozen=True)
class Prediction:
    """One call on one machine: kernel scope, L2 cold, schedule tables already there.

    Attributes:
        machine: its name.
        variant: what the implementation calls the variant, such as ``hopper/solo64-stale/zigzag``.
        direction: ``fwd`` or ``bwd``.
        ms: of all kernels of the call.
        kernels: the kernels of the call, in their order; their times add up to ``ms``.
        clock_mhz: SM clock under the power cap.
        shares: busy share of the main kernel's time, 0 to 1, for each of `RESOURCES`.
        bound_by: the busiest of them with its share, such as ``tensor cores (71 %)``; ``waiting (busiest: ... 40 %)``
            where none is busy half of the time.
        sms_simulated: SMs whose CTAs were simulated; ``tiles`` (about) and ``steps`` (matmuls) are theirs, ``scale``
            the factor by which their time was extended to the SM with most work.
        seconds: that the prediction took.
        events: for a trace, if asked for; of one SM, from its start.
    """

    machine: str
    variant: str
    direction: str
    ms: float
    kernels: tuple[KernelTime, ...]
    clock_mhz: float
    shares: Mapping[str, float]
    bound_by: str
    sms_simulated: int
    tiles: int
    steps: int
    scale: float
    seconds: float
    events: tuple[Event, ...] = field(default=(), repr=False)
