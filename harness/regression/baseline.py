"""The committed baseline of a GPU: a run's files, why they are the baseline, and digests that show an edit by hand."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.records import Status, demand_records
from harness.regression.noise import Noise, noise_path, read_noise
from harness.regression.runs import Refused, Run, facts_path, load_run, samples_path

BASELINES = Path("results/baselines")
MANIFEST_SCHEMA = 1
ENVIRONMENT = ("gpu", "driver", "cuda", "torch", "triton", "python", "commit", "dirty", "config_hash")


def slug(gpu: str) -> str:
    """Folder of a GPU's results: ``nvidia-h200`` for ``NVIDIA H200``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "unnamed"


def default_baseline(gpu: str, config: str, root: Path = BASELINES) -> Path:
    """Where the baseline of a config, by its name, is kept for a GPU."""
    return root / slug(gpu) / f"{config}.csv"


def manifest_path(baseline: Path) -> Path:
    """Where a baseline's note, environment and digests lie."""
    return baseline.with_suffix(".baseline.json")


def demand_baseline(path: Path | None, config: str, root: Path = BASELINES) -> None:
    """Raises `UserError` if ``path``, or any GPU's baseline of the config, isn't there: worth knowing before a run.

    Also for a ``path`` that holds no records.
    """
    if not path and not list(root.glob(f"*/{config}.csv")):
        path = root / "<gpu>" / f"{config}.csv"
    if path and not path.is_file():
        raise UserError(f"{path}: no such file, so there is no baseline; make one with "
                        f"harness baseline update RUN.csv --baseline {path} --note WHY")
    if path:
        demand_records(path)


def load_baseline(path: Path) -> tuple[Run, Noise, list[str]]:
    """The baseline's run, its noise, and what is to be said of them.

    Raises `UserError` without the file, `Refused` for files that were changed since `update` or `seal` wrote them.
    """
    demand_baseline(path, path.stem)
    notes = _check_digests(path)
    noise = read_noise(noise_path(path)) if noise_path(path).is_file() else Noise()
    run = load_run(path)
    if gpus := sorted({row.gpu for row in noise.rows.values()} - {run.gpu}):
        raise Refused(f"{noise_path(path)}: gpu: the noise is of {', '.join(gpus)}, the baseline of {run.gpu}; measure "
                      "it there with harness noise")
    return run, noise, notes


def _check_digests(path: Path, but: Sequence[Path] = ()) -> list[str]:
    """Of all files of the baseline ``but`` some; what is to be said of them. Raises `Refused`."""
    manifest = manifest_path(path)
    if not manifest.is_file():
        return [f"{manifest} is missing, so an edit of the baseline by hand wouldn't be noticed"]
    listed = _read_manifest(manifest)["files"]
    parts = {file.name: file for file in (*_files(path), noise_path(path)) if file not in but}
    for name, file in parts.items():
        if name not in listed and file.is_file():
            raise Refused(f"{file}: isn't among the baseline's files in {manifest.name}, so it was put there by hand, "
                          "or the list was changed; remove it, or make a new baseline with harness baseline update")
        if name in listed and not file.is_file():
            raise Refused(f"{file}: no such file, but {manifest.name} lists it as part of the baseline")
        if name in listed and _digest(file) != listed[name]:
            raise Refused(f"{file}: was changed since it became the baseline (its digest isn't the one in "
                          f"{manifest.name}); restore it, or make a new baseline with harness baseline update")
    return []


def update(run: Run, baseline: Path, note: str) -> None:
    """Make a run the baseline: copy its files, and write why, from what and their digests.

    A noise file stays where it is of the same GPU and has the run's rows, else it is removed with its old baseline.
    Raises `UserError` for an empty note or a disk that fails, `Refused` for a run without any time or of a dirty
    checkout.
    """
    if not note.strip():
        raise UserError("--note: says why this run is the baseline, such as 'FA4 4.0.0b36'; it may not be empty")
    if not any(record.status is Status.OK for record in run.records):
        raise Refused(f"{run.csv}: no row has a time, so nothing could be held against it")
    if "True" in run.values("dirty"):
        raise Refused(f"{run.csv}: was measured on a checkout that differed from its commit; commit, and measure again")
    noise = noise_path(baseline)
    try:
        baseline.parent.mkdir(parents=True, exist_ok=True)
        for source, target in zip(_files(run.csv), _files(baseline), strict=True):
            if not source.is_file():
                target.unlink(missing_ok=True)  # or it would be of the baseline before
            elif source.resolve() != target.resolve():
                shutil.copyfile(source, target)
        if noise.is_file() and not {(key, row.gpu) for key, row in read_noise(noise).rows.items()} & {
                (key, run.gpu) for key in run.by_key}:
            noise.unlink()
    except OSError as error:
        raise UserError(f"{error.filename or baseline}: {error.strerror or error}") from error
    seal(baseline, {"note": note.strip(), "run_id": run.run_id,
                    "environment": {name: ", ".join(run.values(name)) for name in ENVIRONMENT},
                    "backends": {record.backend: record.backend_version for record in run.records}})


def seal(baseline: Path, facts: dict[str, Any] | None = None) -> None:
    """Write the manifest anew with the digests of the files as they are.

    Without ``facts`` it keeps those it has, as only the noise is new. Raises `Refused` if another file was changed.
    """
    manifest = manifest_path(baseline)
    if facts is None:
        _check_digests(baseline, but=[noise_path(baseline)])
        facts = {key: value for key, value in _read_manifest(manifest).items()
                 if key not in ("manifest_schema", "date", "files")}
    files = [path for path in (*_files(baseline), noise_path(baseline)) if path.is_file()]
    content = {"manifest_schema": MANIFEST_SCHEMA, "date": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}", **facts,
               "files": {path.name: _digest(path) for path in files}}
    temporary = manifest.with_name(manifest.name + ".partial")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, manifest)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["manifest_schema"] != MANIFEST_SCHEMA or not isinstance(content["files"], dict):
            raise ValueError(f"expected manifest_schema {MANIFEST_SCHEMA}")
        return content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path}: can't be read as the facts of a baseline: {error!r}") from None


def _files(csv: Path) -> Sequence[Path]:
    return csv, samples_path(csv), facts_path(csv)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
