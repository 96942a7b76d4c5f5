"""What the Makefile runs is there and can be run from a fresh checkout."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_scripts_that_make_runs_are_executable():
    scripts = set(re.findall(r"scripts/\w+\.sh", (ROOT / "Makefile").read_text()))
    assert len(scripts) == 4
    assert [name for name in sorted(scripts | {".ci/run"}) if not os.access(ROOT / name, os.X_OK)] == []
