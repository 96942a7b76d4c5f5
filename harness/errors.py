"""Errors that the user can mend: the CLI prints their one line and exits with status 2."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend; its message says which file, key, value, and what is allowed."""


class ConfigError(UserError):
    """A configuration that can't be used."""
