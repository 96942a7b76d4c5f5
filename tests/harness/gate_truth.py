"""Runs with a known truth, made from real samples, for trying the gate: what it says against what was done to a row.

A made-up run takes one of the real runs, draws its blocks of samples anew (both backends' blocks in pairs, then
samples within a block), and moves its rows so that made-up runs scatter as the real ones do. What drawing anew
scatters by itself is a part of that, not an addition to it; the rest comes partly from the real runs' own levels,
partly as noise, so that runs between the real ones occur as well. Where the data hold fewer than three runs, how they
differ is not known: rows then move by ASSUMED_ROW_SD each and all together by ASSUMED_CLOCK_SD. A regression
multiplies the latencies of `jfa` in one row.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from harness.records import Record, Sample, Status, append_records, append_samples, load_records
from harness.regression.gate import GateResult, Settings, gate
from harness.regression.measures import rival_key
from harness.regression.noise import Noise, noise_rows
from harness.regression.runs import Run, samples_path
from harness.regression.verdicts import Verdict
from harness.rows import RIVAL

GEM = Path(__file__).resolve().parents[2] / "results" / "baselines" / "nvidia-h200" / "gem.csv"  # of templates
DATA = Path(__file__).resolve().parent / "data" / "gate_samples.csv"
ASSUMED_ROW_SD, ASSUMED_CLOCK_SD = 0.007, 0.02
MIN_RUNS = 3
SMOOTHING = 0.5  # what noise contributes to a row's standard deviation between runs, beside the real runs' levels
NOISE_RUNS = 5
RERUNS = 4
DEFAULTS = Settings()

Row = tuple[str, str]  # case, direction


@dataclass(frozen=True)
class Truth:
    """Real samples, and runs made from them."""

    rows: tuple[Row, ...]
    floor_ms: Mapping[Row, float]
    samples: tuple[Mapping[tuple[str, Row], list[np.ndarray]], ...]  # of each run, by backend and row
    gpu: str

    @classmethod
    def load(cls, path: Path = DATA) -> Truth:
        """From what make_gate_samples.py wrote."""
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        runs: dict[str, dict[tuple[str, Row], list[np.ndarray]]] = {}
        floor_ms = {}
        for line in lines:
            row = (line["case"], line["direction"])
            floor_ms[row] = float(line["floor_ms"])
            runs.setdefault(line["run_id"], {}).setdefault((line["backend"], row), []).append(
                np.array(line["latencies_ms"].split(), dtype=float))
        return cls(tuple(floor_ms), floor_ms, tuple(runs.values()), lines[0]["gpu"])

    @cached_property
    def levels(self) -> list[dict[tuple[str, Row], float]]:
        """Of each run, the mean log median of every row's blocks."""
        return [{key: float(np.mean([np.log(np.median(block)) for block in blocks])) for key, blocks in run.items()}
                for run in self.samples]

    @cached_property
    def centre(self) -> dict[tuple[str, Row], float]:
        """The mean of `levels`."""
        return {key: float(np.mean([run[key] for run in self.levels])) for key in self.levels[0]}

    @cached_property
    def ratio_sd(self) -> dict[Row, float]:
        """Standard deviation between runs of a row's log ratio."""
        return {row: float(np.std([run[RIVAL, row] - run["jfa", row] for run in self.levels], ddof=1))
                for row in self.rows}

    @cached_property
    def process_share(self) -> dict[Row, float]:
        """Of a row's scatter between runs, as a standard deviation, what the scatter of its blocks doesn't explain."""
        share = {}
        for row in self.rows:
            ratios = [[np.log(np.median(rival) / np.median(ours))
                       for rival, ours in zip(run[RIVAL, row], run["jfa", row], strict=True)] for run in self.samples]
            within = float(np.mean([np.var(blocks, ddof=1) / len(blocks) for blocks in ratios]))
            share[row] = float(np.sqrt(max(0.0, 1 - within / self.ratio_sd[row] ** 2)))
        return share

    def moves(self, chosen: int, row: Row, clock: float, random: np.random.Generator) -> dict[str, float]:
        """By how much each backend's log latencies of a row are moved in a made-up run."""
        n = len(self.samples)
        if n < MIN_RUNS:
            return {backend: clock + random.normal(0, ASSUMED_ROW_SD / np.sqrt(2)) for backend in ("jfa", RIVAL)}
        share = self.process_share[row]
        further = share * np.sqrt((1 - SMOOTHING**2) * n / (n - 1)) - 1
        moved = {backend: further * (self.levels[chosen][backend, row] - self.centre[backend, row])
                 for backend in ("jfa", RIVAL)}
        return moved | {"jfa": moved["jfa"] + random.normal(0, SMOOTHING * share * self.ratio_sd[row])}

    def run(self, name: str, random: np.random.Generator, slower: Mapping[Row, float] | None = None) -> Run:
        """A made-up run; ``slower`` multiplies latencies of `jfa`."""
        chosen = int(random.integers(len(self.samples)))
        real = self.samples[chosen]
        clock = random.normal(0, ASSUMED_CLOCK_SD)
        records, blocks = [], {}
        for row in self.rows:
            sides = {backend: real[backend, row] for backend in ("jfa", RIVAL)}
            n = min(map(len, sides.values()))
            drawn = random.integers(n, size=n).tolist()
            moves = self.moves(chosen, row, clock, random)
            for backend, side in sides.items():
                factor = np.exp(moves[backend]) * ((slower or {}).get(row, 1.0) if backend == "jfa" else 1.0)
                record = self.record(name, row, backend)
                records.append(record)
                blocks[record.key] = tuple(
                    factor * side[index][random.integers(len(side[index]), size=len(side[index]))] for index in drawn)
        return Run(Path(f"{name}.csv"), tuple(records), blocks)

    def record(self, name: str, row: Row, backend: str) -> Record:
        """As far as the gate reads it: times stay those of the template, `write_run` corrects them."""
        return TEMPLATES[(*row, backend)].model_copy(update={
            "run_id": name, "floor_ms": self.floor_ms[row], "gpu": self.gpu})

    def outcome(self, seed: int, slower: Mapping[Row, float] | None = None, reruns: int = RERUNS,
                settings: Settings = DEFAULTS) -> tuple[GateResult, int]:
        """What the gate says of a run after A/A runs, with a baseline from among them; and how many re-runs it took."""
        random = np.random.default_rng(seed)
        before = [self.run(f"aa-{index}", random) for index in range(NOISE_RUNS)]
        noise = Noise(noise_rows(before))
        runs = [self.run("now", random, slower)]
        result = gate(runs, before[2], noise, settings)
        for index in range(reruns):
            again = result.undecided_case_ids
            if not again:
                break
            runs.append(only(self.run(f"again-{index}", random, slower), again))
            result = gate(runs, before[2], noise, settings)
        return result, len(runs) - 1


