"""Happens-before by vector clocks.

Every task has an identity, and so has every asynchronous operation; an *event* is ``(identity, epoch)``. An operation
takes over the identity of an older one that it comes after, so clocks stay as short as the true concurrency.
"""

from __future__ import annotations

from collections.abc import Mapping

Event = tuple[int, int]
Clock = dict[int, int]


def join(clock: Clock, other: Mapping[int, int]) -> None:
    """Make ``clock`` the componentwise maximum of both (in place)."""
    for identity, epoch in other.items():
        if clock.get(identity, -1) < epoch:
            clock[identity] = epoch


class Clocked:
    """Something that acts or carries knowledge.

    ``clock`` holds the events it comes after. ``fenced`` holds those of them that a ``fence.proxy.async`` lies
    behind: ordinary writes among them are visible to the async proxy. Both travel along synchronisation edges.
    """

    def __init__(self, clock: Mapping[int, int] | None = None, fenced: Mapping[int, int] | None = None):
        self.clock: Clock = dict(clock or {})
        self.fenced: Clock = dict(fenced or {})

    def acquire(self, other: Clocked) -> None:
        """Come after everything that ``other`` comes after."""
        join(self.clock, other.clock)
        join(self.fenced, other.fenced)

    def proxy_fence(self) -> None:
        """``fence.proxy.async``: all that was ordered so far becomes visible to the async proxy."""
        join(self.fenced, self.clock)

    def after(self, event: Event) -> bool:
        """Does this come after the event?"""
        return self.clock.get(event[0], -1) >= event[1]

    def proxied(self, event: Event) -> bool:
        """Does a proxy fence lie between the event and this?"""
        return self.fenced.get(event[0], -1) >= event[1]

    def label(self) -> str:
        """What to call it in a finding."""
        return "?"


class Actor(Clocked):
    """A `Clocked` that has an event of its own: a task at its current epoch, or an operation."""

    event: Event


class Identities:
    """Hands out identities; an operation may take over a retired one that it comes after."""

    def __init__(self) -> None:
        self._next = 0

    def fresh(self) -> int:
        """An identity that nobody has had."""
        self._next += 1
        return self._next - 1

    def claim(self, actor: Clocked, retired: list[Event]) -> Event:
        """An event for an operation that comes after ``actor``'s clock; it joins ``retired``, to be reused in turn."""
        for position, (identity, epoch) in enumerate(retired):
            if actor.clock.get(identity, -1) >= epoch:
                del retired[position]
                event = (identity, epoch + 1)
                break
        else:
            event = (self.fresh(), 0)
        retired.append(event)
        return event
