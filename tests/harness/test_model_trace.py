"""The trace file against the fields that the trace event format documents."""

import itertools
import json
from types import SimpleNamespace
from typing import Any, Literal

import fake_engine
import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from harness.errors import UserError
from harness.model import Modelled
from harness.model_trace import trace_json, write_trace
from kernels.simulator.timing import Event


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Named(Strict):
    name: str


class Sorted(Strict):
    sort_index: int


class Metadata(Strict):
    """A metadata event: ``M``, what is named, and its argument."""

    ph: Literal["M"]
    name: Literal["process_name", "thread_name"]
    pid: int
    tid: int
    args: Named


class SortIndex(Strict):
    ph: Literal["M"]
    name: Literal["thread_sort_index"]
    pid: int
    tid: int
    args: Sorted


class Complete(Strict):
    """A complete event: ``X``, a name, categories, begin and duration in microseconds."""

    ph: Literal["X"]
    name: str = Field(min_length=1)
    cat: str
    pid: int
    tid: int
    ts: float = Field(ge=0)
    dur: float = Field(ge=0)
    args: dict[str, Any]


class Trace(Strict):
    """The object format: ``traceEvents``, the unit of the display, and metadata of any kind."""

    traceEvents: list[Metadata | SortIndex | Complete]
    displayTimeUnit: Literal["ms", "ns"]
    otherData: dict[str, str]


def row(events=fake_engine.EVENTS, case="long"):
    record = SimpleNamespace(case=case, direction="fwd", backend="jfa", machine="h200")
    return Modelled(record, events)


def threads(trace):
    """Complete events by ``(process, thread)``, as named."""
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in trace["traceEvents"]
             if each["name"] in ("process_name", "thread_name")}
    found = {}
    for each in trace["traceEvents"]:
        if each["ph"] == "X":
            found.setdefault((names[each["pid"], 0], names[each["pid"], each["tid"]]), []).append(each)
    return found


def test_the_file_is_the_object_format_with_documented_fields(tmp_path):
    write_trace(tmp_path / "t.json", [row(), row(case="short")])
    text = (tmp_path / "t.json").read_text()
    trace = TypeAdapter(Trace).validate_json(text)
    assert sum(isinstance(each, Complete) for each in trace.traceEvents) == 2 * len(fake_engine.EVENTS)
    assert "none of them measured" in trace.otherData["what"]
    assert json.loads(text) == trace_json([row(), row(case="short")])


def test_an_sm_is_a_process_and_each_role_and_engine_a_thread():
    assert list(threads(trace_json([row()]))) == [
        ("long fwd jfa, sm0, modelled for h200", "cta0/loader"),
        ("long fwd jfa, sm0, modelled for h200", "cta0/TMA load"),
        ("long fwd jfa, sm0, modelled for h200", "cta0/TMA load (2)"),
        ("long fwd jfa, sm1, modelled for h200", "cta1/loader")]


def test_lanes_of_a_cta_follow_each_other():
    mixed = [Event(f"sm0/{lane}", "x", at, 1.0, None) for at, lane in enumerate(
        ("cta9/default", "cta4/default", "cta9/TMA load", "cta4/loader"))]
    assert [lane for _, lane in threads(trace_json([row(mixed)]))] == [
        "cta4/default", "cta4/loader", "cta9/default", "cta9/TMA load"]


def test_rows_are_processes_of_their_own():
    trace = trace_json([row(), row(case="short"), row(events=())])
    named = [each for each in trace["traceEvents"] if each["name"] == "process_name"]
    assert [each["pid"] for each in named] == [1, 2, 3, 4]
    assert len({each["args"]["name"] for each in named}) == 4


def test_a_stall_says_what_it_waited_for_and_work_does_not():
    found = threads(trace_json([row()]))["long fwd jfa, sm0, modelled for h200", "cta0/loader"]
    assert [(each["name"], each["cat"], each["args"]) for each in found] == [
        ("issue K", "work", {}), ("wait", "stall", {"stall": "k_empty[0]"})]
    assert [(each["ts"], each["dur"]) for each in found] == [(0.0, 0.5), (0.5, 2.0)]


def test_events_of_a_thread_never_overlap():
    overlapping = [Event("sm0/engine", str(n), 0.1 * n, 0.35, None) for n in range(12)]
    for events in threads(trace_json([row(overlapping)])).values():
        for one, other in itertools.pairwise(events):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-9
    assert len(threads(trace_json([row(overlapping)]))) == 4  # 0.35 us of every 0.1 us


def test_times_that_touch_share_a_thread_whatever_their_last_digits():
    third = 1 / 3
    touching = [Event("sm0/a", "x", n * third, third, None) for n in range(50)]
    assert len(threads(trace_json([row(touching)]))) == 1


def test_a_file_that_can_not_be_written_is_the_users(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="can't write the trace"):
        write_trace(tmp_path / "file" / "t.json", [row()])
