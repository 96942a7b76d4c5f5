"""What a path on the command line must be, checked before anything is read; an error says what to write instead."""

from __future__ import annotations

import difflib
from pathlib import Path

from harness.errors import UserError

SHOWN = 5  # names in an error
RUNS = Path("results/runs")


def config_path(path: Path) -> Path:
    """The path of a config that exists. Raises `UserError` that names close ones."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory; a config is a YAML file{_such_as(sorted(path.glob('*.yaml')))}")
    if not path.exists():
        shipped = sorted(path.parent.glob("*.yaml")) or sorted(Path("configs").glob("*.yaml"))
        raise UserError(f"{path}: no such config{_such_as(_closest(path, shipped))}; docs/configs.md says how to write "
                        "one")
    return path


def records_path(path: Path) -> Path:
    """The path of a records CSV that exists. Raises `UserError` that names what lies there, or the latest runs."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*.csv") if is_records(file))
        say = _such_as(found) or "; there is none in it, `harness run CONFIG` makes one"
        raise UserError(f"{path}: is a directory; name the records CSV of a run{say}")
    if not path.exists():
        beside = [file for file in sorted(path.parent.glob("*.csv")) if is_records(file)]
        latest = sorted((file for file in RUNS.glob("*/*.csv") if is_records(file)),
                        key=lambda file: -file.stat().st_mtime)
        say = _such_as(_closest(path, beside) or latest) or "; `harness run CONFIG` makes one under results/runs"
        raise UserError(f"{path}: no such records CSV{say}")
    return path


def is_records(path: Path) -> bool:
    """Whether a CSV begins as records do: raw samples and other tables don't."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().startswith("schema_version,run_id,")
    except (OSError, UnicodeDecodeError):
        return False


def _closest(path: Path, found: list[Path]) -> list[Path]:
    """Those whose names are most like the path's, the best first; all, in their order, where none is."""
    names = difflib.get_close_matches(path.stem, [file.stem for file in found], SHOWN, cutoff=0.5)
    return [file for name in names for file in found if file.stem == name] or found


def _such_as(found: list[Path]) -> str:
    if not found:
        return ""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f", such as {', '.join(map(str, found[:SHOWN]))}{more}"
