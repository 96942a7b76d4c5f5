"""Lanes: each works through items of one list with something of its own, such as a device's worker processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Lane = TypeVar("Lane")
Item = TypeVar("Item")
Say = Callable[[Callable[[], None]], None]


def share_out(lanes: Sequence[Lane], items: Sequence[Item], work: Callable[[Lane, Item, Say], None],
              stop: Callable[[Lane], None]) -> None:
    """``work(lane, item, say)`` once for every item, in a thread for each lane, which takes the next when it's free.

    What ``work`` gives to ``say`` is called in this thread, in the order in which it was said by each lane. What a lane
    raises, or this thread does (Ctrl-C), ends all: nothing more is taken or called, ``stop`` is called with every lane,
    and it is raised here.
    """
    ahead: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        ahead.put(item)
    said: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None: a lane has ended
    stopped = threading.Event()

    def walk(lane: Lane) -> None:
        try:
            while not stopped.is_set():
                work(lane, ahead.get_nowait(), said.put)
        except queue.Empty:
            pass
        except BaseException as error:
            raised = error

            def raise_it() -> None:
                raise raised

            said.put(raise_it)
        finally:
            said.put(None)

    threads = [threading.Thread(target=walk, args=(lane,), daemon=True) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        left = len(lanes)
        while left:
            call = said.get()
            if call is None:
                left -= 1
            else:
                call()
    except BaseException:
        stopped.set()
        for lane in lanes:
            stop(lane)
        raise
