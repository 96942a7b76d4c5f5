"""How much a row differs between runs of the same code on the same GPU (A/A runs), and the file that says so."""

from __future__ import annotations

import csv
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.table import Table

from harness.errors import UserError
from harness.regression.measures import GATED, Measure, measure
from harness.regression.runs import Refused, RowKey, Run
from harness.regression.verdicts import Change
from harness.rows import RIVAL
from harness.summary import new_table

NOISE_SCHEMA = 1
MIN_RUNS = 3
ASSUMED = {Measure.SPEEDUP: 0.008, Measure.FLOOR_SHARE: 0.03}  # standard deviations where no A/A runs tell
ASSUMED_DOF = 30.0
PRIOR_DOF = 8.0  # how many degrees of freedom the mean over all rows counts, beside a row's own


class NoiseRow(BaseModel):
    """One row of ``<name>.noise.csv``: centre and scatter of a row over A/A runs. SDs are of natural logarithms."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    noise_schema: int = Field(NOISE_SCHEMA, description="version of these columns")
    gpu: str = Field(description="name of the device")
    commit: str = Field(description="git commit of the harness")
    run_ids: str = Field(description="the A/A runs, joined by blanks")
    case_id: str = Field(description="as in the records")
    case: str = Field(description="as in the records")
    backend: str = Field(description="as in the records")
    direction: str = Field(description="as in the records")
    scope: str = Field(description="as in the records")
    runs: int = Field(ge=MIN_RUNS, description="how many runs have the row")
    speedup: float | None = Field(None, gt=0, description="geometric mean over the runs of the speed-up over FA4")
    speedup_sd: float | None = Field(None, ge=0, description="standard deviation of its logarithm between runs")
    floor_share: float | None = Field(None, gt=0, description="geometric mean over the runs of the share of the floor")
    floor_share_sd: float | None = Field(None, ge=0, description="standard deviation of its logarithm between runs")

    @property
    def key(self) -> RowKey:
        """As of the records."""
        return (self.case_id, self.backend, self.direction, self.scope)


NOISE_COLUMNS: tuple[str, ...] = tuple(NoiseRow.model_fields)
_MAY_BE_EMPTY = frozenset(name for name, info in NoiseRow.model_fields.items() if info.default is None)


@dataclass(frozen=True)
class Scatter:
    """Between runs: ``sd`` of a measure's logarithm with its degrees of freedom; ``centre`` is its mean over ``runs``.

    ``centre`` is None where no A/A runs tell.
    """

    sd: float
    dof: float
    centre: float | None = None
    runs: int = 0


class Noise:
    """The noise of all rows.

    Five runs give a row four degrees of freedom, and one variance in twenty would come out six times too small; so the
    mean variance of all rows is averaged in, with the weight of `PRIOR_DOF`.
    """

    def __init__(self, rows: Sequence[NoiseRow] = ()) -> None:
        self.rows = {row.key: row for row in rows}
        self._mean_variance = {}
        for which in GATED:
            found = [sd**2 for row in rows if (sd := getattr(row, f"{which.value}_sd")) is not None]
            if found:
                self._mean_variance[which] = statistics.fmean(found)

    @property
    def run_ids(self) -> frozenset[str]:
        """Of the A/A runs."""
        return frozenset(run_id for row in self.rows.values() for run_id in row.run_ids.split())

    def scatter(self, key: RowKey, which: Measure) -> Scatter:
        """Of one row; of the mean row for one that the A/A runs lack; assumed without any."""
        if which not in self._mean_variance:
            return Scatter(ASSUMED[which], ASSUMED_DOF)
        prior = self._mean_variance[which]
        row = self.rows.get(key)
        centre = getattr(row, which.value) if row else None
        if row is None or centre is None:
            return Scatter(math.sqrt(prior), PRIOR_DOF)
        own_dof = row.runs - 1
        variance = (PRIOR_DOF * prior + own_dof * getattr(row, f"{which.value}_sd") ** 2) / (PRIOR_DOF + own_dof)
        return Scatter(math.sqrt(variance), PRIOR_DOF + own_dof, math.log(centre), row.runs)


def noise_path(baseline: Path) -> Path:
    """Where the noise of a baseline's rows lies."""
    return baseline.with_suffix(".noise.csv")


