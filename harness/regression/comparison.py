"""Compares two runs row by row: B's speed over A's, with intervals, and what differs in what they ran on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.records import Record
from harness.regression.estimates import Estimate, difference, log_ratio, mean
from harness.regression.measures import Measure, is_ok, measure
from harness.regression.runs import Refused, RowKey, Run
from harness.statistics import CONFIDENCE, Interval

FACTS = ("gpu", "driver", "cuda", "torch", "triton", "python", "commit", "dirty", "config_hash", "cache")
MUST_AGREE = ("device_type", "gpu", "cache")


@dataclass(frozen=True)
class ComparedRow:
    """One row of both runs; ``ratio`` is B's speed over A's: above 1, B is faster."""

    a: Record
    b: Record
    ratio: Interval

    @property
    def label(self) -> str:
        """Such as ``self_u256 bwd jfa``; two backends' names where they differ."""
        names = dict.fromkeys((self.a.backend, self.b.backend))
        scope = [self.a.scope] * (self.a.scope != "kernel")
        return " ".join([self.a.case, self.a.direction, "/".join(names), *scope])


@dataclass(frozen=True)
class Comparison:
    """All rows with a time in both runs, geometric means by backend, direction and scope, and what else is to be said.

    ``interleaved``: both sides were measured in turns, in one run.
    """

    names: tuple[str, str]
    by: Measure
    rows: tuple[ComparedRow, ...]
    means: dict[str, tuple[Interval, int]]
    differences: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    interleaved: bool


def compare(a: Run, b: Run, *, by: Measure = Measure.LATENCY, backend: str | None = None, against: str | None = None,
            names: tuple[str, str] = ("A", "B"), interleaved: bool = False, force: bool = False) -> Comparison:
    """Match rows by case id, direction, scope and backend, and compare them.

    ``backend`` takes one backend only; ``against`` is what it is called in B (two versions of one backend, say).
    ``interleaved``: the two ran in turns, so that their blocks are pairs. Raises `Refused` where they can't be compared
    (``force`` overrides what isn't fatal): another device, GPU or cache state, or no row in common.
    """
    notes = []
    for column in MUST_AGREE:
        if a.values(column) != b.values(column):
            text = f"{column} differs: {_listed(a, column)} against {_listed(b, column)}"
            if not force:
                raise Refused(f"compare: {text}; such times say nothing of the code (--force compares all the same)")
            notes.append(f"forced: {text}")
    pairs = _pairs(a, b, backend, against)
    rows, estimates = [], []
    for key_a, key_b in pairs:
        estimate = _estimate(a, b, key_a, key_b, by, interleaved)
        if estimate:
            estimates.append(estimate)
            rows.append(ComparedRow(a.by_key[key_a], b.by_key[key_b], _interval(estimate)))
    if not rows:
        raise Refused(f"compare: no row of {a.csv} has a counterpart with a time in {b.csv}: "
                      f"{_why_none(a, b, pairs, by)}")
    groups: dict[str, list[Estimate]] = {}
    for row, estimate in zip(rows, estimates, strict=True):
        scope = [row.a.scope] * (row.a.scope != "kernel")
        groups.setdefault(" ".join([row.a.backend, row.a.direction, *scope]), []).append(estimate)
    means = {name: (_interval(mean(found)), len(found)) for name, found in groups.items()}
    if not interleaved and a is not b and by is not Measure.SPEEDUP:
        notes.append("measured at two times: the intervals leave out what clock and temperature did between them "
                     "(--by speedup compares the ratios over FA4, which feel less of it)")
    return Comparison(names, by, tuple(rows), means, _differences(a, b), (*notes, *_left_out(a, b, pairs, rows)),
                      interleaved or a is b)


def _pairs(a: Run, b: Run, backend: str | None, against: str | None) -> list[tuple[RowKey, RowKey]]:
    found = []
    for name, run in ((backend, a), (against or backend, b)):
        if name and name not in run.values("backend"):
            raise Refused(f"compare: {run.csv} has no backend {name!r}; it has {_listed(run, 'backend')}")
    for key in a.by_key:
        if backend in (None, key[1]):
            other = (key[0], against or key[1], key[2], key[3])
            if other in b.by_key:
                found.append((key, other))
    return found


def _estimate(a: Run, b: Run, key_a: RowKey, key_b: RowKey, by: Measure, interleaved: bool) -> Estimate | None:
    if not (is_ok(a, key_a) and is_ok(b, key_b)):
        return None
    if by is Measure.LATENCY and (interleaved or a is b):
        return log_ratio(a.blocks[key_a], b.blocks[key_b], zlib.crc32("/".join(key_a).encode()))
    before, now = measure(a, key_a, by), measure(b, key_b, by)
    return difference(now, before) if before and now else None


def _interval(estimate: Estimate) -> Interval:
    low, high = np.quantile(estimate.replicates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    value = math.exp(estimate.value)
    return Interval(value, min(math.exp(low), value), max(math.exp(high), value))


def _differences(a: Run, b: Run) -> tuple[tuple[str, str, str], ...]:
    found = [(column, _listed(a, column), _listed(b, column)) for column in FACTS
             if a.values(column) != b.values(column)]
    for name in dict.fromkeys([*a.values("backend"), *b.values("backend")]):
        before, now = ({record.backend_version for record in run.records if record.backend == name} for run in (a, b))
        if before and now and before != now:
            found.append((f"version of {name}", ", ".join(sorted(before)), ", ".join(sorted(now))))
    for column in ("ceiling_tflops", "ceiling_tbps"):
        if a.values(column) != b.values(column):
            found.append((column, _listed(a, column), _listed(b, column)))
    return tuple(found)


def _left_out(a: Run, b: Run, pairs: Sequence[tuple[RowKey, RowKey]], rows: Sequence[ComparedRow]) -> list[str]:
    notes = []
    for run, other, side in ((a, b, 0), (b, a, 1)):
        matched = {pair[side][0] for pair in pairs}
        alone = list(dict.fromkeys(record.case for record in run.records
                                   if record.case_id not in matched and record.case_id not in
                                   {each.case_id for each in other.records}))
        if alone:
            notes.append(f"only in {'AB'[side]}: {', '.join(alone)}")
    untimed = len(pairs) - len(rows)
    if untimed:
        notes.append(f"{untimed} rows have no time, or nothing to compare it by, on one of the sides")
    return notes


def _why_none(a: Run, b: Run, pairs: Sequence[tuple[RowKey, RowKey]], by: Measure) -> str:
    if pairs:
        return f"the {len(pairs)} rows in common have no {by.value} on one of the sides"
    if not {record.case_id for record in a.records} & {record.case_id for record in b.records}:
        return "they have no case in common (cases are matched by id, so by their exact lengths)"
    return f"backends, directions or scopes differ: {_listed(a, 'backend')} against {_listed(b, 'backend')}"


def _listed(run: Run, column: str) -> str:
    return ", ".join(run.values(column)) or "none"
