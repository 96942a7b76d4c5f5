"""Shared memory as simulated and as the compiler counts it (in a process without Triton's interpreter)."""

import os
from pathlib import Path

import pytest
import small_kernels
import torch
from offline_script import printed_by

from kernels.simulator import Simulator

_SCRIPT = """
import small_kernels, torch
from triton.tools.tensor_descriptor import TensorDescriptor
from kernels.simulator import Simulator

def smem(**options):
    source = torch.zeros(256, 64).bfloat16()
    with Simulator(**options) as simulator:
        out = torch.empty_like(source)
        descs = [TensorDescriptor(t, list(t.shape), list(t.stride()), [64, 64]) for t in (source, out)]
        small_kernels.pipeline[(1,)](*descs, 4, BLOCK=64, SLOTS=2, FAULT="none")
    return simulator.smem_bytes

print(smem(), smem(compile_memory=True))
"""


def test_simulated_count_is_just_below_the_compilers():
    simulated, compiled = map(int, printed_by("-c", _SCRIPT, beside=Path(__file__).parent).split())
    assert simulated == 3 * 64 * 64 * 2 + 4 * 8
    assert simulated <= compiled <= simulated + 1100


def test_the_interpreter_has_no_compiler_metadata():
    if not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("kernels are real JIT functions in this session")
    expected = pytest.raises(RuntimeError, match="c_division: only compiled kernels have compiler metadata")
    with expected, Simulator(compile_memory=True):
        small_kernels.c_division[(1,)](torch.zeros(8), 3)
