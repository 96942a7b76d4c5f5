"""The part of the gate that needs no GPU: compiled kernels against the committed x-ray baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.regression.baseline import BASELINES

PATTERN = "xray_sm*.csv"


@dataclass(frozen=True)
class StaticResult:
    """What got worse in the kernels of one baseline, a line each; none if nothing did."""

    baseline: Path
    findings: tuple[str, ...]


def static_gate(progress: Callable[[str], None], root: Path = BASELINES) -> list[StaticResult]:
    """Compiles this project's kernels for each architecture that has a baseline, and compares. Minutes on a CPU.

    Raises `UserError` without any baseline, or where one can't be read.
    """
    from harness.xray.baseline import check_baseline  # brings the compiler along

    baselines = sorted(root.glob(PATTERN))
    if not baselines:
        raise UserError(f"{root}: holds no {PATTERN}; harness xray --write {root}/xray_sm90a.csv makes one")
    results = []
    for path in baselines:
        progress(f"{path.name}: compiling")
        results.append(StaticResult(path, tuple(map(str, check_baseline(path)))))
    return results
