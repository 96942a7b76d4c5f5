"""Writes data/gate_samples.csv, the real samples that the gate is tried on, from one run or from several A/A runs.

    python tests/harness/make_gate_samples.py RUN.csv [RUN.csv ...]

Each RUN.csv is a run of configs/gate.yaml (or one that has its cases, such as gem) on the same GPU, with its samples
beside it. Of each block of kernel scope at most SAMPLES_KEPT samples are kept, evenly spaced; a run with fewer than
BLOCKS blocks a row is cut into that many pieces. After it, `python docs/fill_gate.py` renews the table in docs/gate.md.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from harness.cases import expand
from harness.config import load_config
from harness.records import Status
from harness.regression.runs import Run, load_run
from harness.rows import RIVAL

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(__file__).resolve().parent / "data" / "gate_samples.csv"
COLUMNS = ("run_id", "gpu", "case", "direction", "backend", "floor_ms", "block", "latencies_ms")
SAMPLES_KEPT = 12
BLOCKS = 8


def lines(run: Run, cases: set[str]) -> list[tuple]:
    """A line a block, latencies joined by blanks."""
    found = []
    for record in run.records:
        if (record.case_id in cases and record.scope == "kernel" and record.backend in ("jfa", RIVAL)
                and record.status is Status.OK):
            blocks = run.blocks[record.key]
            pieces = [piece for block in blocks for piece in np.array_split(block, -(-BLOCKS // len(blocks)))]
            for number, piece in enumerate(pieces):
                kept = piece[np.linspace(0, len(piece) - 1, min(SAMPLES_KEPT, len(piece))).round().astype(int)]
                found.append((run.run_id, run.gpu, record.case, record.direction, record.backend, record.floor_ms,
                              number, " ".join(f"{latency:.6g}" for latency in kept)))
    return found


def main(paths: list[str], out: Path = OUT) -> None:
    """Write the file."""
    cases = {case.case_id for case in expand(load_config(ROOT / "configs" / "gate.yaml"))}
    rows = [line for path in paths for line in lines(load_run(Path(path)), cases)]
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: make_gate_samples.py RUN.csv [RUN.csv ...]")
    main(sys.argv[1:])
