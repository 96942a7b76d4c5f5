"""Which job of a cluster has which case: dealt once, written down, and kept when the run is gone on with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.cases import Case
from harness.config import BenchConfig
from harness.errors import UserError
from harness.run_files import RunFiles


class Dealt(BaseModel):
    """``jobs/dealt.json``: of what config, among how many jobs, and the number of the job that has each case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config_hash: str
    jobs: int = Field(ge=1)
    cases: dict[str, int] = {}


def deal(files: RunFiles, config: BenchConfig, cases: Sequence[Case], jobs: int,
         resume: bool) -> dict[Path, list[Case]]:
    """The cases of each job by its folder ``<out>/jobs/<number>``, which is made; none for a job without any of them.

    Dealt in turn, as neighbours in a sweep take about as long. To resume, a case stays with the job that it was dealt
    to, whichever cases are chosen now: two jobs would else have rows of it. Raises `UserError` for a run that is there
    without ``resume``, or isn't there with it, and for another config or number of jobs than the run's.
    """
    folder = files.out_dir.absolute() / "jobs"
    path = folder / "dealt.json"
    count = min(jobs, len(cases))
    if path.exists() and not resume:
        raise UserError(f"{path}: holds a run already; go on with it by --resume, or choose another --out")
    dealt = _read(path, files) if resume else Dealt(config_hash=config.config_hash, jobs=count)
    if dealt.config_hash != config.config_hash:
        raise UserError(f"{path}: config_hash: the run is of {dealt.config_hash}, the config is now "
                        f"{config.config_hash}; resume with the config as it was, or start anew in another --out")
    if dealt.jobs not in (jobs, count):
        raise UserError(f"{folder}: --jobs: the run has {dealt.jobs} jobs, not {count}; resume with "
                        f"--jobs {dealt.jobs}")
    new = [case for case in cases if case.case_id not in dealt.cases]
    numbers = {**dealt.cases, **{case.case_id: index % dealt.jobs for index, case in enumerate(new)}}
    folders = [folder / f"{number:05d}" for number in range(dealt.jobs)]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    _write(path, dealt.model_copy(update={"cases": numbers}))
    return {each: [case for case in cases if numbers[case.case_id] == number] for number, each in enumerate(folders)}


def _read(path: Path, files: RunFiles) -> Dealt:
    try:
        return Dealt.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, so there is no run of jobs to resume in {files.out_dir}") from None
    except ValidationError as error:
        raise UserError(f"{path}: can't be read as the cases of jobs: {error.errors()[0]['msg']}") from None


def _write(path: Path, dealt: Dealt) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(dealt.model_dump_json() + "\n", encoding="utf-8")
    os.replace(temporary, path)
