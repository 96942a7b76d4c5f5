"""A worker process: one backend on one device, driven by JSON lines (`harness.worker_client` is the other end).

Requests come on standard input, answers go to what was standard output; whatever libraries print goes to standard
error. A request is ``{"command": NAME, ...}``. Its answer is any number of ``{"event": ...}`` lines and then one
``{"reply": {...}}`` or ``{"error": {"status": ..., "message": ...}}`` line. Events of `prepare`: ``stage`` before each
call that might never return, and ``row`` as soon as what became of a row is known.

A process whose CUDA context is broken (an illegal address) reports and exits. End of input ends the process at once.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

import torch

from harness.backends import registry
from harness.backends.base import Backend, Operation, Unsupported
from harness.backends.packages import last_line
from harness.cases import Case
from harness.ceilings import measure_ceilings
from harness.correctness import Oracle, Verdict, poison
from harness.environment import describe_device
from harness.errors import UserError
from harness.inputs import Inputs, make_inputs
from harness.records import Status
from harness.telemetry import Monitor, merge
from harness.timing import BlockPlan, Timer
from harness.worker_client import EXIT_BROKEN_DEVICE

RowKey = tuple[str, str]  # direction, scope
Emit = Callable[[dict[str, Any]], None]


def status_of(error: BaseException) -> Status:
    """The status of a row whose computation raised ``error``."""
    if isinstance(error, (Unsupported, NotImplementedError)):
        return Status.UNSUPPORTED
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "out of memory" in str(error).lower():
        return Status.OOM
    return Status.IMPORT_ERROR if isinstance(error, ImportError) else Status.CRASH


class Session:
    """The state between commands: a backend, a device, and at most one bound case."""

    def __init__(self, backend: str, options: Mapping[str, Any], device: str) -> None:
        self.device = torch.device(device)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        self.backend: Backend = registry.create(backend, options)
        self.timer = Timer(self.device)
        self.monitor = Monitor(self.device)
        self._inputs: Inputs | None = None
        self._operation: Operation | None = None
        self._peak_bytes = 0

    def hello(self) -> dict[str, Any]:
        """Whether the backend can run here, and on what."""
        availability = self.backend.availability(self.device)
        return {"available": availability.available, "version": availability.version, "reason": availability.reason,
                "import_failed": availability.import_failed, "timed": self.device.type in self.backend.timed_on,
                "environment": asdict(describe_device(self.device)), "telemetry_problem": self.monitor.problem}

    def ceilings(self) -> dict[str, Any]:
        """See `harness.ceilings`."""
        return {**asdict(measure_ceilings(self.device)), **self.release()}

    def prepare(self, emit: Emit, case: Mapping[str, Any], rows: Sequence[Sequence[str]],
                check: Mapping[str, Any]) -> dict[str, Any]:
        """Bind a case and check its rows, each reported by an event."""
        self.release()
        wanted = self._undeclined(emit, Case.from_json(case), [(row[0], row[1]) for row in rows])
        if wanted:
            _Check(self, emit, Case.from_json(case), wanted, check).run()
        return self._memory()

    def bind(self, emit: Emit, case: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Bind a case that was checked before, and run each row once."""
        self.release()
        inputs = make_inputs(Case.from_json(case), self.device)
        operation = self.backend.prepare(inputs)
        for scope in dict.fromkeys(row[1] for row in rows):
            for direction in ("fwd", "bwd"):
                if direction == "fwd" or [direction, scope] in [list(row) for row in rows]:
                    emit({"event": "stage", "direction": direction, "scope": scope, "doing": "first call"})
                    call_of(operation, direction, scope)()
                    self.synchronize()
        self.keep(inputs, operation)
        return self._memory()

    def sample(self, direction: str, scope: str, plan: Mapping[str, Any]) -> dict[str, Any]:
        """One block of samples of a bound row, with NVML readings around it."""
        before = self.monitor.read()
        latencies = self.timer.sample(self.call(direction, scope), BlockPlan(**plan))
        return {"latencies_ms": latencies, "telemetry": asdict(merge([before, self.monitor.read()]))}

    def call(self, direction: str, scope: str) -> Callable[[], None]:
        """What runs a bound row once."""
        assert self._operation is not None, "no case is bound"
        return call_of(self._operation, direction, scope)

    def release(self) -> dict[str, Any]:
        """Let go of the bound case and of all cached memory."""
        self._inputs = self._operation = None
        memory = self._memory()
        self.start_peak()
        self._peak_bytes = memory["held_bytes"]
        return memory

    def start_peak(self) -> None:
        """`torch.cuda.max_memory_allocated` counts from here on; the peak of `_memory` goes on."""
        if self.device.type == "cuda":
            self._peak_bytes = max(self._peak_bytes, torch.cuda.max_memory_reserved(self.device))
            torch.cuda.reset_peak_memory_stats(self.device)

    def keep(self, inputs: Inputs, operation: Operation) -> None:
        """Bind; `sample` runs this operation."""
        self._inputs, self._operation = inputs, operation

    def synchronize(self) -> None:
        """Wait for the device; raises what its kernels failed with."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _memory(self) -> dict[str, Any]:
        """Device bytes that this process holds now, and the most it held since the last release."""
        if self.device.type != "cuda":
            return {"held_bytes": 0, "peak_bytes": 0}
        gc.collect()
        torch.cuda.empty_cache()
        return {"held_bytes": torch.cuda.memory_reserved(self.device),
                "peak_bytes": max(self._peak_bytes, torch.cuda.max_memory_reserved(self.device))}

    def _undeclined(self, emit: Emit, case: Case, rows: list[RowKey]) -> list[RowKey]:
        """The rows that the backend doesn't decline; a backward needs its forward."""
        reasons = {direction: self.backend.declines(case, direction, self.device) for direction in ("fwd", "bwd")}
        if reasons["fwd"] and not reasons["bwd"]:
            reasons["bwd"] = f"the forward: {reasons['fwd']}"
        for direction, scope in rows:
            if reasons[direction]:
                emit(row_event(direction, scope, Status.UNSUPPORTED, str(reasons[direction])))
        return [row for row in rows if not reasons[row[0]]]


