"""`Record`: one row of the CSV, its columns in order, and its statuses."""

from __future__ import annotations

from enum import Enum

SCHEMA_VERSION = 1


class Status(str, Enum):
    """What became of a row. Only `ok` rows carry times."""

    OK = "ok"
    UNTIMED = "untimed"
    UNSUPPORTED = "unsupported"
    WRONG = "wrong"
    HANG = "hang"
    OOM = "oom"
    CRASH = "crash"
    IMPORT_ERROR = "import_error"
