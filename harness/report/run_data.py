"""A run as reports read it: its records, and what stands beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.cases import Case
from harness.errors import UserError
from harness.records import read_records
from harness.replay import read_cases


@dataclass(frozen=True, eq=False)
class RunData:
    """The records of a run (one row or more), and its ``<name>.run.json`` where that lies beside the CSV.

    ``facts`` is that file's content, None without it; ``cases`` are the run's cases with their actual lengths, by id,
    empty without it. ``ablations`` are the paths of ablation runs to show with it.
    """

    path: Path
    records: pd.DataFrame
    facts: Mapping[str, Any] | None
    cases: Mapping[str, Case]
    ablations: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The run's id, or ids where files were put together."""
        return " / ".join(dict.fromkeys(self.records["run_id"]))


def read_run(path: Path | str, ablations: tuple[Path | str, ...] | list[str] | None = None) -> RunData:
    """Read a records CSV and the JSON file beside it. Raises `UserError`.

    Without ``ablations`` every ``ablation_*.csv`` beside the CSV is taken.
    """
    path = Path(path)
    records = read_records(path)
    if records.empty:
        raise UserError(f"{path}: holds a header and no rows; nothing was measured yet")
    facts_path = path.with_suffix(".run.json")
    facts: dict[str, Any] | None = None
    cases: dict[str, Case] = {}
    if facts_path.exists():
        cases = {case.case_id: case for case in read_cases(facts_path)}
        facts = json.loads(facts_path.read_text(encoding="utf-8"))
    if ablations is None:
        ablations = [str(found) for found in sorted(path.parent.glob("ablation_*.csv"))
                     if not found.name.endswith(".samples.csv") and found != path]
    return RunData(path, records, facts, cases, tuple(map(Path, ablations)))


def not_run(run: RunData) -> pd.DataFrame:
    """Rows that the run's config asks for and the CSV lacks: ``case, backend, rows``; empty without the facts.

    They are no failures: the run ended before them, or was restricted to some cases or backends.
    """
    columns = ["case", "backend", "rows"]
    if run.facts is None:
        return pd.DataFrame(columns=columns)
    config = run.facts["config"]
    have = run.records.groupby(["case_id", "backend"]).size()
    wanted = len(config["directions"]) * len(config["scopes"])
    missing = [(case.name, backend["name"], wanted - int(have.get((case_id, backend["name"]), 0)))
               for case_id, case in run.cases.items() for backend in config["backends"]]
    return pd.DataFrame([row for row in missing if row[2] > 0], columns=columns)
