"""Measures what a device reaches on large plain work, in the same run as the cases that are held against it."""

from __future__ import annotations

import statistics

import torch

from harness.flops import Ceilings
from harness.timing import BlockPlan, Timer

SAMPLES = 20


def measure_ceilings(device: torch.device) -> Ceilings:
    """Median rates of a bf16 matmul of random matrices (TFLOP/s) and of a copy (TB/s, bytes read plus written).

    On a GPU 8192^3 and 2 GiB; on a CPU, which may have no bf16 instructions, 256^3 and 64 MiB. Raises what torch
    raises when memory is short.
    """
    on_gpu = device.type == "cuda"
    size, copy_bytes = (8192, 2 * 2**30) if on_gpu else (256, 64 * 2**20)
    timer = Timer(device)
    plan = BlockPlan(host_ahead=True, cold=False, warmup=5 if on_gpu else 1, min_samples=SAMPLES if on_gpu else 5,
                     max_samples=SAMPLES if on_gpu else 5)

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    matmul_ms = statistics.median(timer.sample(lambda: _ignore(torch.mm(a, b, out=product)), plan))

    source = torch.ones(copy_bytes // 4, device=device, dtype=torch.int32)
    target = torch.empty_like(source)
    copy_ms = statistics.median(timer.sample(lambda: _ignore(target.copy_(source)), plan))
    return Ceilings(matmul_tflops=2 * size**3 / matmul_ms / 1e9, copy_tbps=2 * copy_bytes / copy_ms / 1e9)


def _ignore(result: torch.Tensor) -> None:
    """Makes a call of the timer's type out of one that returns its result."""
