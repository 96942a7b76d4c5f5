"""The files of a run, and what a resumed run takes over from them."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cases import Case
from harness.config import BenchConfig
from harness.csv_files import whole_lines
from harness.environment import Checkout, DeviceEnvironment
from harness.errors import UserError
from harness.flops import Ceilings
from harness.records import (
    SCHEMA_VERSION,
    Record,
    Sample,
    append_records,
    append_samples,
    load_records,
    load_samples,
    replace_records,
    replace_samples,
)


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes: records, raw samples, what it ran on, and the workers' logs."""

    out_dir: Path
    name: str

    @property
    def csv_path(self) -> Path:
        """The records."""
        return self.out_dir / f"{self.name}.csv"

    @property
    def samples_path(self) -> Path:
        """The raw samples."""
        return self.out_dir / f"{self.name}.samples.csv"

    @property
    def json_path(self) -> Path:
        """Environment, ceilings, resolved config, cases with their lengths."""
        return self.out_dir / f"{self.name}.run.json"

    @property
    def log_dir(self) -> Path:
        """What each worker printed."""
        return self.out_dir / "logs"

    def append(self, records: Sequence[Record], samples: Iterable[Sample]) -> None:
        """Write a case's rows: samples first, so that no record lacks them."""
        append_samples(self.samples_path, samples)
        append_records(self.csv_path, records)

    def sort(self, records: list[Record], case_ids: Sequence[str]) -> None:
        """Put ``records`` (all that were written) and the files into the order of ``case_ids``, which devices that
        share the cases don't keep."""
        order = {case_id: index for index, case_id in enumerate(case_ids)}
        records.sort(key=lambda record: order[record.case_id])
        if records:
            replace_records(self.csv_path, records)
            replace_samples(self.samples_path, sorted(load_samples(self.samples_path),
                                                      key=lambda sample: order[sample.case_id]))


@dataclass(frozen=True)
class Earlier:
    """What a resumed run has already: groups of (case, backend) with all their rows."""

    run_id: str = ""
    records: tuple[Record, ...] = ()
    samples: tuple[Sample, ...] = ()
    ceilings: Ceilings | None = None
    gpu: str | None = None
    case_ids: frozenset[str] = frozenset()  # all that the run can have
    dropped: tuple[str, ...] = ()  # what was cut off its files, in a line each

    @property
    def groups(self) -> set[tuple[str, str]]:
        """``(case_id, backend)`` pairs that are done."""
        return {(record.case_id, record.backend) for record in self.records}

    def latencies_ms(self, case_id: str, backend: str, direction: str, scope: str) -> list[float]:
        """Samples of one row."""
        key = (case_id, backend, direction, scope)
        return [sample.latency_ms for sample in self.samples
                if (sample.case_id, sample.backend, sample.direction, sample.scope) == key]


@contextmanager
def kept_from_others(files: RunFiles) -> Iterator[None]:
    """Makes the directory, and keeps other processes from running there under this name, even if this one is killed.

    Raises `UserError` if another one does, or the directory can't be made.
    """
    try:
        files.log_dir.mkdir(parents=True, exist_ok=True)
        lock = (files.log_dir / f"{files.name}.lock").open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{files.out_dir}: can't be made or written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{files.out_dir}: another process runs {files.name} there; wait for its end, or choose "
                            "another --out") from None
        except OSError:
            pass  # a file system without locks
        yield


def open_new(files: RunFiles) -> None:
    """Raises `UserError` if the directory holds a run of this name already."""
    for path in (files.csv_path, files.samples_path, files.json_path):
        if path.exists():
            raise UserError(f"{path}: holds a run already; go on with it by --resume, or choose another --out")


def open_earlier(files: RunFiles, config: BenchConfig) -> Earlier:
    """Read what a run has done so far; incomplete groups are dropped from its files.

    Incomplete is a group that lacks rows, or samples that its records count. Raises `UserError` when there is no such
    run, it is of another config or schema, or a file is corrupt (but for a tail that was cut short or never written).
    """
    try:
        facts = json.loads(files.json_path.read_text(encoding="utf-8"))
        run_id, config_hash, gpu = facts["run_id"], facts["config_hash"], facts["device"]["gpu"]
        ceilings = Ceilings(**facts["ceilings"]) if facts["ceilings"] else None
        case_ids = frozenset(case["case_id"] for case in facts["cases"])
    except FileNotFoundError:
        raise UserError(f"{files.json_path}: no such file, so there is no run to resume in {files.out_dir}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{files.json_path}: can't be read as the facts of a run: {error!r}") from error
    if config_hash != config.config_hash:
        raise UserError(f"{files.json_path}: config_hash: the run is of {config_hash}, the config is now "
                        f"{config.config_hash}; resume with the config as it was, or start anew in another --out")
    dropped = [f"{path}: its last line was cut short, and is dropped" for path in (files.csv_path, files.samples_path)
               if path.exists() and whole_lines(content := path.read_bytes()) != content]
    records = load_records(files.csv_path, drop_cut_line=True) if files.csv_path.exists() else []
    samples = load_samples(files.samples_path, drop_cut_line=True) if files.samples_path.exists() else []
    whole = len(config.directions) * len(config.scopes)
    counts = Counter((record.case_id, record.backend) for record in records)
    n_samples = Counter((sample.case_id, sample.backend, sample.direction, sample.scope) for sample in samples)
    short = {group for group, count in counts.items() if count != whole}
    short |= {(record.case_id, record.backend) for record in records if n_samples[record.key] < record.n_samples}
    done = counts.keys() - short
    kept = tuple(record for record in records if (record.case_id, record.backend) in done)
    kept_samples = tuple(sample for sample in samples if (sample.case_id, sample.backend) in done)
    replace_records(files.csv_path, kept)
    replace_samples(files.samples_path, kept_samples)
    if short:
        dropped.append(f"{files.csv_path}: {len(short)} (case, backend) pairs lack rows or samples, and are measured "
                       "again")
    return Earlier(run_id, kept, kept_samples, ceilings, gpu, case_ids, tuple(dropped))


def write_facts(files: RunFiles, run_id: str, config: BenchConfig, device: DeviceEnvironment, checkout: Checkout,
                ceilings: Ceilings | None, backends: Sequence[dict[str, Any]], cases: Sequence[Case]) -> None:
    """Write ``<name>.run.json``."""
    facts = {"schema_version": SCHEMA_VERSION, "run_id": run_id, "config_hash": config.config_hash,
             "device": asdict(device), "checkout": asdict(checkout),
             "ceilings": asdict(ceilings) if ceilings else None, "backends": list(backends),
             "config": config.model_dump(mode="json")}
    temporary = files.json_path.with_name(files.json_path.name + ".partial")
    cases_text = ",\n ".join(json.dumps(case.to_json()) for case in cases)  # a line each: lengths are many
    text = json.dumps(facts, indent=1).removesuffix("\n}") + f',\n "cases": [\n {cases_text}\n ]\n}}\n'
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, files.json_path)
