from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from harness.lanes import Say, share_out


def test_every_item_once_and_what_is_said_in_the_callers_thread() -> None:
    heard: list[tuple[str, int]] = []
    threads: set[int] = set()

    def work(lane: str, item: int, say: Say) -> None:
        def hear() -> None:
            threads.add(threading.get_ident())
            heard.append((lane, item))

        time.sleep(0.01)
        say(hear)

    share_out(["a", "b"], range(20), work, lambda lane: pytest.fail("stopped"))
    assert sorted(item for _, item in heard) == list(range(20))
    assert threads == {threading.get_ident()}
    assert Counter(lane for lane, _ in heard).keys() == {"a", "b"}
    for lane in "ab":  # each in its own order
        items = [item for by, item in heard if by == lane]
        assert items == sorted(items)


def test_a_busy_lane_leaves_the_rest_to_the_others() -> None:
    done: list[str] = []
    release = threading.Event()

    def work(lane: str, item: int, say: Say) -> None:
        if item == 0:
            release.wait(10)
        say(lambda: done.append(lane))
        if item == 9:
            release.set()

    share_out(["a", "b"], range(10), work, lambda lane: pytest.fail("stopped"))
    assert sorted(Counter(done).values()) == [1, 9]


@pytest.mark.parametrize("where", ["lane", "caller"])
def test_what_is_raised_stops_all_lanes(where: str) -> None:
    stopped: list[str] = []
    heard: list[int] = []
    release = threading.Event()

    def raise_it() -> None:
        raise KeyboardInterrupt if where == "caller" else RuntimeError("lane")

    def work(lane: str, item: int, say: Say) -> None:
        if item == 0:
            raise_it() if where == "lane" else say(raise_it)
        else:
            release.wait(10)  # as a call to a worker, which `stop` ends
            say(lambda: heard.append(item))

    def stop(lane: str) -> None:
        stopped.append(lane)
        release.set()

    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        share_out(["a", "b"], range(10), work, stop)
    assert stopped == ["a", "b"]
    assert heard == []
