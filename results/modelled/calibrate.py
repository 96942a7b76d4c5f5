"""Fits the timing model's free figures on half of the H200's measurements, and checks it on the other half.

    python results/modelled/calibrate.py check [--machine FILE]     both halves, and the table h200_calibration.csv
    python results/modelled/calibrate.py fit                        new values of the free figures, on one half alone
    python results/modelled/calibrate.py clocks                     the same of the two figures of the clock

A row is one case, direction and variant of `results/baselines/nvidia-h200`, kernel scope; of a variant that was
measured several times, the median. Its half, and what is said of an error, are those of `harness.model_check`.
Of ``earlier/`` the forward's rows count too, where nothing newer is there: those kernels take a maximum in each step,
which is ``stale_max: false`` of today's. Its backward is another kernel. A row is predicted with the switches that its
variant names, not with those that today's rule picks; of today's source, whatever the kernel was when it was measured.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness.cases import expand  # noqa: E402
from harness.config import load_config  # noqa: E402
from harness.inputs import make_problem  # noqa: E402
from harness.model_check import HELD, WORST_LIMIT, Point, half, score  # noqa: E402
from kernels.hopper.backward_options import HopperBackwardOptions  # noqa: E402
from kernels.hopper.select import MASKED_SECTION_MB  # noqa: E402
from kernels.simulator.timing import Machine, load_machine, predict  # noqa: E402

MEASURED = ROOT / "results/baselines/nvidia-h200"
#: Files of rows with their config; of the second group the forward, as far as the first group has not the same variant.
FILES = ({"gem.csv": "gem.yaml", "ablation_fwd.csv": "ablation_fwd.yaml", "ablation_bwd.csv": "ablation_bwd.yaml"},
         {"earlier/gem.csv": "gem.yaml", "earlier/ablation_fwd.csv": "ablation_fwd.yaml"})
CONFIGS = tuple(FILES[0].values())
TABLE = ROOT / "results/modelled/h200_calibration.csv"
#: The free figures, each with the range that it may be fitted in.
FREE: dict[str, tuple[float, float]] = {
    "chain": (1.0, 3.0), "port_clocks": (0, 3), "tensor_clocks": (20, 200), "wake_clocks": (10, 120),
    "l2_clocks": (300, 1100), "hbm_clocks": (500, 2000), "l2_mib": (15, 50), "reduce_ratio": (1, 6),
    "launch_us": (1, 10),
}
#: Of the backward's names: what the letters before the stages mean, and the words.
_STAGES = {"q": "q_stages", "o": "do_stages", "k": "kv_stages", "s": "dq_stages", "d": "ds_stages"}
_WORDS = {"alt": "alternate", "skip": "skip_half", "l2": "l2_hints", "serp": "serpentine",
          "hold": "hold", "pair": "pairs", "rot": "rotate", "keep": "keep_dq", "count": "counted", "turn": "turns",
          "det": "deterministic"}


@dataclass(frozen=True)
class Row:
    """One variant of one case: what was measured, and how to predict it."""

    run: str  # the folder of its file
    case: str
    case_id: str
    direction: str
    variant: str
    options: str  # JSON
    schedule: str | None
    ms: float
    clock_mhz: float

    @property
    def held(self) -> bool:
        """Whether it is in the half that nothing is fitted on."""
        return half(self.case_id, self.direction, self.variant) == HELD


def measured() -> list[Row]:
    """All rows, in the files' order."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for files, direction in zip(FILES, ("", "fwd"), strict=True):
        new: dict[tuple[str, str, str], list[Row]] = {}
        for name, config in files.items():
            for one in _rows(name, ROOT / "configs" / config, direction):
                new.setdefault((one.case_id, one.direction, one.variant), []).append(one)
        found |= {what: rows for what, rows in new.items() if what not in found}
    return [Row(**{**vars(rows[0]), "ms": statistics.median(row.ms for row in rows),
                   "clock_mhz": statistics.median(row.clock_mhz for row in rows)}) for rows in found.values()]


