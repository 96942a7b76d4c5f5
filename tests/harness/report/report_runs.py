"""Runs on disk for the tests of reports: made-up records, or the committed ones."""

from __future__ import annotations

import json
from pathlib import Path

from sample_records import gem_like

from harness.cases import expand
from harness.config import BenchConfig
from harness.records import Record, append_records

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = ROOT / "results" / "baselines" / "nvidia-h200" / "gem.csv"


def write_run(folder: Path, records: list[Record] | None = None, name: str = "gem") -> Path:
    """A records CSV in a new folder; its path."""
    folder.mkdir(parents=True)
    path = folder / f"{name}.csv"
    append_records(path, gem_like() if records is None else records)
    return path


def small_config(batch: int = 40, **block: object) -> BenchConfig:
    """A config with one case of ordinary lengths."""
    case = {"name": "self", "mode": "self", "batch": batch, "num_heads_q": 4, "head_dim": 128,
            "lengths": {"kind": "uniform", "max": 512}} | block
    return BenchConfig.model_validate({"name": "small", "backends": ["jfa", "fa4"], "cases": [case]})


def write_facts(csv: Path, config: BenchConfig) -> None:
    """The ``.run.json`` of a config beside a CSV, with what reports read of it."""
    facts = {"config": config.model_dump(mode="json"), "device": {"multiprocessors": 8},
             "cases": [case.to_json() for case in expand(config)]}
    csv.with_suffix(".run.json").write_text(json.dumps(facts))
