"""Shows a run while it runs: a progress bar on a terminal, a line per case elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness.cases import Case
from harness.records import Record, Status
from harness.runner import Listener, RunResult
from harness.units import duration


def make_listener(console: Console) -> Listener:
    """The listener that suits where ``console`` writes."""
    return BarListener(console) if console.is_terminal else LineListener(console)


class LineListener(Listener):
    """One line per case with its statuses and the time left, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._cases = self._done = 0

    def started(self, run_id: str, out_dir: Path, cases: Sequence[Case], n_rows: int) -> None:
        """What is left to do."""
        self._begin, self._cases = time.monotonic(), len(cases)
        self._print(f"{run_id}: {len(cases)} cases, {n_rows} rows, into {out_dir}")

    def note(self, text: str) -> None:
        """Prints it."""
        self._print(text)

    def case_finished(self, case: Case, records: Sequence[Record]) -> None:
        """Counts the case's rows."""
        self._done += 1
        spent = time.monotonic() - self._begin
        left = spent / self._done * (self._cases - self._done)
        self._print(f"[{self._done}/{self._cases}] {case.name} {case.case_id}: {count_statuses(records)} "
                    f"({duration(spent)}, about {duration(left)} left)")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class BarListener(Listener):
    """A bar over all rows with the time left; a row counts half once it is checked, and whole once it is done."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, expand=True)
        self._task = self._progress.add_task("starting", total=None)
        self._halves = 0

    def started(self, run_id: str, out_dir: Path, cases: Sequence[Case], n_rows: int) -> None:
        """What is left to do."""
        self._print(f"{run_id}: {len(cases)} cases, {n_rows} rows, into {out_dir}")
        self._progress.update(self._task, total=2 * n_rows)
        self._progress.start()

    def note(self, text: str) -> None:
        """Prints it."""
        self._print(text)

    def case_started(self, case: Case) -> None:
        """Names the case."""
        self._describe(case, "checking")

    def prepared(self, case: Case, backend: str, statuses: Mapping[tuple[str, str], Status]) -> None:
        """Names the backend."""
        self._describe(case, f"checked {backend}")
        self._progress.advance(self._task, len(statuses))

    def block_timed(self, case: Case, backend: str, direction: str, scope: str, n_samples: int) -> None:
        """Names the row."""
        self._describe(case, f"timing {backend} {direction} {scope}")

    def case_finished(self, case: Case, records: Sequence[Record]) -> None:
        """Counts the case's rows."""
        self._halves += 2 * len(records)
        self._progress.update(self._task, completed=self._halves)
        bad = [record for record in records if record.status not in (Status.OK, Status.UNTIMED, Status.UNSUPPORTED)]
        for text in dict.fromkeys(f"{case.name}: {record.backend}: {record.status.value}: {record.message}"
                                  for record in bad):
            self._print(text)

    def finished(self, result: RunResult) -> None:
        """Stops the bar."""
        self._describe(None, "interrupted" if result.interrupted else "done")
        self._progress.stop()

    def aborted(self) -> None:
        """Stops the bar, which else leaves the terminal without its cursor."""
        self._progress.stop()

    def _describe(self, case: Case | None, text: str) -> None:
        self._progress.update(self._task, description=escape(f"{case.name}: {text}" if case else text))

    def _print(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def count_statuses(records: Sequence[Record]) -> str:
    """Such as ``12 ok, 4 unsupported``."""
    counts = Counter(record.status.value for record in records)
    return ", ".join(f"{count} {status}" for status, count in counts.items())
