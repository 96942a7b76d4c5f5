"""A committed CSV of `harness xray` against what the checkout compiles to now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import UserError
from harness.xray.check import Finding, check
from harness.xray.rows import XrayRow, merge, read_csv, to_csv
from harness.xray.survey import BACKENDS, plan, survey


def check_baseline(path: Path, quick: bool = True,
                   progress: Callable[[int], None] = lambda done: None) -> list[Finding]:
    """Compiles this project's kernels for the baseline's architecture and says what got worse; a minute or two.

    ``quick`` compiles the reduced set. Raises `UserError` for a file that can't be read or holds several architectures.
    """
    baseline = read_csv(path)
    archs = sorted({row.arch for row in baseline})
    if len(archs) != 1:
        raise UserError(f"{path}: arch: got {', '.join(archs)}; allowed: one architecture a file")
    rows = survey(plan(archs[0], ["jfa"], quick=quick), progress)
    return check(rows, baseline, offered(archs[0], ["jfa"]))


def offered(arch: str, backends: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """The first four parts of a row's key, for all that can be compiled."""
    return [(job.arch, job.backend, str(job.config.shape), job.config.name) for job in plan(arch, backends)]


def write_baseline(path: Path, arch: str, rows: Sequence[XrayRow]) -> None:
    """Writes ``rows``; in an existing file, rows of configurations that weren't compiled stay. Raises `UserError`."""
    old = read_csv(path) if path.exists() else []
    try:
        path.write_text(to_csv(merge(old, rows, offered(arch, BACKENDS))), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't write it: {error.strerror or error}") from None
