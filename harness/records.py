"""`Record`: one row of the CSV, its columns in order, its statuses, and how it is written and read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness import csv_files
from harness.csv_files import SCHEMA_VERSION
from harness.errors import UserError

DIRECTIONS = ("fwd", "bwd")
SCOPES = ("kernel", "operation")


class Status(str, Enum):
    """What became of a row. Only `ok` rows carry times; `modelled` ones stand in files of `harness model` alone."""

    OK = "ok"
    UNTIMED = "untimed"
    UNSUPPORTED = "unsupported"
    WRONG = "wrong"
    HANG = "hang"
    OOM = "oom"
    CRASH = "crash"
    IMPORT_ERROR = "import_error"
    MODELLED = "modelled"


def _finite_6_digits(value: float) -> float:
    """Six significant digits, so that a record equals what its file says; never NaN or infinite."""
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return float(f"{value:.6g}")


Real = Annotated[float, AfterValidator(_finite_6_digits)]
Count = Annotated[int, Field(ge=0)]
TIMED_COLUMNS = ("latency_ms", "latency_ms_p20", "latency_ms_p80", "latency_ms_ci_low", "latency_ms_ci_high", "tflops")
SPEEDUP_COLUMNS = ("speedup_vs_fa4", "speedup_vs_fa4_ci_low", "speedup_vs_fa4_ci_high")


def _column(description: str, default: Any = ...) -> Any:
    return Field(default, description=description)


class Record(BaseModel):
    """One (case, backend, direction, scope). An empty cell (None) means not measured or not applicable.

    Columns are these fields in order; each one's description says its unit. Raises `pydantic.ValidationError`
    when a row that isn't `ok` carries a time, or one that is lacks one, or says nothing of why it failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = _column("version of this table's columns", SCHEMA_VERSION)
    run_id: str = _column("config name and UTC time of the run's start")
    date: str = _column("UTC time at which the row was written, ISO 8601")
    case_id: str = _column("12 hex digits: hash of the shape and its actual lengths")
    case: str = _column("name of the case in the config")
    mode: str = _column("self, cross, short_kv or broadcast_q")
    batch: Count = _column("number of sequences, B")
    num_heads_q: Count = _column("query heads")
    num_heads_kv: Count = _column("key and value heads")
    head_dim: Count = _column("head dimension, D")
    dtype: str = _column("bf16 or fp16")
    causal: bool = _column("no key after the query's position (sequences aligned at their ends)")
    window: str = _column("left:right bounds of a sliding window, * for no bound; empty without a window")
    hazard: str = _column("how inputs were spoilt on purpose; none for ordinary cases")
    distribution: str = _column("label of the length distribution")
    density: Real | None = _column("mean over maximum length: of the queries, of the keys for broadcast_q")
    total_q: Count = _column("query rows: the sum of lengths_q (B x Sq for broadcast_q)")
    total_k: Count = _column("key rows: the sum of lengths_k")
    max_seqlen_q: Count = _column("longest lengths_q")
    max_seqlen_k: Count = _column("longest lengths_k")
    backend: str = _column("name of the backend in the config")
    impl: str = _column("the variant that ran, as the backend calls it", "")
    backend_version: str = _column("version of the backend's package", "")
    direction: str = _column("fwd or bwd (the backward alone)")
    scope: str = _column("kernel (device work of the operation only) or operation (all that a user pays)")
    status: Status = _column("ok, untimed, unsupported, wrong, hang, oom, crash or import_error; never modelled")
    message: str = _column("why the row isn't ok, or a remark", "")
    cache: str = _column("cold: L2 is flushed before every sample; warm: it is not", "")
    latency_ms: Real | None = _column("median over the samples, ms", None)
    latency_ms_p20: Real | None = _column("20th percentile of the samples, ms", None)
    latency_ms_p80: Real | None = _column("80th percentile of the samples, ms", None)
    latency_ms_ci_low: Real | None = _column("lower end of the median's bootstrap 95 % interval, ms", None)
    latency_ms_ci_high: Real | None = _column("upper end of the median's bootstrap 95 % interval, ms", None)
    n_samples: Count = _column("number of samples", 0)
    flops: Count = _column("FLOPs of the visible pairs: no padding, nothing masked")
    tflops: Real | None = _column("flops / latency_ms, TFLOP/s", None)
    bytes: Count = _column("bytes that must move: each input read once, each output written once")
    ceiling_tflops: Real | None = _column("matmul rate measured in the same run, TFLOP/s", None)
    ceiling_tbps: Real | None = _column("copy rate measured in the same run, read + written TB/s", None)
    floor_ms: Real | None = _column("max(flops / ceiling_tflops, bytes / ceiling_tbps), ms", None)
    floor_share: Real | None = _column("floor_ms / latency_ms: 1 is as fast as the device could be", None)
    tile_flops: Count = _column("FLOPs counting whole 128 x 128 tiles")
    tile_efficiency: Real | None = _column("flops / tile_flops", None)
    padding_waste: Real | None = _column("share of the FLOPs that padding to the longest sequence would waste", None)
    speedup_vs_fa4: Real | None = _column("latency_ms of fa4 on the same row / latency_ms", None)
    speedup_vs_fa4_ci_low: Real | None = _column("lower end of its bootstrap 95 % interval", None)
    speedup_vs_fa4_ci_high: Real | None = _column("upper end of its bootstrap 95 % interval", None)
    error_out: Real | None = _column("relative error of out against the fp64 oracle, Frobenius norms", None)
    error_lse: Real | None = _column("the same of lse, where the backend gives it", None)
    error_dq: Real | None = _column("the same of dq", None)
    error_dk: Real | None = _column("the same of dk", None)
    error_dv: Real | None = _column("the same of dv", None)
    error_share: Real | None = _column("largest share of its limit that any error of the row takes; above 1 is wrong",
                                       None)
    compile_s: Real | None = _column("first call: compilation and autotuning included, s", None)
    peak_memory_mib: Real | None = _column("peak device memory allocated by the call, inputs included, MiB", None)
    sm_clock_mhz: Real | None = _column("median SM clock around the sample blocks, MHz", None)
    power_w: Real | None = _column("median power around the sample blocks, W", None)
    temperature_c: Real | None = _column("highest GPU temperature around the sample blocks, degrees C", None)
    throttle: str = _column("reasons for a lowered clock seen around the sample blocks, joined by +", "")
    device_type: str = _column("cuda or cpu")
    gpu: str = _column("name of the device")
    driver: str = _column("NVIDIA driver version", "")
    cuda: str = _column("CUDA version of the torch build", "")
    torch: str = _column("torch version")
    triton: str = _column("distribution and version that provides triton", "")
    python: str = _column("Python version", "")
    commit: str = _column("git commit of the harness", "")
    dirty: bool | None = _column("whether the checkout differed from the commit", None)
    config_hash: str = _column("hash of the resolved config")
    seed: int = _column("seed of the lengths and of the tensors")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """``(case_id, backend, direction, scope)``: unique within a file."""
        return (self.case_id, self.backend, self.direction, self.scope)

    @model_validator(mode="after")
    def _times_only_when_ok(self) -> Record:
        present = [name for name in TIMED_COLUMNS if getattr(self, name) is not None]
        if self.status is Status.OK:
            missing = sorted(set(TIMED_COLUMNS) - set(present))
            if missing or self.n_samples < 1:
                raise ValueError(f"status ok needs {', '.join(missing) or 'n_samples'}")
            if not 0 < self.latency_ms_ci_low <= self.latency_ms <= self.latency_ms_ci_high:  # type: ignore[operator]
                raise ValueError("latency_ms must be positive and within its interval")
            if not 0 < self.latency_ms_p20 <= self.latency_ms <= self.latency_ms_p80:  # type: ignore[operator]
                raise ValueError("latency_ms must be between its percentiles")
            self._agrees("tflops", self.flops / self.latency_ms / 1e9)  # type: ignore[operator]
            if self.floor_ms is not None:
                self._agrees("floor_share", self.floor_ms / self.latency_ms)  # type: ignore[operator]
            return self
        present += [name for name in ("floor_share", *SPEEDUP_COLUMNS) if getattr(self, name) is not None]
        if present or self.n_samples:
            raise ValueError(f"status {self.status.value} must not carry {', '.join(present) or 'n_samples'}")
        if not self.message:
            raise ValueError(f"status {self.status.value} needs a message")
        return self

    @model_validator(mode="after")
    def _stands_where_it_may(self) -> Record:
        """A modelled row is no record; `harness.model_records.ModelledRecord` is for it."""
        if self.status is Status.MODELLED:
            raise ValueError("status modelled is no measurement, and stands in files of harness model alone")
        return self

    @model_validator(mode="after")
    def _correct_when_said_so(self) -> Record:
        if self.status in (Status.OK, Status.UNTIMED) and self.error_share is not None and self.error_share > 1:
            raise ValueError(f"status {self.status.value} must not have an error_share above 1, got {self.error_share}")
        return self

    def _agrees(self, name: str, expected: float) -> None:
        """Raises `ValueError` for a value that doesn't follow from the row's others (to within their six digits)."""
        value = getattr(self, name)
        if value is None or not math.isclose(value, expected, rel_tol=1e-4):
            raise ValueError(f"{name} must follow from the row's other values, {expected:.6g}, got {value}")

    @model_validator(mode="after")
    def _names_known(self) -> Record:
        if self.direction not in DIRECTIONS or self.scope not in SCOPES:
            raise ValueError(f"direction/scope must be of {DIRECTIONS}/{SCOPES}, got {self.direction}/{self.scope}")
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {self.schema_version}")
        return self


