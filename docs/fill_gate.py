"""Fills docs/gate.md's table of how often the gate is right, from many made-up runs whose truth is known.

    python docs/fill_gate.py [RUNS]

RUNS (default 600) a line, on two processes: some twenty minutes. The runs are made by tests/harness/gate_truth.py from
tests/harness/data/gate_samples.csv; the table names that file's digest, so that a test sees a table of other samples.
"""

from __future__ import annotations

import hashlib
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gate.md"
TABLE = re.compile(r"<!-- truth of \w+ -->\n.*?<!-- end -->", re.DOTALL)
SLOWDOWNS = (0.0, 0.03, 0.05, 0.10)
RUNS = 600

sys.path.insert(0, str(ROOT / "tests" / "harness"))
import gate_truth  # noqa: E402  # needs the path above


def digest() -> str:
    """Of the samples that the table is made from."""
    return hashlib.sha256(gate_truth.DATA.read_bytes()).hexdigest()[:12]


def table(tallies: list[gate_truth.Tally], truth: gate_truth.Truth) -> str:
    """The table with its marks, and a line on what it is made from."""
    lines = [f"<!-- truth of {digest()} -->",
             "| one row made slower by | runs | that row SLOW | another row SLOW | a row left UNDECIDED | re-run |",
             "|---|---:|---:|---:|---:|---:|"]
    for each in tallies:
        caught = f"{each.caught_share:.1%}" if each.slowdown else ""
        slower = f"{each.slowdown:.0%}" if each.slowdown else "nothing"
        lines.append(f"| {slower} | {each.runs} | {caught} | {each.false_alarm_share:.1%} | "
                     f"{each.undecided / each.runs:.0%} | {each.rerun / each.runs:.0%} |")
    n = len(truth.samples)
    scatter = (f"the scatter between the {n} runs is theirs" if n >= gate_truth.MIN_RUNS else
               "the scatter within a run is real, the scatter between runs is assumed: "
               f"{gate_truth.ASSUMED_ROW_SD:.1%} for a row's ratio, {gate_truth.ASSUMED_CLOCK_SD:.0%} for the clock")
    lines += ["", f"Simulated from samples of {n} {'run' if n == 1 else 'runs'} measured on {truth.gpu}: {scatter}. "
              f"{len(truth.rows)} rows, {gate_truth.NOISE_RUNS} A/A runs, default tolerance, up to {gate_truth.RERUNS} "
              "re-runs.", "<!-- end -->"]
    return "\n".join(lines)


def main(runs: int) -> None:
    """Simulate, and write the page."""
    truth = gate_truth.Truth.load()
    with ProcessPoolExecutor(2) as pool:
        tallies = list(pool.map(gate_truth.tally, [truth] * len(SLOWDOWNS), SLOWDOWNS, [runs] * len(SLOWDOWNS)))
    text = PAGE.read_text(encoding="utf-8")
    assert TABLE.search(text)
    PAGE.write_text(TABLE.sub(lambda _: table(tallies, truth), text), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
