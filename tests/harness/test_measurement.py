from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tiny_cases import tiny_case, tiny_config

from harness.config import TimingConfig
from harness.environment import DeviceEnvironment
from harness.fleet import MEMORY_SHARE, Fleet, blamed
from harness.measurement import check_case, interleave, plan_block, time_case
from harness.records import Status
from harness.rows import Block, Row
from harness.telemetry import Telemetry
from harness.worker_client import WorkerError, WorkerLost

CASE = tiny_case()
CONFIG = tiny_config(["sdpa_loop"], ["case"])
TIMING = TimingConfig(blocks=2, min_samples=31, max_samples=101, max_seconds=3.0)
GIB = 2**30


class StubMember:
    """Holds ``needs`` bytes when bound; logs what is asked of it."""

    def __init__(self, label: str, log: list[str], needs: int = 0, room: Callable[[], int] = lambda: 0) -> None:
        self.label, self.log, self.needs, self.room = label, log, needs, room
        self.problem: tuple[Status, str] | None = None
        self.bound, self.held_bytes, self.peak_bytes = False, 0, needs
        self.sample_errors: list[WorkerError | None] = []

    def check(self, case: Any, rows: Sequence[Row], check: Any) -> None:
        self.log.append(f"check {self.label}")
        self._take()
        for row in rows:
            row.status = Status.OK if self.bound else Status.OOM

    def bind(self, case: Any, rows: Sequence[Row]) -> None:
        self.log.append(f"bind {self.label}")
        self._take()
        if not self.bound:
            raise WorkerError(Status.OOM, "out of memory")

    def sample(self, row: Row, plan: Any) -> Block:
        self.log.append(f"{self.label} {row.direction} {row.scope}")
        error = self.sample_errors.pop(0) if self.sample_errors else None
        if error:
            raise error
        return Block((1.0,) * plan.min_samples, Telemetry())

    def release(self) -> None:
        if self.bound:
            self.log.append(f"release {self.label}")
        self.bound, self.held_bytes = False, 0

    def _take(self) -> None:
        self.bound = self.needs <= self.room()
        self.held_bytes = self.needs if self.bound else 0


def stub_fleet(needs: dict[str, int], memory_bytes: int = 0) -> tuple[Fleet, list[StubMember], list[str]]:
    fleet = Fleet.__new__(Fleet)
    fleet.device_type, fleet.memory_share = "cuda", MEMORY_SHARE
    log: list[str] = []
    members = [StubMember(label, log, need) for label, need in needs.items()]
    for member in members:
        member.room = lambda member=member: (memory_bytes or 2**60) - fleet.held_by_others([member])
    members[0].environment = DeviceEnvironment("cuda", "gpu", "", "", "", "", "", "", 0, 0, memory_bytes)
    fleet.members = members
    fleet.each = lambda members, work, done: [(work(member), done(member)) for member in members]
    return fleet, members, log


def ok_rows(members: Sequence[StubMember], keys: Sequence[tuple[str, str]]) -> dict[Any, list[Row]]:
    rows = {member: [Row(*key, status=Status.OK) for key in keys] for member in members}
    for member in members:
        member.bound = True
    return rows


def ignore(*_: Any) -> None:
    """A listener that doesn't care."""


def test_members_take_turns_forth_and_back() -> None:
    assert interleave("ABC", 2) == [["A", "B", "C"], ["C", "B", "A"]]
    assert interleave("AB", 4) == [["A", "B"], ["B", "A"], ["A", "B"], ["B", "A"]]


def test_rows_are_timed_one_after_another_each_interleaved() -> None:
    fleet, members, log = stub_fleet({"a": 0, "b": 0, "c": 0})
    heard = []
    rows = ok_rows(members, [("fwd", "kernel"), ("bwd", "kernel")])
    time_case(fleet, CASE, rows, TIMING, lambda member, row: heard.append((member.label, len(row.latencies_ms))))
    expected = [f"{label} {direction} kernel" for direction in ("fwd", "bwd") for label in "abccba"]
    assert [line for line in log if "release" not in line] == expected
    assert all(len(row.blocks) == 2 and len(row.latencies_ms) >= 31 for of in rows.values() for row in of)
    assert heard[0] == ("a", 16)
    assert not any(member.bound for member in members)


def test_a_row_that_is_not_ok_is_not_timed() -> None:
    fleet, members, log = stub_fleet({"a": 0, "b": 0})
    rows = ok_rows(members, [("fwd", "kernel")])
    rows[members[1]][0].status = Status.WRONG
    time_case(fleet, CASE, rows, TIMING, ignore)
    assert [line for line in log if "fwd" in line] == ["a fwd kernel"] * 2


def test_plan_shares_a_rows_samples_among_its_blocks() -> None:
    kernel = plan_block(Row("fwd", "kernel"), TIMING)
    assert (kernel.min_samples, kernel.max_samples, kernel.max_seconds, kernel.host_ahead) == (16, 50, 1.5, True)
    assert not plan_block(Row("fwd", "operation"), TIMING).host_ahead


