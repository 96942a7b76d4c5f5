"""What to compile, and the processes that do it: two at a time, without TRITON_INTERPRET."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.backends.packages import version_of
from harness.errors import UserError
from harness.records import Status
from harness.strict_model import choices
from harness.xray.rows import XrayRow
from kernels.implementation import DIRECTIONS
from kernels.xray_targets import RIVAL_SHAPES, OfflineConfig, Shape, configs

ARCHITECTURES = {"sm_90a": 90, "sm_100a": 100}
BACKENDS = ("jfa", "fa4")
FA4 = "flash-attn-4"
_PROCESSES = 2
_TIMEOUT_S = 900  # of a process


@dataclass(frozen=True)
class Job:
    """One configuration to compile. ``impl`` is the implementation of `kernels.dispatch`; '' for FA4."""

    backend: str
    arch: str
    impl: str
    config: OfflineConfig

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse."""
        values = json.loads(text)
        config = values.pop("config")
        return cls(**values, config=OfflineConfig(**{**config, "shape": Shape(**config["shape"])}))

    @property
    def names(self) -> tuple[str, str, str]:
        """What it can be picked by: the configuration's name, the shape, and both, such as ``bwd-d64-full/pair``."""
        return (self.config.name, str(self.config.shape), f"{self.config.shape}/{self.config.name}")

    def failed(self, status: Status, message: str) -> XrayRow:
        """The row of a job that brought none."""
        return XrayRow(arch=self.arch, backend=self.backend, shape=str(self.config.shape), config=self.config.name,
                       status=status, message=message)


def plan(arch: str, backends: Sequence[str], names: Sequence[str] = (), quick: bool = False,
         options: Mapping[str, Mapping[str, Any]] | None = None) -> list[Job]:
    """The jobs for an architecture: the implementations' configurations, and FA4 in shapes of its own.

    ``names`` picks jobs by one of their names (all if empty), ``quick`` the reduced set of ours. With ``options``
    (switches by direction, as in a config) ours are instead one configuration of these in each shape of the direction.
    Raises `UserError` for an unknown architecture, backend, name or direction, and where nothing is left.
    """
    for what, value, known in [("--arch", arch, ARCHITECTURES), *(("--backend", name, BACKENDS) for name in backends)]:
        if value not in known:
            raise UserError(f"{what}: got {value!r}; allowed: {choices(known, value)}")
    offered = [(impl, config) for impl, found in configs(ARCHITECTURES[arch]).items() for config in found
               if config.quick or not quick]
    if options is not None:
        offered = _with_options(offered, options)
    jobs = [Job("jfa", arch, impl, config) for impl, config in offered if "jfa" in backends]
    jobs += [Job("fa4", arch, "", OfflineConfig("fa4", shape)) for shape in RIVAL_SHAPES if "fa4" in backends]
    known_names = list(dict.fromkeys(name for job in jobs for name in job.names))
    for name in names:
        if name not in known_names:
            raise UserError(f"--config: got {name!r}; allowed: {choices(known_names, name)}")
    if not jobs:
        raise UserError(f"--arch {arch}: {', '.join(backends)} has no kernels for it")
    return [job for job in jobs if not names or any(name in names for name in job.names)]


def survey(jobs: Sequence[Job], progress: Callable[[int], None] = lambda done: None) -> list[XrayRow]:
    """Compile the jobs and read the result; rows in the order of the jobs.

    Ours share two processes, each of FA4's has its own. A job that brings no row gets one that says why.
    ``progress`` is told how many jobs are done.
    """
    ours = [at for at, job in enumerate(jobs) if job.backend == "jfa"]
    theirs = [at for at, job in enumerate(jobs) if job.backend != "jfa"]
    rows: dict[int, list[XrayRow]] = {}
    if version_of(FA4) is None:
        reason = f"{FA4} is not installed: pip install --pre '{FA4}[cu13]'"
        rows = {at: [jobs[at].failed(Status.UNSUPPORTED, reason)] for at in theirs}
        theirs = []
    batches = [batch for part in range(_PROCESSES) if (batch := ours[part::_PROCESSES])] + [[at] for at in theirs]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        for batch, found in zip(batches, pool.map(lambda batch: _compile([jobs[at] for at in batch]), batches),
                                strict=True):
            rows |= zip(batch, found, strict=True)
            progress(len(rows))
    return [row for at in range(len(jobs)) for row in rows[at]]


def _with_options(offered: Sequence[tuple[str, OfflineConfig]],
                  options: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, OfflineConfig]]:
    for direction in options:
        if direction not in DIRECTIONS:
            raise UserError(f"--options: got {direction!r}; allowed: {choices(DIRECTIONS, direction)}")
    places = dict.fromkeys((impl, config.shape) for impl, config in offered if config.shape.direction in options)
    return [(impl, OfflineConfig("options", shape, options[shape.direction])) for impl, shape in places]


def _compile(batch: Sequence[Job]) -> list[list[XrayRow]]:
    """The rows of each job of one process."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    lines = "".join(f"{job.to_json()}\n" for job in batch)
    with tempfile.TemporaryDirectory(prefix="xray-") as folder:
        answers = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "harness.xray.worker", str(answers)]
        try:
            done = subprocess.run(command, input=lines, env=variables, capture_output=True, text=True,
                                  timeout=_TIMEOUT_S)
            said = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            status, message = Status.CRASH, said[0]
        except subprocess.TimeoutExpired:
            status, message = Status.HANG, f"no answer within {_TIMEOUT_S} s"
        text = answers.read_text(encoding="utf-8") if answers.exists() else ""
    found = [[XrayRow.model_validate(row) for row in json.loads(line)] for line in text.splitlines()]
    return found + [[job.failed(status, message)] for job in batch[len(found):]]
