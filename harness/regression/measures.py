"""The measures of a row's speed that are compared between runs, all as logarithms, more being faster.

    latency      one over the latency: plain speed, with all that the box's clock does to it
    speedup      over FA4 in the same run: what the box's clock does meets both
    floor_share  share of the floor that the run's own measured ceilings give: absolute speed, freed of the card's rate
"""

from __future__ import annotations

import math
import zlib
from enum import Enum
from functools import lru_cache

from harness.records import Status
from harness.regression.estimates import Estimate, difference, exactly, log_latency, log_ratio
from harness.regression.runs import RowKey, Run
from harness.rows import RIVAL


class Measure(str, Enum):
    """What of a row is measured."""

    LATENCY = "latency"
    SPEEDUP = "speedup"
    FLOOR_SHARE = "floor_share"


GATED = (Measure.SPEEDUP, Measure.FLOOR_SHARE)  # in this order


def rival_key(key: RowKey) -> RowKey:
    """FA4's row beside a row."""
    return (key[0], RIVAL, key[2], key[3])


def is_ok(run: Run, key: RowKey) -> bool:
    """Whether the run has a time for the row."""
    return key in run.by_key and run.by_key[key].status is Status.OK


@lru_cache(maxsize=4096)  # a gate with re-runs asks again and again
def measure(run: Run, key: RowKey, which: Measure) -> Estimate | None:
    """The measure of a row; None where the run can't tell: no time of the row or of FA4's, no floor."""
    if not is_ok(run, key):
        return None
    seed = zlib.crc32("/".join((run.run_id, *key)).encode())  # of its own, so that rows and runs stay independent
    if which is Measure.SPEEDUP:
        rival = rival_key(key)
        return log_ratio(run.blocks[rival], run.blocks[key], seed) if is_ok(run, rival) else None
    best_ms = 1.0 if which is Measure.LATENCY else run.by_key[key].floor_ms
    return difference(exactly(math.log(best_ms)), log_latency(run.blocks[key], seed)) if best_ms else None