def _rows(name: str, config: Path, direction: str) -> Iterator[Row]:
    """Those of one file, of a ``direction`` or of both ("")."""
    options = _options(config)
    for row in csv.DictReader((MEASURED / name).open()):
        if row["scope"] != "kernel" or row["status"] != "ok" or not row["impl"].startswith("hopper/"):
            continue
        if direction not in row["direction"]:
            continue
        if row["direction"] == "fwd":
            asked = options[row["backend"]].get("fwd") or {}
            switches, schedule = _that_ran(row["impl"], asked, bool(row["causal"] == "True" or row["window"]))
        else:
            switches, schedule = backward_that_ran(row["impl"])
        yield Row(str(Path(name).parent), row["case"], row["case_id"], row["direction"], row["impl"],
                  json.dumps(switches), schedule, float(row["latency_ms"]), float(row["sm_clock_mhz"]))


def _that_ran(impl: str, switches: dict[str, Any], masked: bool) -> tuple[dict[str, Any], str]:
    """Switches and schedule of the forward that a record names, whatever the rule and the defaults are by now."""
    _, variant, schedule = impl.partition("+")[0].split("/")
    known = {"variant": variant.removesuffix("-stale"), "stale_max": variant.endswith("-stale")}
    if masked and "variant" not in switches:
        known["section_mb"] = MASKED_SECTION_MB  # the rule's
    return {**known, **switches, **{key: known[key] for key in ("variant", "stale_max")}}, schedule


def backward_that_ran(impl: str) -> tuple[dict[str, Any], str]:
    """Switches and schedule of the backward that a record names, such as ``hopper/q2o2k1s2d2-own4/zigzag``.

    Today's rule may pick other switches for the row, and the kernel may have changed under the same name: this says
    what was asked of it. Raises `ValueError` for a name that today's options don't have.
    """
    _, variant, schedule = impl.partition("+")[0].split("/")
    stages, *words = variant.split("-")
    switches: dict[str, Any] = dict.fromkeys(_WORDS.values(), False)
    for stage, number in re.findall(r"([qoksd])(\d)", stages):
        switches[_STAGES[stage]] = int(number)
    for word in words:
        if word == "add":
            switches["direct_dq"] = False
        elif word.startswith("own") and word[3:].isdigit():
            switches["owned_blocks"] = int(word[3:])
        elif word in _WORDS:
            switches[_WORDS[word]] = True
    if (token := HopperBackwardOptions.make(switches).token) != variant:
        raise ValueError(f"{impl}: not a name of today's options, which would be {token}")
    return switches, schedule


def _options(config: Path) -> dict[str, dict[str, Any]]:
    return {backend.name or backend.backend: dict(backend.options) for backend in load_config(config).backends}


_CASES: dict[str, Any] = {}


def _predict(job: tuple[Row, Machine]) -> tuple[float, float, str, dict[str, float]] | None:
    import torch

    torch.set_num_threads(1)
    row, machine = job
    if not _CASES:
        _CASES.update({case.case_id: case for config in CONFIGS
                       for case in expand(load_config(ROOT / "configs" / config))})
    problem = make_problem(_CASES[row.case_id], "cpu")
    try:
        made = predict("hopper", problem, row.direction, machine,  # type: ignore[arg-type]
                       json.loads(row.options) or None, row.schedule)
    except ValueError:  # of what the model refuses
        return None
    return made.ms, made.clock_mhz, made.bound_by, dict(made.shares)


def predictions(rows: list[Row], machine: Machine, pool: ProcessPoolExecutor) -> list[Any]:
    """``(ms, clock, bound by, shares)`` of each row, None where the model refuses it."""
    return list(pool.map(_predict, [(row, machine) for row in rows], chunksize=4))


def predictable(machine: Machine, pool: ProcessPoolExecutor, held: bool = True) -> tuple[list[Row], list[Any]]:
    """Measured rows with their predictions, the held half among them or not; says which the model refuses."""
    rows = [row for row in measured() if held or not row.held]
    both = list(zip(rows, predictions(rows, machine, pool), strict=True))
    refused = [f"{row.case} {row.variant}" for row, found in both if found is None]
    if refused:
        print(f"refused by the model: {', '.join(refused)}")
    return [row for row, found in both if found], [found for _, found in both if found]


