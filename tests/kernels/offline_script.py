"""Runs a script that compiles kernels: apart from pytest, whose process has Triton's interpreter switched on."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lines_of(script, **environment):
    """The JSON lines that a script prints, in order. Modules beside it can be imported."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), variables.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=280,
                          env={**variables, **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
