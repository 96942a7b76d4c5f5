"""`Run`: the records of one run with their raw samples in blocks, as the gate and comparisons take them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.records import Record, Sample, Status, demand_records, load_records, load_samples

RowKey = tuple[str, str, str, str]  # case_id, backend, direction, scope
Blocks = tuple[np.ndarray, ...]  # latencies in ms, one array a block, in the order of measurement
SAMPLE_MEDIAN_TOLERANCE = 1e-4  # six digits are kept, and a median may be the mean of two samples


class Refused(Exception):
    """What was asked can't be answered honestly, such as a gate over two GPUs; one line that says why."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its records, and the samples of its ``ok`` rows. Equal to itself alone, so that it can be a key."""

    csv: Path
    records: tuple[Record, ...]
    blocks: Mapping[RowKey, Blocks]

    @cached_property
    def by_key(self) -> dict[RowKey, Record]:
        """Records by their key."""
        return {record.key: record for record in self.records}

    @property
    def run_id(self) -> str:
        """Name and start of the run."""
        return self.records[0].run_id

    @property
    def gpu(self) -> str:
        """Name of the device."""
        return self.records[0].gpu

    def values(self, column: str) -> list[str]:
        """Distinct values of a column as text, in order; empty cells don't count."""
        found = (getattr(record, column) for record in self.records)
        return list(dict.fromkeys(str(value) for value in found if value not in (None, "")))


def samples_path(csv: Path) -> Path:
    """Where the raw samples of a records CSV lie."""
    return csv.with_suffix(".samples.csv")


def facts_path(csv: Path) -> Path:
    """Where the facts of a records CSV lie: environment, resolved config, cases with their lengths."""
    return csv.with_suffix(".run.json")


def load_run(csv: Path) -> Run:
    """Records and samples of a run.

    Raises `UserError` for a missing file and for one that holds something else, and `Refused` for records that can't be
    trusted: another schema, cut short, rows of two devices, a median that its samples don't give.
    """
    if not csv.is_file():
        raise UserError(f"{csv}: no such file; expected records")
    demand_records(csv)
    if not (path := samples_path(csv)).is_file():
        raise UserError(f"{path}: no such file; expected raw samples, which a run writes beside its records")
    try:
        records, samples = load_records(csv), load_samples(samples_path(csv))
    except UserError as error:
        raise Refused(str(error)) from None
    if not records:
        raise Refused(f"{csv}: holds a header and no rows")
    run = Run(csv, tuple(records), in_blocks(samples))
    _check(run)
    return run


def load_facts(csv: Path) -> dict[str, Any]:
    """The run's facts. Raises `UserError` without the file, `Refused` if it can't be read."""
    path = facts_path(csv)
    if not path.is_file():
        raise UserError(f"{path}: no such file; a run writes it beside its records")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{path}: can't be read as the facts of a run: {error}") from None


def in_blocks(samples: Sequence[Sample]) -> dict[RowKey, Blocks]:
    """Latencies of each row by block."""
    rows: dict[RowKey, dict[int, list[float]]] = {}
    for sample in samples:
        key = (sample.case_id, sample.backend, sample.direction, sample.scope)
        rows.setdefault(key, {}).setdefault(sample.block, []).append(sample.latency_ms)
    return {key: tuple(np.asarray(blocks[number]) for number in sorted(blocks)) for key, blocks in rows.items()}


def _check(run: Run) -> None:
    """Raises `Refused` for records that contradict each other or their samples."""
    for column in ("gpu", "device_type", "cache"):
        if len(found := run.values(column)) > 1:
            raise Refused(f"{run.csv}: {column}: rows of {' and '.join(found)} in one file")
    for record in run.records:
        if record.status is not Status.OK:
            continue
        blocks = run.blocks.get(record.key, ())
        row = "/".join((record.case, *record.key[1:]))
        n = sum(map(len, blocks))
        if n != record.n_samples:
            raise Refused(f"{samples_path(run.csv)}: {row}: has {n} samples, the record counts {record.n_samples}")
        median = float(np.median(np.concatenate(blocks)))
        if not math.isclose(median, record.latency_ms or 0, rel_tol=SAMPLE_MEDIAN_TOLERANCE):
            raise Refused(f"{run.csv}: {row}: latency_ms is {record.latency_ms}, but the median of its samples is "
                          f"{median:.6g}; one of the files was changed")
