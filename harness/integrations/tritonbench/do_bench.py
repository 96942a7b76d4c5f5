"""Latencies as TritonBench takes them: its ``do_bench_wrapper``, around `triton.testing.do_bench` on a GPU.

Inside the window: CUDA events around each call, enqueued without waiting, so that the host is ahead of the device only
as far as flushing L2 and the call itself take the device longer than they take the host. L2 is always flushed. It
chooses the number of samples by time, and drops those beyond 1.5 interquartile ranges.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

REVISION = "db2155c807755c19f5d98c64917ec897f24061f3"  # of meta-pytorch/tritonbench, as in requirements/tritonbench.txt
INSTALL = "pip install --no-deps -r requirements/tritonbench.txt"
MODULES = ("tritonbench.components.do_bench",)
WARMUP_MS = 25  # its own defaults
REP_MS = 100


def missing(modules: tuple[str, ...] = MODULES) -> str:
    """Why ``modules`` can't be had here, in one line with what to do; empty if they can. Imports only packages."""
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ImportError:
            found = None
        if found is None:
            return f"{module.split('.')[0]} is not installed: {INSTALL}"
    return ""


def latencies_ms(call: Callable[[], None], device_type: str) -> list[float]:
    """Latencies of ``call`` in ms, ascending, outliers left out; on a CPU by the host's clock, without a flush.

    Raises `ImportError` where tritonbench isn't installed, and whatever the call raises.
    """
    from tritonbench.components.do_bench import do_bench_wrapper

    latency = do_bench_wrapper(call, warmup=WARMUP_MS, rep=REP_MS, grad_to_none=None, device=device_type)
    assert latency is not None  # it is only where failures are to be passed over
    return [float(time) for time in latency.times]
