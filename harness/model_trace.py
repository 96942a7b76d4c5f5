"""Events of the timing model as a trace file for Perfetto or chrome://tracing: JSON in the trace event format.

A modelled row is one process for each simulated SM; each role and each engine of a CTA is a thread of it. Events are
complete events (``ph: X``, times in microseconds) in the category ``work`` or ``stall``; a stall's ``args`` say what it
waited for. Operations of an engine that are in flight at the same time are spread over several threads of one name, as
events of a thread must not overlap.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.model import Modelled
from kernels.simulator.timing import Event

NS_PER_US = 1000  # the resolution kept


def trace_json(rows: Iterable[Modelled]) -> dict[str, Any]:
    """The file's content, a JSON object; rows without events are left out."""
    events: list[dict[str, Any]] = []
    pid = 0
    for row in rows:
        record = row.record
        for sm, found in _grouped(row.events, lambda event: event.lane.partition("/")[0]):
            pid += 1
            said = f"{record.case} {record.direction} {record.backend}, {sm}, modelled for {record.machine}"
            events.append(_name("process_name", pid, 0, said))
            events += _process(pid, found)
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"what": "modelled times, none of them measured"}}


def write_trace(path: Path, rows: Iterable[Modelled]) -> None:
    """Write the file. Raises `UserError` if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace_json(rows), separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't write the trace: {error.strerror or error}") from None


def _process(pid: int, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    tid = 0
    lanes = _grouped(events, lambda event: event.lane.partition("/")[2])
    for lane, found in sorted(lanes, key=lambda each: each[0].partition("/")[0]):  # those of a CTA follow each other
        for place, thread in enumerate(_threads(found)):
            tid += 1
            yield _name("thread_name", pid, tid, lane if place == 0 else f"{lane} ({place + 1})")
            yield {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
            for event in thread:
                begin, end = _span(event)
                yield {"name": event.name, "cat": "stall" if event.stall else "work", "ph": "X", "pid": pid,
                       "tid": tid, "ts": begin / NS_PER_US, "dur": (end - begin) / NS_PER_US,
                       "args": {"stall": event.stall} if event.stall else {}}


def _threads(events: Sequence[Event]) -> list[list[Event]]:
    """Events of a lane in threads without overlap: each goes to the first that is free when it begins."""
    threads: list[list[Event]] = []
    for event in sorted(events, key=_span):
        begin = _span(event)[0]
        free = next((thread for thread in threads if _span(thread[-1])[1] <= begin), None)
        if free is None:
            threads.append([event])
        else:
            free.append(event)
    return threads


def _span(event: Event) -> tuple[int, int]:
    """Begin and end in whole nanoseconds."""
    return round(event.start_us * NS_PER_US), round((event.start_us + event.duration_us) * NS_PER_US)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    """A metadata event."""
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _grouped(events: Iterable[Event], key: Callable[[Event], str]) -> list[tuple[str, list[Event]]]:
    groups: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    return list(groups.items())
