from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tiny_cases import tiny_case

from harness.backends.base import Unsupported
from harness.cases import Case
from harness.records import Status
from harness.worker import Session, status_of

CHECK = {"max_pairs": 10**8, "tolerance_factor": 2.0}
ROWS = [["fwd", "kernel"], ["fwd", "operation"], ["bwd", "kernel"], ["bwd", "operation"]]
PLAN = {"host_ahead": False, "min_samples": 3, "max_samples": 3, "warmup": 1}
CASE = tiny_case("case")


def session(fault: str = "", backend: str = "FakeBackend", **options: Any) -> Session:
    return Session(f"fake_backends:{backend}", {"faults": {"case": fault}, **options}, "cpu")


def prepare(worker: Session, rows: list[list[str]] = ROWS, case: Case = CASE) -> dict[tuple[str, str], dict[str, Any]]:
    """The row events by row; each row has exactly one."""
    events: list[dict[str, Any]] = []
    worker.prepare(events.append, case.to_json(), rows, CHECK)
    found = [event for event in events if event["event"] == "row"]
    assert len({(event["direction"], event["scope"]) for event in found}) == len(found)
    json.dumps(events, allow_nan=False)
    return {(event["direction"], event["scope"]): event for event in found}


def statuses(rows: dict[tuple[str, str], dict[str, Any]]) -> set[tuple[str, str]]:
    return {(direction, event["status"]) for (direction, _), event in rows.items()}


def test_hello_says_what_runs_here() -> None:
    hello = session().hello()
    assert (hello["available"], hello["version"], hello["timed"]) == (True, "1.2.3", True)
    assert hello["environment"]["torch"] == torch.__version__
    missing = session(missing=True).hello()
    assert (missing["available"], missing["import_failed"]) == (False, True)


def test_correct_rows_are_ok_with_errors_impl_and_remark() -> None:
    rows = prepare(session())
    assert list(rows) == [("fwd", "kernel"), ("bwd", "kernel"), ("fwd", "operation"), ("bwd", "operation")]
    assert statuses(rows) == {("fwd", "ok"), ("bwd", "ok")}
    forward, backward = rows["fwd", "kernel"], rows["bwd", "operation"]
    assert (forward["impl"], forward["message"], set(forward["errors"])) == ("twin", "a remark", {"out", "lse"})
    assert set(backward["errors"]) == {"dq", "dk", "dv"}
    assert 0 < backward["share"] < 1
    assert backward["compile_s"] > 0


@pytest.mark.parametrize(("fault", "status", "message"), [
    ("wrong", "wrong", "dq: "), ("unwritten", "wrong", "dk: "), ("raises", "crash", "RuntimeError: needs num_m_blocks"),
    ("oom", "oom", "CUDA out of memory"), ("declined", "unsupported", "no backward for this")])
def test_a_faulty_backward_leaves_the_forward_ok(fault: str, status: str, message: str) -> None:
    rows = prepare(session(fault))
    assert len(rows) == 4
    assert statuses(rows) == {("fwd", "ok"), ("bwd", status)}
    assert message in rows["bwd", "kernel"]["message"]
    assert message in rows["bwd", "operation"]["message"]


def test_a_backend_that_writes_to_its_inputs_is_wrong_whatever_it_returns() -> None:
    broadcast = tiny_case("case", lengths_q=(3, 3, 3), lengths_k=(5, 0, 7), mode="broadcast_q")
    for case in (CASE, broadcast):
        rows = prepare(session("spoils q"), ROWS[::2], case)
        assert statuses(rows) == {("fwd", "wrong"), ("bwd", "wrong")}
        assert rows["fwd", "kernel"]["message"] == "q: the backend wrote to its inputs"
        rows = prepare(session("spoils dout"), ROWS[::2], case)
        assert statuses(rows) == {("fwd", "ok"), ("bwd", "wrong")}
        assert rows["bwd", "kernel"]["message"] == "dout: the backend wrote to its inputs"


@pytest.mark.parametrize(("fault", "status", "message"), [
    ("unsupported", "unsupported", "no graph for this shape"), ("no_import", "import_error", "fake_kernels")])
def test_what_fails_before_any_call_fails_every_row(fault: str, status: str, message: str) -> None:
    rows = prepare(session(fault))
    assert len(rows) == 4
    assert statuses(rows) == {("fwd", status), ("bwd", status)}
    assert all(message in event["message"] for event in rows.values())


def test_only_asked_rows_are_reported_though_a_backward_runs_its_forward() -> None:
    assert list(prepare(session(), [["bwd", "operation"]])) == [("bwd", "operation")]


def test_where_times_mean_nothing_rows_are_checked_and_untimed() -> None:
    rows = prepare(session(backend="UntimedBackend"))
    assert statuses(rows) == {("fwd", "untimed"), ("bwd", "untimed")}
    assert all(event["message"] and event["errors"] for event in rows.values())
    assert statuses(prepare(session("wrong", backend="UntimedBackend"))) == {("fwd", "untimed"), ("bwd", "wrong")}


def test_a_bound_case_is_sampled_and_a_released_one_is_not() -> None:
    worker = session()
    prepare(worker)
    reply = worker.sample("bwd", "operation", PLAN)
    assert len(reply["latencies_ms"]) == 3
    assert reply["telemetry"] == {"sm_clock_mhz": None, "power_w": None, "temperature_c": None, "throttle": ""}
    worker.release()
    with pytest.raises(AssertionError, match="no case is bound"):
        worker.sample("fwd", "kernel", PLAN)
    worker.bind(lambda event: None, CASE.to_json(), [["bwd", "kernel"]])
    assert len(worker.sample("bwd", "kernel", PLAN)["latencies_ms"]) == 3


def test_an_altered_case_is_refused() -> None:
    with pytest.raises(Exception, match="altered"):
        session().prepare(lambda event: None, {**CASE.to_json(), "head_dim": 32}, ROWS, CHECK)


def test_statuses_of_exceptions() -> None:
    assert status_of(Unsupported("")) is Status.UNSUPPORTED
    assert status_of(NotImplementedError("")) is Status.UNSUPPORTED
    assert status_of(torch.OutOfMemoryError("")) is Status.OOM
    assert status_of(MemoryError()) is Status.OOM
    assert status_of(RuntimeError("CUDA error: out of memory")) is Status.OOM
    assert status_of(ModuleNotFoundError("")) is Status.IMPORT_ERROR
    assert status_of(RuntimeError("anything")) is Status.CRASH
