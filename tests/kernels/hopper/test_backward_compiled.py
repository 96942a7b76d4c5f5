"""What the compiler makes of the backward's variants for sm_90a: shared memory that fits, and where registers spill."""

from pathlib import Path

import pytest
from offline_script import lines_of

from kernels.hopper.options import SMEM_PER_CTA

SCRIPT = Path(__file__).with_name("compile_backward.py")
# Bytes of stack a thread at most; others: none.
SPILLS = {"window": 24, "D = 64": 8, "D = 64, default": 16, "causal": 8, "counted, causal": 8, "counted, groups": 8,
          "counted, D = 64": 16, "skip": 16, "skip, causal": 16, "skip, counted": 40, "skip, short gap": 32,
          "skip, groups": 24, "skip, D = 64": 24, "turns, D = 64": 8, "serpentine, skip": 8,
          "serpentine, skip, causal": 16}


@pytest.fixture(scope="module")
def compiled():
    return {line["name"]: line for line in lines_of(SCRIPT)}


def test_spills_are_known(compiled):
    assert {name: line["stack"] for name, line in compiled.items() if line["stack"] > SPILLS.get(name, 0)} == {}


def test_shared_memory_fits(compiled):
    assert {name: line["shared"] for name, line in compiled.items() if line["shared"] > SMEM_PER_CTA} == {}


def test_registers_are_redistributed(compiled):
    assert all(line["set_registers"] for line in compiled.values())