def test_members_that_do_not_fit_together_are_bound_in_turn() -> None:
    fleet, members, log = stub_fleet({"a": 50 * GIB, "b": 60 * GIB}, memory_bytes=100 * GIB)
    rows = {member: [Row("fwd", "kernel"), Row("bwd", "kernel")] for member in members}
    big = tiny_case(mode="cross", num_heads_q=64, num_heads_kv=64, head_dim=256, lengths_q=(200_000,), lengths_k=(1,))
    check_case(fleet, big, rows, CONFIG, ignore)
    assert log == ["check a", "release a", "check b"]
    log.clear()
    time_case(fleet, big, rows, TIMING, ignore)
    assert log == ["release b", "bind a", "a fwd kernel", "a bwd kernel", "release a", "bind b", "b fwd kernel",
                   "b bwd kernel", "b fwd kernel", "b bwd kernel", "release b", "bind a", "a fwd kernel",
                   "a bwd kernel", "release a"]


def test_as_many_are_checked_side_by_side_as_fit_together() -> None:
    fleet, members, _ = stub_fleet({"a": 10 * GIB, "b": 10 * GIB, "c": 10 * GIB}, memory_bytes=100 * GIB)
    waves: list[list[str]] = []
    one_by_one = fleet.each

    def each(members: Any, work: Any, done: Any) -> None:
        waves.append([member.label for member in members])
        one_by_one(members, work, done)

    fleet.each = each  # type: ignore[method-assign]
    rows = {member: [Row("fwd", "kernel")] for member in members}
    large = tiny_case(mode="cross", num_heads_q=64, num_heads_kv=64, head_dim=256, lengths_q=(75_000,), lengths_k=(1,))
    check_case(fleet, large, rows, CONFIG, ignore)  # some 37 GiB each by estimate, 85 GiB to share
    assert waves == [["a", "b"], ["c"]]
    assert all(row.status is Status.OK for member in members for row in rows[member])


def test_out_of_memory_is_believed_only_when_alone() -> None:
    fleet, members, log = stub_fleet({"a": 50 * GIB, "b": 60 * GIB, "c": 200 * GIB}, memory_bytes=100 * GIB)
    rows = {member: [Row("fwd", "kernel")] for member in members}
    check_case(fleet, CASE, rows, CONFIG, ignore)  # a tiny case: all are let in at once
    a, b, c = (rows[member][0] for member in members)
    assert (a.status, b.status, c.status) == (Status.OK, Status.OK, Status.OOM)
    assert "checked again alone" in b.message
    assert "checked again alone" not in a.message
    assert log.count("check b") == 2


def test_out_of_memory_while_timing_is_tried_again_alone() -> None:
    fleet, members, log = stub_fleet({"a": 10 * GIB, "b": 10 * GIB}, memory_bytes=100 * GIB)
    rows = ok_rows(members, [("fwd", "kernel")])
    members[0].held_bytes = members[1].held_bytes = 10 * GIB
    members[0].sample_errors = [WorkerError(Status.OOM, "out of memory")]
    time_case(fleet, CASE, rows, TIMING, ignore)
    row = rows[members[0]][0]
    assert row.status is Status.OK
    assert "without other backends" in row.message
    assert log[:5] == ["a fwd kernel", "release a", "release b", "bind a", "a fwd kernel"]
    assert all(len(of[0].blocks) == 2 for of in rows.values())


def test_a_row_lost_while_timing_costs_itself_alone() -> None:
    fleet, members, log = stub_fleet({"a": 0, "b": 0})
    rows = ok_rows(members, [("fwd", "kernel"), ("bwd", "kernel")])
    members[0].sample_errors = [None, WorkerLost(Status.HANG, "no answer")]
    time_case(fleet, CASE, rows, TIMING, ignore)
    lost, after = rows[members[0]]
    assert (lost.status, lost.message, lost.blocks) == (Status.HANG, "while timing: no answer", [])
    assert after.status is Status.OK
    assert "bind a" in log


def test_cases_for_other_devices_and_missing_backends_start_nothing() -> None:
    fleet, members, log = stub_fleet({"a": 0, "b": 0})
    members[1].problem = (Status.IMPORT_ERROR, "not installed")
    rows = {member: [Row("fwd", "kernel")] for member in members}
    check_case(fleet, tiny_case(devices=("cpu",)), rows, CONFIG, ignore)
    assert [of[0].status for of in rows.values()] == [Status.UNSUPPORTED] * 2
    rows = {member: [Row("fwd", "kernel")] for member in members}
    check_case(fleet, CASE, rows, CONFIG, ignore)
    assert [of[0].status for of in rows.values()] == [Status.OK, Status.IMPORT_ERROR]
    assert log == ["check a"]


@pytest.mark.parametrize(("direction", "expected"), [
    ("", ["fwd operation", "bwd operation"]), ("fwd", ["fwd operation", "bwd operation"]), ("bwd", ["bwd operation"])])
def test_a_lost_worker_takes_the_unfinished_rows_of_its_direction(direction: str, expected: list[str]) -> None:
    rows = [Row("fwd", "kernel", Status.OK), Row("bwd", "kernel", Status.OK), Row("fwd", "operation"),
            Row("bwd", "operation")]
    assert [f"{row.direction} {row.scope}" for row in blamed(rows, direction)] == expected
