"""Measures one case on all members of a fleet: first correctness, all at once, then timing, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from harness.cases import Case
from harness.config import BenchConfig, TimingConfig
from harness.fleet import Fleet, Member
from harness.flops import attention_bytes
from harness.records import Status
from harness.rows import Row
from harness.timing import BlockPlan
from harness.worker_client import WorkerError

# What a worker needs to check a case, over the bytes of its tensors: two operations' results, poison and workspaces;
# broadcast-Q is checked whole, in fp64.
MEMORY_FACTOR = 4
MEMORY_FACTOR_BROADCAST = 12
DEFAULT_ENGINE = TimingConfig().engine

Rows = Mapping[Member, Sequence[Row]]
T = TypeVar("T")


def check_case(fleet: Fleet, case: Case, rows: Rows, config: BenchConfig, done: Callable[[Member], None]) -> None:
    """Check every row against the oracle, in its own worker; each gets a status. ``done`` hears of each member.

    As many members work side by side as the device holds together. One that runs out of memory is believed only when
    it does so alone.
    """
    members = []
    for member in rows:
        problem = member.problem
        if reason := case.declines(fleet.device_type):
            problem = (Status.UNSUPPORTED, reason)
        if problem:
            for row in rows[member]:
                row.fail(*problem)
            done(member)
        else:
            members.append(member)
    if not members:
        return
    need = attention_bytes(case, "bwd") * (MEMORY_FACTOR_BROADCAST if case.broadcast_q else MEMORY_FACTOR)
    width = fleet.width(need)
    for first in range(0, len(members), width):
        wave = members[first:first + width]
        fleet.make_room(wave, need * len(wave))
        fleet.each(wave, lambda member: member.check(case, rows[member], config.check), done)
    for member in members:
        short = [row for row in rows[member] if row.status is Status.OOM]
        if short and len(members) > 1 and fleet.environment.memory_bytes:
            _check_alone(fleet, member, case, short, config)
        if not any(row.status is Status.OK for row in rows[member]):
            member.release()


def _check_alone(fleet: Fleet, member: Member, case: Case, short: Sequence[Row], config: BenchConfig) -> None:
    fleet.release_others([member])
    for row in short:
        row.status, row.message = None, ""
    member.check(case, short, config.check)
    for row in short:
        row.note("out of memory beside other backends; checked again alone")
    member.release()  # it may hold some rows only


def time_case(fleet: Fleet, case: Case, rows: Rows, timing: TimingConfig,
              done: Callable[[Member, Row], None]) -> None:
    """Take samples of every row with status ok, one worker at a time. ``done`` hears of each block.

    Members take turns block by block, forth and back: A B C C B A. Where they don't fit into memory together, a
    member's rows follow one another within its turn, so that it is bound once a turn.
    """
    members = [member for member in rows if any(row.status is Status.OK for row in rows[member])]
    keys = list(dict.fromkeys(row.key for member in members for row in rows[member]))
    if all(member.bound for member in members):
        turns = [(member, [key]) for key in keys for order in interleave(members, timing.blocks) for member in order]
    else:
        turns = [(member, keys) for order in interleave(members, timing.blocks) for member in order]
    for member, turn_keys in turns:
        for row in rows[member]:
            if row.key in turn_keys and row.status is Status.OK:
                _sample(fleet, member, case, row, rows[member], timing)
                done(member, row)
    for member in members:
        if timing.engine != DEFAULT_ENGINE:
            for row in rows[member]:
                if row.status is Status.OK:
                    row.note(f"timed by {timing.engine}")
        member.release()


def interleave(members: Sequence[T], blocks: int) -> list[list[T]]:
    """Order of the members in each block: forth, back, forth, ..."""
    return [list(members) if block % 2 == 0 else list(reversed(members)) for block in range(blocks)]


def plan_block(row: Row, timing: TimingConfig) -> BlockPlan:
    """One of ``timing.blocks`` equal shares of what a row is to be sampled."""
    smallest = -(-timing.min_samples // timing.blocks)
    return BlockPlan(host_ahead=row.scope == "kernel", engine=timing.engine, cold=timing.cold_l2, warmup=timing.warmup,
                     min_samples=smallest, max_samples=max(smallest, timing.max_samples // timing.blocks),
                     max_seconds=timing.max_seconds / timing.blocks)


def _sample(fleet: Fleet, member: Member, case: Case, row: Row, rows: Sequence[Row], timing: TimingConfig) -> None:
    """One block of a row, bound first if need be. Failure is the row's; out of memory is believed only when alone."""
    for attempt in ("beside others", "alone"):
        try:
            if not member.bound:
                fleet.make_room([member], member.peak_bytes)
                member.bind(case, [other for other in rows if other.status is Status.OK])
            row.blocks.append(member.sample(row, plan_block(row, timing)))
            return
        except WorkerError as error:
            member.release()
            if error.status is Status.OOM and attempt == "beside others" and fleet.held_by_others([member]):
                fleet.release_others([member])
                row.note("timed without other backends in memory")
                continue
            row.fail(error.status, f"while timing: {error.message}")
            return
