"""`ModelledRecord`: one row of a file of modelled figures, which no command can take for a measured one.

Such a file holds the columns of a run's records after columns of its own, so what reads records refuses it by its
header. In its rows all columns of measured times stay empty; the modelled time has a column of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from pydantic import Field, model_validator

from harness.csv_files import MODEL_SCHEMA_COLUMN
from harness.records import COLUMNS, Real, Record, Status, append_records, load_rows, to_frame

MODEL_SCHEMA = 1
STATUSES = (Status.MODELLED, Status.UNSUPPORTED, Status.CRASH)
SUFFIX = ".modelled.csv"


class ModelledRecord(Record):
    """One (case, variant, direction) in kernel scope, as the timing model predicts it for a machine.

    ``status`` is `modelled`, `unsupported` (the variant declines) or `crash` (the simulation failed). Raises
    `pydantic.ValidationError` for a row that is `modelled` and lacks a figure, or isn't and has one.
    """

    model_schema: int = Field(MODEL_SCHEMA, description="version of these columns")
    machine: str = Field(description="name of the machine's description, such as h200")
    machine_digest: str = Field(description="12 hex digits: a hash of the description's values")
    predicted_ms: Real | None = Field(None, gt=0, description="modelled time, ms")
    predicted_tflops: Real | None = Field(None, description="flops / predicted_ms, TFLOP/s")
    predicted_clock_mhz: Real | None = Field(None, description="modelled SM clock under the power cap, MHz")
    bound_by: str = Field("", description="what the main kernel's time is bound by, in the model's words")
    bound_share: Real | None = Field(None, description="busy share of the busiest resource in the main kernel's time")
    shares: str = Field("", description="busy shares of all resources, name=share with semicolons between")
    kernels: str = Field("", description="each kernel's modelled time and how it was found, joined likewise")
    model_s: Real | None = Field(None, description="how long the model took to say so, s")

    @model_validator(mode="after")
    def _stands_where_it_may(self) -> ModelledRecord:
        figures = ("predicted_ms", "predicted_tflops", "predicted_clock_mhz", "bound_share", "model_s")
        there = [name for name in figures if getattr(self, name) is not None]
        if self.status not in STATUSES:
            raise ValueError(f"status must be of {', '.join(status.value for status in STATUSES)}, "
                             f"got {self.status.value}")
        if self.model_schema != MODEL_SCHEMA:
            raise ValueError(f"model_schema must be {MODEL_SCHEMA}, got {self.model_schema}")
        if self.status is not Status.MODELLED:
            if there:
                raise ValueError(f"status {self.status.value} must not carry {', '.join(there)}")
            return self
        if lacking := [*(name for name in figures if name not in there), *([] if self.bound_by else ["bound_by"])]:
            raise ValueError(f"status modelled needs {', '.join(lacking)}")
        self._agrees("predicted_tflops", self.flops / self.predicted_ms / 1e9)  # type: ignore[operator]
        return self


MODEL_COLUMNS: tuple[str, ...] = tuple(name for name in ModelledRecord.model_fields if name not in COLUMNS)
MODELLED_COLUMNS = (*MODEL_COLUMNS, *COLUMNS)
assert MODEL_COLUMNS[0] == MODEL_SCHEMA_COLUMN


def is_modelled(path: Path) -> bool:
    """Whether a file begins as files of modelled figures do; False for one that can't be read."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().startswith(f"{MODEL_SCHEMA_COLUMN},")
    except (OSError, UnicodeDecodeError):
        return False


def append_modelled(path: Path, records: Iterable[ModelledRecord]) -> None:
    """Append rows to a file of modelled figures (made with its header if absent), synced to disk."""
    append_records(path, records, MODELLED_COLUMNS)


def load_modelled(path: Path) -> list[ModelledRecord]:
    """The file's rows, each validated. Raises `UserError` that names file, line and column."""
    return load_rows(path, ModelledRecord, MODELLED_COLUMNS)


def modelled_frame(records: Sequence[ModelledRecord]) -> pd.DataFrame:
    """Rows as a table: `MODELLED_COLUMNS` in order, None as NaN in number columns."""
    return to_frame(records, ModelledRecord, MODELLED_COLUMNS)
