"""How far the timing model is off: the one place where modelled times are held against measured ones.

`score` is what the project promises of the model, and what its calibration minimises: the error of each row, their
median and worst, and how often two variants of a case stand in the order in which they were measured.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.model_records import ModelledRecord
from harness.records import Record, Status

MEDIAN_LIMIT, WORST_LIMIT = 0.10, 0.25  # of the absolute relative error
ORDER_LIMIT = 0.90  # share of the pairs that must be in order
APART = 0.10  # measured difference from which a pair's order counts
FITTED, HELD = "fitted", "held"


@dataclass(frozen=True)
class Point:
    """One row that was both measured (``measured_ms``, in ``run`` on ``gpu``) and modelled (``modelled_ms``).

    ``impl`` is what ran, as both rows call it; ``variant`` is the backend's name in the modelled config. ``commit`` is
    that of the measured kernels: a later one may call other code by the same name.
    """

    run: str
    gpu: str
    case_id: str
    case: str
    direction: str
    variant: str
    impl: str
    measured_ms: float
    modelled_ms: float
    bound_by: str = ""
    commit: str = ""

    @property
    def error(self) -> float:
        """``modelled_ms / measured_ms - 1``: above 0 the model is too slow."""
        return self.modelled_ms / self.measured_ms - 1

    @property
    def half(self) -> str:
        """See `half`."""
        return half(self.case_id, self.direction, self.impl)

    @property
    def name(self) -> str:
        """The row, for a person."""
        return f"{self.case} {self.direction} {self.variant}"


@dataclass(frozen=True)
class Score:
    """What `score` says of some points: ``worst`` is the point with the largest error, None without any.

    ``pairs`` are two variants of one case and direction of one run, whose measured times differ by more than `APART`;
    ``ordered`` of them are modelled in the measured order.
    """

    rows: int
    median: float | None
    worst: Point | None
    pairs: int
    ordered: int

    @property
    def beyond(self) -> list[str]:
        """The limits that are not kept, in words; none of no rows."""
        said = []
        if self.median is not None and self.median > MEDIAN_LIMIT:
            said.append(f"median error {self.median:.1%}, limit {MEDIAN_LIMIT:.0%}")
        if self.worst is not None and abs(self.worst.error) > WORST_LIMIT:
            said.append(f"worst error {self.worst.error:+.1%} ({self.worst.name}), limit {WORST_LIMIT:.0%}")
        if self.pairs and self.ordered < ORDER_LIMIT * self.pairs:
            said.append(f"order right in {self.ordered} of {self.pairs} pairs, limit {ORDER_LIMIT:.0%}")
        return said


@dataclass(frozen=True)
class Matched:
    """``points``, and what has no counterpart: lines that name measured rows of our kernels and modelled rows.

    Measured rows of cases that weren't modelled at all are only counted: ``other_cases``.
    """

    points: tuple[Point, ...]
    not_modelled: tuple[str, ...]
    not_measured: tuple[str, ...]
    other_cases: int = 0


def half(case_id: str, direction: str, impl: str) -> str:
    """`FITTED` or `HELD`: the half of the measurements that a row belongs to, by a hash of what it is.

    Nothing of the model may be fitted on rows of the other half.
    """
    digest = hashlib.sha256(f"{case_id} {direction} {impl}".encode()).digest()
    return (FITTED, HELD)[digest[0] & 1]


def demand_same_gpu(measured: Mapping[Path, Sequence[Record]], machine: str) -> None:
    """Raises `UserError` for records, by their file, of another GPU than the machine, by its name in theirs."""
    for path, records in measured.items():
        for gpu in dict.fromkeys(record.gpu for record in records):
            if machine.lower() not in gpu.lower():
                raise UserError(f"{path}: gpu: measured on {gpu}, modelled for {machine}; only measurements of a "
                                f"{machine.upper()} can be held against it")


def match(measured: Iterable[Record], modelled: Sequence[ModelledRecord]) -> Matched:
    """Join rows by case id (its actual lengths), direction and `impl`, the variant with its changed switches.

    Of ``measured`` the `ok` rows of kernel scope whose `impl` begins as one of the modelled do count. Backends of one
    run that ran the same variant are one point, at the median of their times.
    """
    known: dict[tuple[str, str, str], ModelledRecord] = {}
    for record in modelled:
        if record.status is Status.MODELLED:
            known.setdefault((record.case_id, record.direction, record.impl), record)
    families = {record.impl.partition("/")[0] for record in known.values()}
    rows: dict[tuple[str, tuple[str, str, str]], list[Record]] = defaultdict(list)
    for row in measured:
        if row.status is Status.OK and row.scope == "kernel" and row.impl.partition("/")[0] in families:
            rows[row.run_id, (row.case_id, row.direction, row.impl)].append(row)
    case_ids = {case_id for case_id, _, _ in known}
    points, lacking, others = [], [], 0
    for (run, key), found in rows.items():
        if (twin := known.get(key)) is None:
            if key[0] in case_ids:
                lacking.append(f"{found[0].case} {found[0].direction} {found[0].backend} ({found[0].impl})")
            else:
                others += 1
            continue
        assert twin.predicted_ms is not None
        times = [row.latency_ms for row in found if row.latency_ms is not None]
        points.append(Point(run, found[0].gpu, twin.case_id, twin.case, twin.direction, twin.backend, twin.impl,
                            statistics.median(times), twin.predicted_ms, twin.bound_by, found[0].commit))
    seen = {key for _, key in rows}
    alone = [f"{record.case} {record.direction} {record.backend} ({record.impl})"
             for key, record in known.items() if key not in seen]
    return Matched(tuple(points), tuple(lacking), tuple(alone), others)


def score(points: Sequence[Point]) -> Score:
    """The points' median and worst absolute error, and the pairs in order."""
    if not points:
        return Score(0, None, None, 0, 0)
    right = [(a.modelled_ms - b.modelled_ms) * (a.measured_ms - b.measured_ms) > 0 for a, b in pairs(points)]
    return Score(len(points), statistics.median(abs(point.error) for point in points),
                 max(points, key=lambda point: abs(point.error)), len(right), sum(right))


def pairs(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """Pairs whose order counts: of one run, case and direction, measured more than `APART` from each other."""
    groups: dict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.run, point.case_id, point.direction].append(point)
    for group in groups.values():
        for a, b in itertools.combinations(group, 2):
            if max(a.measured_ms, b.measured_ms) > (1 + APART) * min(a.measured_ms, b.measured_ms):
                yield a, b


def parts(points: Sequence[Point]) -> dict[str, Score]:
    """Scores of all points, of each half, and of each half's directions, by what they are of."""
    found = {"all": score(points)}
    for name in (FITTED, HELD):
        mine = [point for point in points if point.half == name]
        found[name] = score(mine)
        for direction in ("fwd", "bwd"):
            if here := [point for point in mine if point.direction == direction]:
                found[f"{name}, {direction}"] = score(here)
    return found