def noise_rows(runs: Sequence[Run]) -> list[NoiseRow]:
    """Centre and scatter of every row but FA4's own that has a time in all runs, or in `MIN_RUNS` of them.

    Raises `Refused` for runs that are no A/A runs: too few, or of several GPUs, commits or configs.
    """
    if len(runs) < MIN_RUNS:
        raise Refused(f"noise: {len(runs)} runs tell too little of how runs differ; at least {MIN_RUNS} are needed")
    if len({run.run_id for run in runs}) < len(runs):
        raise Refused("noise: the same run stands there twice; each must be a run of its own")
    for column in ("gpu", "commit", "config_hash", "backend_version", "cache"):
        kinds = {tuple(sorted(run.values(column))) for run in runs}
        if len(kinds) > 1:
            shown = " against ".join(" ".join(kind) or "none" for kind in sorted(kinds))
            raise Refused(f"noise: {column}: the runs differ, {shown}; A/A runs have everything the same")
    rows = []
    for key, record in runs[0].by_key.items():
        values = {which: [estimate.value for run in runs if (estimate := measure(run, key, which))]
                  for which in GATED}
        n = min(len(values[Measure.FLOOR_SHARE] or values[Measure.SPEEDUP]), len(runs))
        if record.backend == RIVAL or n < MIN_RUNS:
            continue
        measured: dict[str, Any] = {}
        for which, found in values.items():
            if len(found) == n:
                measured |= {which.value: math.exp(statistics.fmean(found)),
                             f"{which.value}_sd": statistics.stdev(found)}
        rows.append(NoiseRow(
            gpu=record.gpu, commit=record.commit, run_ids=" ".join(run.run_id for run in runs), case_id=record.case_id,
            case=record.case, backend=record.backend, direction=record.direction, scope=record.scope, runs=n,
            **measured))
    if not rows:
        raise Refused(f"noise: no row has a time in {MIN_RUNS} of the runs")
    return rows


def noise_table(rows: Sequence[NoiseRow]) -> Table:
    """For the terminal: centre and scatter of each row, and the noise floor of a single run against their mean."""
    table = new_table(f"A/A runs on {rows[0].gpu}: natural scatter between runs", row="left", runs="right", **{
        "x FA4": "right", "SD": "right", "noise floor": "right", "of the floor": "right", "SD ": "right",
        "noise floor ": "right"})
    noise = Noise(rows)
    for row in rows:
        cells = []
        for which in GATED:
            centre, sd = getattr(row, which.value), getattr(row, f"{which.value}_sd")
            if centre is None:
                cells += ["", "", ""]
                continue
            scatter = noise.scatter(row.key, which)
            floor = Change(0.0, scatter.sd * math.sqrt(1 + 1 / row.runs), scatter.dof, 0.0).noise_floor
            cells += [f"{centre:.3f}", f"{sd:.2%}", f"{1 - math.exp(-floor):.1%}"]
        table.add_row(f"{row.case} {row.direction} {row.backend} {row.scope}", str(row.runs), *cells)
    return table


def write_noise(path: Path, rows: Sequence[NoiseRow]) -> None:
    """Write the file, at once. Raises `UserError` if it can't be."""
    temporary = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(NOISE_COLUMNS)
            for row in rows:
                cells = (getattr(row, name) for name in NOISE_COLUMNS)
                writer.writerow(["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else cell
                                 for cell in cells])
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error


def read_noise(path: Path) -> Noise:
    """Noise of a file. Raises `UserError` without the file, `Refused` for another schema or a corrupt one."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; harness noise writes it")
    try:
        text = path.read_text(encoding="utf-8")
        lines = list(csv.DictReader(text.splitlines(), strict=True))
        versions = {line.get("noise_schema") for line in lines} - {str(NOISE_SCHEMA)}
        if versions or not lines or not text.endswith("\n"):
            raise ValueError(f"expected whole lines of noise_schema {NOISE_SCHEMA}")
        return Noise([NoiseRow.model_validate({name: None if name in _MAY_BE_EMPTY and cell == "" else cell
                                               for name, cell in line.items()}) for line in lines])
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}") from None
    except (ValueError, csv.Error) as error:
        raise Refused(f"{path}: can't be read as a noise file: {error}") from None