class _Check:
    """Runs and checks the rows of one case, scope by scope, forward before backward, and binds what can be timed.

    On a GPU the first scope is run on an operation of its own first: autotuning runs kernels many times on the same
    outputs, which would hide what the chosen one leaves unwritten. The second, in poisoned memory, is checked.
    """

    def __init__(self, session: Session, emit: Emit, case: Case, rows: list[RowKey],
                 check: Mapping[str, Any]) -> None:
        self.session, self.emit, self.case, self.rows = session, emit, case, rows
        self.check = check
        self.failed: dict[RowKey, tuple[Status, str]] = {}
        self.compile_s: dict[RowKey, float] = {}

    def run(self) -> None:
        session = self.session
        scopes = list(dict.fromkeys(scope for _, scope in self.rows))
        try:
            self._stage("inputs")
            inputs = make_inputs(self.case, session.device)
            self.checksums = inputs.checksums()
            oracle = Oracle(inputs, self.check["max_pairs"], self.check["tolerance_factor"])
            self._stage("preparation")
            begin = time.perf_counter()
            operation = session.backend.prepare(inputs)
            self.prepare_s = time.perf_counter() - begin
            if session.device.type == "cuda":
                self._first_calls(operation, scopes[0])
                del operation
                gc.collect()
                poison(inputs.problem, ("fwd", "bwd"), session.device)
                operation = session.backend.prepare(inputs)
        except Exception as error:
            for row in self.rows:
                self._fail(row, error, report=True)
            return
        for scope in scopes:
            self._check_scope(operation, inputs, oracle, scope)
        session.keep(inputs, operation)

    def _first_calls(self, operation: Operation, scope: str) -> None:
        for direction in self._directions(scope):
            if (direction, scope) not in self.failed:
                self._first_call(operation, direction, scope)

    def _first_call(self, operation: Operation, direction: str, scope: str) -> bool:
        """Runs a row and takes the time; False, with what went wrong noted, if it raised."""
        self._stage("first call", direction, scope)
        begin = time.perf_counter()
        try:
            call_of(operation, direction, scope)()
            self.session.synchronize()
        except Exception as error:
            self._fail((direction, scope), error)
            return False
        seconds = time.perf_counter() - begin + (self.prepare_s if direction == "fwd" else 0.0)
        self.compile_s.setdefault((direction, scope), seconds)
        return True

    def _check_scope(self, operation: Operation, inputs: Inputs, oracle: Oracle, scope: str) -> None:
        for direction in self._directions(scope):
            row = (direction, scope)
            if row not in self.failed:
                try:
                    poison(inputs.problem, (direction,), self.session.device)
                except Exception as error:
                    self._fail(row, error)
            if row not in self.failed:
                self.session.start_peak()
                others = oracle.nbytes + self.session.timer.nbytes
                if self._first_call(operation, direction, scope):
                    self._report(row, operation, inputs, oracle, self._peak_mib(others))
                    continue
            status, message = self.failed[row]
            if row in self.rows:
                self.emit(row_event(direction, scope, status, message, impl=operation.impl.get(direction, "")))

    def _report(self, row: RowKey, operation: Operation, inputs: Inputs, oracle: Oracle,
                peak_mib: float | None) -> None:
        direction, scope = row
        if row not in self.rows:
            return
        self._stage("check", direction, scope)
        try:
            outputs = operation.outputs(scope)  # type: ignore[arg-type]
            verdict = oracle.check_forward(outputs) if direction == "fwd" else oracle.check_backward(outputs)
            written = [name for name, sums in inputs.checksums().items() if not sums.equal(self.checksums[name])]
            self.session.synchronize()
        except Exception as error:
            self._fail(row, error, report=True)
            return
        device_type = self.session.device.type
        if written:
            status, message = Status.WRONG, f"{', '.join(written)}: the backend wrote to its inputs"
        elif verdict.message:
            status, message = Status.WRONG, verdict.message
        elif device_type not in self.session.backend.timed_on:
            status, message = Status.UNTIMED, f"correct; its times on a {device_type} would mean nothing"
        else:
            status, message = Status.OK, operation.remarks.get(direction, "")
        self.emit(row_event(direction, scope, status, message, operation.impl.get(direction, ""), verdict,
                            self.compile_s[row], peak_mib))

    def _fail(self, row: RowKey, error: Exception, report: bool = False) -> None:
        """Notes a row that raised, and the backward that needs it; ends the process if the device is broken."""
        status, text = status_of(error), last_line(error)
        self.failed[row] = (status, text)
        if row[0] == "fwd":
            self.failed.setdefault(("bwd", row[1]), (status, f"its forward: {text}"))
        broken = is_broken(self.session)
        if (report or broken) and row in self.rows:
            self.emit(row_event(*row, status, text))
        if broken:
            os._exit(EXIT_BROKEN_DEVICE)
        error.__traceback__ = error.__context__ = None  # frames hold tensors
        gc.collect()

    def _directions(self, scope: str) -> list[str]:
        """A forward always, for its backward; a backward if it is wanted."""
        return ["fwd", "bwd"] if ("bwd", scope) in self.rows else ["fwd"]

    def _stage(self, doing: str, direction: str = "", scope: str = "") -> None:
        """Says what comes next, to the other end and, with the time of day, to the worker's log."""
        print(" ".join([time.strftime("%H:%M:%S"), self.case.name, direction, scope, doing]).replace("  ", " "),
              flush=True)
        self.emit({"event": "stage", "direction": direction, "scope": scope, "doing": doing})

    def _peak_mib(self, others_bytes: int) -> float | None:
        if self.session.device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self.session.device) - others_bytes) / 2**20


