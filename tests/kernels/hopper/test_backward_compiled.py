"""What the compiler makes of the backward's variants for sm_90a: shared memory that fits, and where registers spill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.hopper.backward import SMEM_BYTES

SCRIPT = Path(__file__).with_name("compile_backward.py")
SPILLS = {"window": 32, "groups": 8, "D = 64": 16, "D = 64, default": 16}  # bytes a thread at most; others: none


@pytest.fixture(scope="module")
def compiled():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[3]), environment.get("PYTHONPATH", "")])
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return {line["name"]: line for line in map(json.loads, run.stdout.splitlines())}


def test_spills_are_known(compiled):
    assert {name: line["stack"] for name, line in compiled.items() if line["stack"] > SPILLS.get(name, 0)} == {}


def test_shared_memory_fits(compiled):
    assert {name: line["shared"] for name, line in compiled.items() if line["shared"] > SMEM_BYTES} == {}


def test_registers_are_redistributed(compiled):
    assert all(line["set_registers"] for line in compiled.values())
