"""Simulations are independent of each other: many at a time, in processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")
_function: Callable[[Any], Any] | None = None


def _begin(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    torch.set_num_threads(1)


def _call(task: Any) -> Any:
    assert _function is not None
    return _function(task)


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], jobs: int = 1) -> Iterator[Result]:
    """``map(function, tasks)`` by ``jobs`` forked processes; tasks and results are pickled, ``function`` is not.

    With one job everything runs in this process, and as the results are asked for.
    """
    if jobs == 1:
        yield from map(function, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs, _begin, (function,)) as pool:
        yield from pool.imap(_call, tasks)
