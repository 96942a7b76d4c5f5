"""What the Makefile runs is there and can be run from a fresh checkout."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_scripts_that_make_runs_are_executable():
    scripts = set(re.findall(r"scripts/\w+\.sh", (ROOT / "Makefile").read_text()))
    assert len(scripts) == 4
    assert [name for name in sorted(scripts | {".ci/run"}) if not os.access(ROOT / name, os.X_OK)] == []


def test_an_unknown_flavour_is_refused_before_anything_is_installed(tmp_path):
    done = subprocess.run([ROOT / "scripts/setup.sh", tmp_path / "venv", "tpu"], capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "error: FLAVOUR=tpu: allowed are cpu and gpu\n")
    assert not (tmp_path / "venv").exists()
