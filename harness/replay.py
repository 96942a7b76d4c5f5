"""The exact cases of an earlier run, read from its ``<config>.run.json``."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cases import Case
from harness.errors import UserError


def load_cases(run_dir: Path) -> list[Case]:
    """Cases of the run in ``run_dir`` with their actual lengths, in its order.

    Raises `UserError` when the directory holds no run or more than one, or its file can't be read.
    """
    found = sorted(run_dir.glob("*.run.json"))
    if len(found) != 1:
        held = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{run_dir}: expected one <config>.run.json, as a run writes it; found: {held}")
    return read_cases(found[0])


def read_cases(path: Path) -> list[Case]:
    """Cases of one ``<config>.run.json``. Raises `UserError` when it can't be read."""
    try:
        cases = [Case.from_json(case) for case in json.loads(path.read_text(encoding="utf-8"))["cases"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: can't be read as the facts of a run: {error!r}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if not cases or len({case.case_id for case in cases}) < len(cases):
        raise UserError(f"{path}: cases: {'one stands there twice' if cases else 'there are none'}")
    return cases