def summary(rows: list[Row], ms: list[float]) -> str:
    """Median and largest error, and how often the order of two variants of a case is right."""
    points = [Point(row.run, "", row.case_id, row.case, row.direction, row.variant, row.variant, row.ms, modelled)
              for row, modelled in zip(rows, ms, strict=True)]
    found = score(points)
    assert found.median is not None
    assert found.worst is not None
    over = sum(abs(point.error) > WORST_LIMIT for point in points)
    return (f"{found.rows} rows: median error {found.median:.1%}, largest {found.worst.error:+.1%} "
            f"({found.worst.name}), {over} beyond {WORST_LIMIT:.0%}; order right in {found.ordered} of "
            f"{found.pairs} pairs")


def check(machine: Machine, pool: ProcessPoolExecutor) -> None:
    """Both halves; writes the table."""
    rows, found = predictable(machine, pool)
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "direction", "variant", "half", "measured_ms", "modelled_ms", "error", "measured_mhz",
                         "modelled_mhz", "bound_by"])
        for row, (ms, clock, bound_by, _) in zip(rows, found, strict=True):
            writer.writerow([row.case, row.direction, row.variant, "held" if row.held else "fitted", f"{row.ms:.4f}",
                             f"{ms:.4f}", f"{ms / row.ms - 1:+.3f}", f"{row.clock_mhz:.0f}", f"{clock:.0f}", bound_by])
    for held in (False, True):
        for direction in ("fwd", "bwd", ""):
            part = [(row, each[0]) for row, each in zip(rows, found, strict=True)
                    if row.held == held and direction in row.direction]
            if part:
                print("held  " if held else "fitted", direction or "both",
                      summary([row for row, _ in part], [ms for _, ms in part]))


def fit(machine: Machine, pool: ProcessPoolExecutor, rounds: int = 2, every: int = 2) -> None:
    """Gauss-Newton on the logarithms of the errors of every ``every``-th row, held near the start by a weak prior."""
    rows = predictable(machine, pool, held=False)[0][::every]
    wanted = np.log([row.ms for row in rows])
    names = list(FREE)
    values = np.array([float(getattr(machine, name)) for name in names])
    scale = np.array([high - low for low, high in FREE.values()])
    for turn in range(rounds):
        def residual(point: np.ndarray) -> np.ndarray:
            changed = machine.changed(**dict(zip(names, point.tolist(), strict=True)))
            return np.log([each[0] for each in predictions(rows, changed, pool)]) - wanted

        here = residual(values)
        print(f"round {turn}: mean square {np.mean(here**2):.5f}, median {np.median(np.abs(here)):.3f}", flush=True)
        step = scale * 0.1
        columns = []
        for at, name in enumerate(names):
            moved = values.copy()
            moved[at] += step[at] if moved[at] + step[at] <= FREE[name][1] else -step[at]
            columns.append((residual(moved) - here) / (moved[at] - values[at]) * scale[at])
        slopes = np.array(columns).T
        clipped = np.clip(here, -0.3, 0.3)
        move = np.linalg.solve(slopes.T @ slopes + 0.02 * len(rows) * 0.01 * np.eye(len(names)), -slopes.T @ clipped)
        values = np.clip(values + np.clip(move, -0.3, 0.3) * scale, *np.array(list(FREE.values())).T)
        print({name: round(float(value), 3) for name, value in zip(names, values, strict=True)}, flush=True)
    last = residual(values)
    print(f"at the end: mean square {np.mean(last**2):.5f}, median {np.median(np.abs(last)):.3f}")


def clocks(machine: Machine, pool: ProcessPoolExecutor) -> None:
    """Least squares on the measured clocks."""
    from scipy.optimize import least_squares

    rows, found = predictable(machine, pool, held=False)
    ms = np.array([row.ms for row in rows])
    clock = np.array([row.clock_mhz for row in rows])
    tensor = np.array([each[3]["tensor cores"] for each in found])

    def wrong(point: np.ndarray) -> np.ndarray:
        return machine.clock_mhz / (1 + point[0] * tensor * ms / (ms + point[1])) / clock - 1

    best = least_squares(wrong, [0.2, 2], bounds=(0, [1, 50]))
    print(dict(zip(("tensor_load", "power_window_ms"), best.x.round(3).tolist(), strict=True)),
          f"median error {np.median(np.abs(best.fun)):.1%}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["check"]
    chosen = load_machine(rest[rest.index("--machine") + 1] if "--machine" in rest else "h200")
    with ProcessPoolExecutor(2) as workers:
        {"check": check, "fit": fit, "clocks": clocks}[what](chosen, workers)
