"""The one loop: config -> cases -> backends -> correctness -> timing -> records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cases import Case
from harness.records import Record, Status

if TYPE_CHECKING:
    from harness.config import BenchConfig


@dataclass(frozen=True)
class RunOptions:
    """What of a config to run, where, and where to write.

    Attributes:
        out_dir: directory of the run's files; default ``results/runs/<config name>-<UTC stamp>``.
        case_ids: ids or names of the cases to run; default all.
        backends: config names of the backends to run; default all.
        resume: go on with the run in ``out_dir``: complete (case, backend) groups stay as they are.
        device: ``cuda``, ``cuda:1``, ``cpu``; default the GPU if there is one.
    """

    out_dir: Path | None = None
    case_ids: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    resume: bool = False
    device: str | None = None


@dataclass(frozen=True)
class RunResult:
    """Files and rows of a run; ``records`` holds those of a resumed run's earlier part too."""

    run_id: str
    out_dir: Path
    csv_path: Path
    samples_path: Path
    run_json_path: Path
    records: tuple[Record, ...]
    interrupted: bool = False


class Listener:
    """Hears what a run does, in order; override what you care for. Called from the main thread only."""

    def started(self, run_id: str, out_dir: Path, cases: Sequence[Case], n_rows: int) -> None:
        """``cases`` and ``n_rows`` are what is left to do (less than the config's on a resume)."""

    def note(self, text: str) -> None:
        """One line worth showing: a worker restarted, a backend that isn't available."""

    def case_started(self, case: Case) -> None:
        """A case begins: its backends are about to compile and be checked."""

    def prepared(self, case: Case, backend: str, statuses: Mapping[tuple[str, str], Status]) -> None:
        """A backend was checked; by ``(direction, scope)``, `Status.OK` means that it will be timed."""

    def block_timed(self, case: Case, backend: str, direction: str, scope: str, n_samples: int) -> None:
        """A sample block ended; ``n_samples`` is the total of that row so far."""

    def case_finished(self, case: Case, records: Sequence[Record]) -> None:
        """The case's rows are on disk."""

    def finished(self, result: RunResult) -> None:
        """The run ended or was interrupted."""


def run(config: BenchConfig, options: RunOptions, listener: Listener | None = None) -> RunResult:
    """Run a config and write ``<name>.csv``, ``<name>.samples.csv`` and ``<name>.run.json``.

    Every (case, backend) is checked against the oracle before it is timed; whatever fails becomes a row with a
    status. Ctrl-C ends the run early, keeps the cases that are complete and sets `RunResult.interrupted`.
    Raises `UserError` for what the user can mend: unknown case, backend or device, a directory of another config.
    """
    raise NotImplementedError
