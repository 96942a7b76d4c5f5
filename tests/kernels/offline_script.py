"""Runs Python that compiles kernels: apart from pytest, whose process has Triton's interpreter switched on."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def printed_by(*arguments, beside=None, **environment):
    """What ``python ARGUMENTS`` prints; modules in the folder ``beside`` can be imported."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = [str(ROOT), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join([str(beside), *folders] if beside else folders)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=280,
                          env={**variables, **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines_of(script, **environment):
    """The JSON lines that a script prints, in order. Modules beside it can be imported."""
    return [json.loads(line) for line in printed_by(str(script), **environment).splitlines()]