def call_of(operation: Operation, direction: str, scope: str) -> Callable[[], None]:
    """The operation's method for a row."""
    methods = {("fwd", "kernel"): operation.forward_kernel, ("bwd", "kernel"): operation.backward_kernel,
               ("fwd", "operation"): operation.forward_operation, ("bwd", "operation"): operation.backward_operation}
    return methods[direction, scope]


def is_broken(session: Session) -> bool:
    """Whether the CUDA context is beyond use, as after an illegal address."""
    try:
        session.synchronize()
    except Exception:
        return True
    return False


def row_event(direction: str, scope: str, status: Status, message: str, impl: str = "",
              verdict: Verdict | None = None, compile_s: float | None = None,
              peak_mib: float | None = None) -> dict[str, Any]:
    """What became of a row; `harness.fleet` reads it."""
    return {"event": "row", "direction": direction, "scope": scope, "status": status.value, "message": message,
            "impl": impl, "errors": dict(verdict.errors) if verdict else {},
            "share": verdict.share if verdict else None, "compile_s": compile_s, "peak_memory_mib": peak_mib}


def serve(requests: queue.Queue[str], answers: TextIO) -> None:
    """Answers requests for ever; the first must be ``hello`` with ``backend``, ``options`` and ``device``."""
    session: Session | None = None

    def emit(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    while True:
        request = json.loads(requests.get())
        command = request.pop("command")
        try:
            if session is None:
                session = Session(**request)
                request = {}
            method = getattr(session, command)
            emit({"reply": method(emit, **request) if command in ("prepare", "bind") else method(**request)})
        except Exception as error:
            message = str(error) if isinstance(error, UserError) else last_line(error)
            emit({"error": {"status": status_of(error).value, "message": message}})
            if session is not None and is_broken(session):
                os._exit(EXIT_BROKEN_DEVICE)
            del error


def main() -> None:
    """Entry point of ``python -m harness.worker``."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    requests: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in lines:
            requests.put(line)
        os._exit(0)  # the other end is gone, and nobody waits for what is running

    threading.Thread(target=listen, daemon=True).start()
    serve(requests, answers)


if __name__ == "__main__":
    main()