COLUMNS: tuple[str, ...] = tuple(Record.model_fields)
AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True)
class Sample:
    """One raw sample: a row of ``<name>.samples.csv``. Telemetry is that of its block, None without NVML."""

    run_id: str
    case_id: str
    backend: str
    direction: str
    scope: str
    block: int
    index: int
    latency_ms: float
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: str = ""


SAMPLE_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Sample))


def _row(record: Record, columns: Sequence[str] = COLUMNS) -> list[Any]:
    return [getattr(record, name) for name in columns]


def append_records(path: Path, records: Iterable[Record], columns: Sequence[str] = COLUMNS) -> None:
    """Append rows to a records CSV (made with its header if absent), synced to disk."""
    csv_files.append(path, columns, [_row(record, columns) for record in records])


def append_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Append raw samples to their CSV (made with its header if absent), synced to disk."""
    csv_files.append(path, SAMPLE_COLUMNS, map(astuple, samples))


def replace_records(path: Path, records: Iterable[Record]) -> None:
    """Replace a records CSV at once."""
    csv_files.replace(path, COLUMNS, map(_row, records))


def replace_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Replace a samples CSV at once."""
    csv_files.replace(path, SAMPLE_COLUMNS, map(astuple, samples))


def demand_records(path: Path) -> None:
    """Raises `UserError` for a file that holds something else, such as modelled figures, by its first line."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        csv_files.demand_kind(path, file.readline(), COLUMNS)


def load_records(path: Path | str, *, drop_cut_line: bool = False) -> list[Record]:
    """The file's records, each validated.

    ``drop_cut_line`` forgives a last line that was cut short (a run that was killed while writing).
    Raises `UserError` that names file, line and column for another schema or a corrupt file.
    """
    return load_rows(Path(path), Record, COLUMNS, drop_cut_line=drop_cut_line)


def load_rows(path: Path, model: type[AnyRecord], columns: Sequence[str], *,
              drop_cut_line: bool = False) -> list[AnyRecord]:
    """The rows of a file with exactly these columns, each validated as ``model``; raises as `load_records` does."""
    records: list[AnyRecord] = []
    seen: set[tuple[str, str, str, str]] = set()
    text_columns = {name for name, info in model.model_fields.items() if info.annotation is str}
    for number, cells in csv_files.read_rows(path, columns, drop_cut_line):
        values = {name: cell if cell or name in text_columns else None for name, cell in cells.items()}
        try:
            record = model.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            column = ".".join(str(part) for part in first["loc"]) or "row"
            got = f", got {first['input']!r}" if first["loc"] else ""
            raise UserError(f"{path}: line {number}: {column}: {first['msg']}{got}") from error
        if record.key in seen:
            raise UserError(f"{path}: line {number}: repeats the row {'/'.join(record.key)}")
        seen.add(record.key)
        records.append(record)
    return records


def read_records(path: Path | str) -> pd.DataFrame:
    """The file as a table with typed columns, see `load_records`; raises `UserError`."""
    return to_frame(load_records(path))


def to_frame(records: Iterable[Record], model: type[Record] = Record,
             columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Records as a table: ``columns`` in order, statuses as text, None as NaN in number columns."""
    rows = [[value.value if isinstance(value, Enum) else value for value in _row(record, columns)]
            for record in records]
    frame = pd.DataFrame(rows, columns=list(columns))
    optional = [name for name, info in model.model_fields.items() if info.default is None and name != "dirty"]
    return frame.astype(dict.fromkeys([*optional, "density"], "float64"))


def load_samples(path: Path | str, *, drop_cut_line: bool = False) -> list[Sample]:
    """The raw samples of a file; raises `UserError` as `load_records` does."""
    path, samples = Path(path), []
    for number, cells in csv_files.read_rows(path, SAMPLE_COLUMNS, drop_cut_line):
        try:
            clock, power, temperature = (float(cells[name]) if cells[name] else None
                                         for name in ("sm_clock_mhz", "power_w", "temperature_c"))
            latency_ms = float(cells["latency_ms"])
            if not 0 < latency_ms < math.inf:
                raise ValueError(f"latency_ms must be positive and finite, got {cells['latency_ms']!r}")
            samples.append(Sample(
                cells["run_id"], cells["case_id"], cells["backend"], cells["direction"], cells["scope"],
                int(cells["block"]), int(cells["index"]), latency_ms, clock, power, temperature,
                cells["throttle"]))
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}") from error
    return samples
