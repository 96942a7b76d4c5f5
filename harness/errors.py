"""Errors that the user can mend: one line each, which the command line prints before it exits with status 2."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Something the user can mend. ``str()`` is one line that says what is wrong and what is allowed."""


class ConfigError(UserError):
    """A config that can't be run, as ``file:line: key: problem; allowed: ...``."""

    def __init__(self, file: Path | str, key: str, problem: str, allowed: str = "", line: int | None = None):
        self.file, self.key, self.problem, self.allowed, self.line = str(file), key, problem, allowed, line
        place = f"{file}:{line}" if line else str(file)
        separator = "" if not allowed or allowed.startswith(" (") else "; allowed:"
        parts = [place, key, f"{problem}{separator} {allowed}"]
        super().__init__(" ".join(": ".join(part for part in parts if part).split()))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str, str, str, int | None]]:
        return type(self), (self.file, self.key, self.problem, self.allowed, self.line)
