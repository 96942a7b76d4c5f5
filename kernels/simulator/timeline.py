"""The last events of the tasks of a failing schedule, as text: one row an event, one column a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.simulator.agents import Task

_PER_TASK = 6
_ROWS = 40


def render_timeline(tasks: Sequence[Task], completed: Sequence[tuple[int, str, str]]) -> str:
    """Rows sorted by step; ``o`` marks the task's column, ``*`` an operation that completed on its behalf.

    ``completed`` is ``(step, issued by "task:line", what)``.
    """
    tasks = [task for task in tasks if task.why != "its tasks"]
    names = [task.name for task in tasks]
    rows: list[tuple[int, str, str, str]] = []  # (step, task, mark, text)
    for task in tasks:
        events = list(task.log)[-_PER_TASK:]
        rows += [(step, task.name, "o", f"line {line}: {what}") for step, line, what in events]
    oldest = min((row[0] for row in rows), default=0)
    rows += [(step, by.rsplit(":", 1)[0], "*", f"{what} (issued at {by})")
             for step, by, what in completed if step >= oldest]
    rows = sorted(rows)[-_ROWS:]
    if not rows:
        return ""
    width = len(str(rows[-1][0]))
    lines = ["last events, oldest first:"]
    for column, name in enumerate(names):
        lines.append(" " * (width + 2) + "| " * column + f"+- {name}")
    for step, name, mark, text in rows:
        lanes = " ".join(mark if name == each else "|" for each in names)
        lines.append(f"{step:>{width}}  {lanes}  {text}")
    return "\n".join(lines)