def only(run: Run, case_ids: tuple[str, ...]) -> Run:
    """The rows of some cases, as a re-run has them."""
    return Run(run.csv, tuple(record for record in run.records if record.case_id in case_ids),
               {key: blocks for key, blocks in run.blocks.items() if key[0] in case_ids})


@dataclass(frozen=True)
class Tally:
    """Of many made-up runs with one row slower by ``slowdown``, what the gate said."""

    slowdown: float
    runs: int
    caught: int  # the row was SLOW
    false_alarms: int  # another row was SLOW
    undecided: int  # runs with a row that stayed UNDECIDED
    rerun: int  # runs that needed a re-run
    verdicts: Counter  # of the slowed row

    @property
    def caught_share(self) -> float:
        """Of the runs."""
        return self.caught / self.runs

    @property
    def false_alarm_share(self) -> float:
        """Of the runs."""
        return self.false_alarms / self.runs


def tally(truth: Truth, slowdown: float, runs: int, reruns: int = RERUNS, settings: Settings = DEFAULTS) -> Tally:
    """``runs`` made-up runs; the slowed row is each of the rows in turn."""
    caught = false_alarms = undecided = rerun = 0
    verdicts: Counter = Counter()
    for index in range(runs):
        row = truth.rows[index % len(truth.rows)] if slowdown else None
        seed = index + round(1e6 * slowdown)  # other runs for each slow-down
        result, taken = truth.outcome(seed, {row: 1 + slowdown} if row else None, reruns, settings)
        slow = [(each.record.case, each.record.direction) for each in result.rows if each.verdict is Verdict.SLOW]
        caught += row in slow
        false_alarms += any(each != row for each in slow)
        undecided += result.count(Verdict.UNDECIDED) > 0
        rerun += taken > 0
        verdicts.update(each.verdict.value for each in result.rows if (each.record.case, each.record.direction) == row)
    return Tally(slowdown, runs, caught, false_alarms, undecided, rerun, verdicts)


def write_run(run: Run, csv: Path, **changes: object) -> Path:
    """A made-up run as the files of a real one; ``changes`` are to all records."""
    csv.parent.mkdir(parents=True, exist_ok=True)
    for path in (csv, samples_path(csv)):
        path.unlink(missing_ok=True)
    append_records(csv, [Record.model_validate({**record.model_dump(), **_times(run, record), **changes})
                         for record in run.records])
    append_samples(samples_path(csv), [
        Sample(run.run_id, *record.key, number, index, latency)
        for record in run.records for number, block in enumerate(run.blocks[record.key])
        for index, latency in enumerate(block)])
    return csv


def _times(run: Run, record: Record) -> dict[str, object]:
    latencies = np.concatenate(run.blocks[record.key])
    latency, (p20, p80) = float(np.median(latencies)), np.percentile(latencies, [20, 80])
    rival = float(np.median(np.concatenate(run.blocks[rival_key(record.key)])))
    assert record.floor_ms
    return {"latency_ms": latency, "latency_ms_p20": p20, "latency_ms_p80": p80, "latency_ms_ci_low": latency,
            "latency_ms_ci_high": latency, "n_samples": len(latencies), "tflops": record.flops / latency / 1e9,
            "floor_share": record.floor_ms / latency, "speedup_vs_fa4": rival / latency,
            "speedup_vs_fa4_ci_low": rival / latency, "speedup_vs_fa4_ci_high": rival / latency}


TEMPLATES = {(record.case, record.direction, record.backend): record for record in load_records(GEM)
             if record.scope == "kernel" and record.status is Status.OK}
