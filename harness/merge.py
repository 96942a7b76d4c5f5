"""Merges runs of one config into one: what jobs, machines or earlier days measured of its cases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cases import Case
from harness.config import BenchConfig
from harness.environment import Checkout, DeviceEnvironment
from harness.errors import UserError
from harness.flops import Ceilings
from harness.records import Record, Sample, load_records, load_samples, replace_records, replace_samples
from harness.run_files import RunFiles, write_facts

ALIKE = ("gpu", "torch", "triton", "cuda")  # of the devices; drivers may differ


def merge_runs(folders: Sequence[Path], into: RunFiles, config: BenchConfig, cases: Sequence[Case]) -> list[Record]:
    """Merge what there is of each run in ``folders`` into the files of ``into``, in the order of ``cases``.

    Each row keeps the id of its own run, whose ceilings its floor comes from. Raises `UserError` for another config,
    for devices of different models or software, and for a row that two runs have.
    """
    records: list[Record] = []
    samples: list[Sample] = []
    facts: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        files = RunFiles(folder, into.name)
        if not files.json_path.exists():
            continue
        facts[folder] = _facts(files, config)
        if files.csv_path.exists():
            records += load_records(files.csv_path, drop_cut_line=True)
            samples += load_samples(files.samples_path, drop_cut_line=True)
    if not facts:
        raise UserError(f"{into.out_dir}: none of its {len(folders)} runs began; their logs are below it")
    for key in ALIKE:
        found = sorted({str(each["device"][key]) for each in facts.values()})
        if len(found) > 1:
            raise UserError(f"{into.out_dir}: {key}: the runs are of {' and '.join(found)}; merge each apart")
    order = {case.case_id: index for index, case in enumerate(cases)}
    names = [backend.name for backend in config.backends]
    times = Counter(record.key for record in records)
    if twice := next((key for key, count in times.items() if count > 1), None):
        raise UserError(f"{into.out_dir}: two of its runs have the row {'/'.join(twice)}")
    records.sort(key=lambda record: (order[record.case_id], names.index(record.backend)))
    samples.sort(key=lambda sample: (order[sample.case_id], names.index(sample.backend)))
    replace_samples(into.samples_path, samples)
    replace_records(into.csv_path, records)
    first = next(iter(facts.values()))
    backends = {each["name"]: each for one in reversed(facts.values()) for each in one["backends"]}
    write_facts(into, first["run_id"], config, DeviceEnvironment(**first["device"]), Checkout(**first["checkout"]),
                Ceilings(**first["ceilings"]) if first["ceilings"] else None,
                sorted(backends.values(), key=lambda each: names.index(each["name"])), cases)
    return records


def _facts(files: RunFiles, config: BenchConfig) -> dict[str, Any]:
    try:
        facts = json.loads(files.json_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{files.json_path}: can't be read as the facts of a run: {error}") from None
    if facts["config_hash"] != config.config_hash:
        raise UserError(f"{files.json_path}: config_hash: the run is of {facts['config_hash']}, the config is "
                        f"{config.config_hash}")
    return facts
