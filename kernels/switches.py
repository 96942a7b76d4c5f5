"""Checks that the options dataclasses of all kernels share: which switches there are, and what each may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

Options = TypeVar("Options")


def check_switches(options: Any, allowed: Mapping[str, tuple[int, ...]], say: Callable[[tuple[int, ...]], str]) -> None:
    """A frozen dataclass whose fields are integers among ``allowed``, or else flags.

    Raises `ValueError` naming the first that is neither; ``say`` puts what is allowed into words.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in allowed:
            if isinstance(value, bool) or value not in allowed[field.name]:
                raise ValueError(f"{field.name}: expected {say(allowed[field.name])}, got {value!r}")
        elif not isinstance(value, bool):
            raise ValueError(f"{field.name}: expected true or false, got {value!r}")


def from_values(cls: type[Options], values: Mapping[str, object]) -> Options:
    """``cls`` from plain values; those left out keep their defaults. Raises `ValueError` naming an unknown key."""
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ValueError(f"{key}: no such option; allowed: {', '.join(known)}")
    return cls(**values)


def check_switch(name: str, value: object, default: Any, whose: str, schedules: tuple[str, ...]) -> None:
    """One switch by name, against the options ``default``. Raises `ValueError` naming what is wrong and allowed."""
    kinds = {field.name: type(getattr(default, field.name)) for field in fields(default)}
    if name not in kinds:
        raise ValueError(f"{name}: no such switch of the {whose}; there are {', '.join(kinds)}")
    if type(value) is not kinds[name]:
        raise ValueError(f"{name}: expected {kinds[name].__name__}, got {value!r}")
    if name == "schedule" and value not in schedules:
        raise ValueError(f"schedule: expected one of {', '.join(schedules)}, got {value!r}")
