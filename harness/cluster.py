"""A run as jobs of a cluster: submitit submits them (Slurm, or processes of this machine), each runs some of the cases.

Each job is a run of its own in ``<out>/jobs/<number>``, which goes on where it was when it is preempted or killed; at
the end their files are merged into those of one run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.cases import expand
from harness.config import load_config
from harness.errors import UserError
from harness.job_parts import deal
from harness.merge import merge_runs
from harness.run_files import RunFiles, kept_from_others, open_new
from harness.runner import (
    Listener,
    RunOptions,
    RunResult,
    choose_backends,
    choose_cases,
    choose_devices,
    name_run,
    run,
)

Launcher = Literal["slurm", "local"]
INSTALL = "pip install submitit"


@dataclass(frozen=True)
class ClusterOptions:
    """Where and in how many jobs to run.

    Attributes:
        launcher: ``slurm``, or ``local`` for as many processes of this machine as there are jobs.
        jobs: jobs to share the cases among.
        retries: how often a job that failed is submitted again.
        parameters: of submitit's executor, such as ``slurm_partition``, ``timeout_min``, ``slurm_array_parallelism``.
    """

    launcher: Launcher
    jobs: int
    retries: int = 2
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ClusterJob:
    """Some of a config's cases; called where the job runs. submitit pickles it."""

    config: Path
    options: RunOptions

    def __call__(self) -> str:
        """Run, or go on with, the job's cases; returns the run's id."""
        config = load_config(self.config)
        resume = _files(self, config.name).json_path.exists()
        return run(config, replace(self.options, resume=resume)).run_id

    def checkpoint(self) -> Any:
        """What submitit submits when the cluster takes the job back: itself, to go on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_on_cluster(config_path: Path, options: RunOptions, cluster: ClusterOptions,
                   listener: Listener | None = None) -> RunResult:
    """`harness.runner.run` as jobs. Jobs that fail for good leave their rows out: `RunResult.interrupted` is then set.

    A run that is resumed keeps the rows of cases that aren't chosen now. Raises `UserError` for what `run` does, for a
    missing submitit, and to resume with another number of jobs.
    """
    listener = listener or Listener()
    config = load_config(config_path)
    run_id, files = name_run(config, options)
    all_cases = expand(config) if options.cases is None else list(options.cases)
    cases = choose_cases(all_cases, options.case_ids)
    choose_backends(config, options.backends)
    if cluster.launcher == "local":
        choose_devices(options.device, options.gpus)
    with kept_from_others(files):
        if not options.resume:
            open_new(files)
        executor = _executor(files, cluster)  # before any folder of a job is made
        parts = deal(files, config, cases, cluster.jobs, options.resume)
        listener.started(run_id, files.out_dir, cases, 0)
        todo = [ClusterJob(config_path.absolute(), replace(
            options, out_dir=folder, case_ids=tuple(case.case_id for case in part)))
            for folder, part in parts.items() if part]
        failed = _work_off(todo, executor, cluster, files.name, listener)
        records = merge_runs(list(parts), files, config, all_cases)
    result = RunResult(run_id, files.out_dir, files.csv_path, files.samples_path, files.json_path, tuple(records),
                       interrupted=failed)
    listener.finished(result)
    return result


def _executor(files: RunFiles, cluster: ClusterOptions) -> Any:
    """submitit's executor. Raises `UserError` without submitit or the launcher, and for parameters it doesn't take."""
    try:
        from submitit import AutoExecutor
    except ImportError:
        raise UserError(f"--launcher: needs the package submitit: {INSTALL}") from None
    try:
        executor = AutoExecutor(folder=files.log_dir / "submitit", cluster=cluster.launcher)
    except RuntimeError as error:
        raise UserError(f"--launcher: {cluster.launcher} can't be used here: {error}") from None
    try:
        executor.update_parameters(**{"name": files.name, **(cluster.parameters or {})})
    except (NameError, TypeError, ValueError, AssertionError) as error:
        raise UserError(f"--parameter: {error}") from None
    return executor


def _work_off(todo: Sequence[ClusterJob], executor: Any, cluster: ClusterOptions, name: str,
              listener: Listener) -> bool:
    """Submit jobs until they are done; whether some failed for good or were interrupted.

    Raises `KeyboardInterrupt` if that was before any job had begun.
    """
    left = list(todo)
    for attempt in range(cluster.retries + 1):
        with _stderr_into(Path(executor.folder) / "launcher.log"), executor.batch():
            jobs = [executor.submit(job) for job in left]
        listener.note(f"{len(jobs)} jobs submitted to {cluster.launcher}" + (", again" if attempt else ""))
        failed = []
        try:
            for job, work in zip(jobs, left, strict=True):
                if problem := job.exception():
                    failed.append(work)
                    listener.note(f"job {_files(work, name).out_dir.name} failed: {_reason(problem)}")
        except KeyboardInterrupt:
            for job in jobs:
                job.cancel()
            if not any(_files(work, name).json_path.exists() for work in todo):
                raise
            return True
        left = failed
        if not left:
            return False
    return True


@contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """What processes that are started meanwhile write to standard error goes to ``log``.

    submitit's local launcher starts one beside each job, whose last words after Ctrl-C are a traceback.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        own = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _files(work: ClusterJob, name: str) -> RunFiles:
    assert work.options.out_dir is not None
    return RunFiles(work.options.out_dir, name)


def _reason(problem: Exception) -> str:
    """What a job failed of, in a line: the end of the trace or log that submitit puts below a dashed line."""
    from submitit.core.utils import FailedJobError

    _, *below = re.split(r"^-{20,}$", str(problem), flags=re.MULTILINE)
    if isinstance(problem, FailedJobError):
        return "".join(below[:-1]).strip().splitlines()[-1]  # below the trace, where the logs are
    log = "".join(below).strip().splitlines()
    return "it ended without a result" + (f"; its log ends with: {log[-1]}" if log else "")
