"""Do the ways to a latency agree: our timer, paused and sustained, TritonBench's engine in it, and its runner?

    python -m harness.integrations.tritonbench.agreement [CONFIG] --out CSV

Per case, in one process and in turns: blocks of all engines on the same bound operation, then the operator under
TritonBench's runner, then all engines again. Kernel scope. do_bench makes no pauses, so what it has to agree with is
our timer without them: exit status 1 if engine or runner is further from `cuda_events_sustained` than `LIMIT`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from harness.cases import Case, expand
from harness.config import BenchConfig, Engine, load_config
from harness.errors import UserError
from harness.integrations.tritonbench import do_bench, runner
from harness.measurement import plan_block
from harness.records import Status
from harness.rows import Row
from harness.runner import choose_backends, choose_cases, choose_devices
from harness.worker import Session

LIMIT = 0.05
SCOPE = "kernel"
ENGINES: tuple[str, ...] = get_args(Engine)
OURS = "cuda_events_sustained"
THEIRS = ("tritonbench_ms", "operator_ms")
COLUMNS = ("case", "case_id", "backend", "direction", *(f"{engine}_ms" for engine in ENGINES), "operator_ms", "gpu",
           "driver", "torch", "triton", "revision", "run")


def measure(path: Path, config: BenchConfig, device: str, cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Rows by `COLUMNS`, case by case. Raises `UserError` for a backend that can't run here or a row that isn't ok."""
    begun = datetime.now(timezone.utc)
    sessions = {backend.name: Session(backend.backend, backend.options, device)
                for backend in choose_backends(config, None)}
    hellos = {name: session.hello() for name, session in sessions.items()}
    for name, hello in hellos.items():
        if not hello["available"]:
            raise UserError(f"{name}: {hello['reason']}")
    for case in cases:
        for name, session in sessions.items():
            _prepare(session, case, config, f"{name} on {case.name}")
        taken: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for engine in ENGINES:
            _blocks(sessions, config, engine, taken)
        theirs = {direction: _operator(path, config, case, direction, device) for direction in config.directions}
        for engine in reversed(ENGINES):
            _blocks(sessions, config, engine, taken)
        for name, session in sessions.items():
            session.release()
            environment = hellos[name]["environment"]
            for direction in config.directions:
                medians = {engine: statistics.median(taken[name, direction, engine]) for engine in ENGINES}
                yield {"case": case.name, "case_id": case.case_id, "backend": name, "direction": direction,
                       **{f"{engine}_ms": f"{median:.6g}" for engine, median in medians.items()},
                       "operator_ms": f"{theirs[direction][name]:.6g}",
                       **{column: environment[column] for column in ("gpu", "driver", "torch", "triton")},
                       "revision": do_bench.REVISION[:12], "run": f"{begun:%Y-%m-%dT%H:%MZ}"}


def _prepare(session: Session, case: Case, config: BenchConfig, what: str) -> None:
    events: list[dict[str, Any]] = []
    session.prepare(events.append, case.to_json(), [(direction, SCOPE) for direction in config.directions],
                    config.check.model_dump(mode="json"))
    for event in events:
        if event["event"] == "row" and event["status"] != Status.OK.value:
            raise UserError(f"{what}, {event['direction']}: {event['status']}: {event['message']}")


def _blocks(sessions: dict[str, Session], config: BenchConfig, engine: Any,
            taken: dict[tuple[str, str, str], list[float]]) -> None:
    for direction in config.directions:
        for name, session in sessions.items():
            plan = replace(plan_block(Row(direction, SCOPE), config.timing), engine=engine)
            taken[name, direction, engine] += session.sample(direction, SCOPE, asdict(plan))["latencies_ms"]


def _operator(path: Path, config: BenchConfig, case: Case, direction: str, device: str) -> dict[str, float]:
    """Latencies by backend, under TritonBench's runner."""
    arguments = ["--mode", direction, "--metrics", "latency", "--device", device.partition(":")[0], "--skip-print",
                 "--only", ",".join(backend.name for backend in config.backends)]
    result = runner.run(path, arguments, SCOPE, [case.case_id])
    (_, metrics), = result.result
    return {backend.name: metrics[backend.name].latency.p50 for backend in config.backends}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=Path("configs/tritonbench.yaml"))
    parser.add_argument("--case", action="append", help="only this case, by id or name; may be repeated")
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    arguments = parser.parse_args()
    apart = 0.0
    try:
        if problem := do_bench.missing(runner.MODULES):
            raise UserError(problem)
        config = load_config(arguments.config)
        cases = choose_cases(expand(config), arguments.case)
        device = choose_devices(None)[0]
        with arguments.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for row in measure(arguments.config, config, device, cases):
                writer.writerow(row)
                file.flush()
                print(" ".join(str(row[column]) for column in COLUMNS[:8]), file=sys.stderr)
                apart = max(apart, *(abs(float(row[column]) / float(row[f"{OURS}_ms"]) - 1) for column in THEIRS))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"furthest from {OURS}: {apart:.1%}")
    return 0 if apart <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
