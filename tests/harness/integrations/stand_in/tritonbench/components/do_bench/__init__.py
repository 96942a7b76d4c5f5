"""`do_bench_wrapper` on a CPU: five calls by the host's clock, ascending."""

import time


class Latency:
    def __init__(self, times):
        self.times = sorted(times)

    @property
    def p50(self):
        return self.times[(len(self.times) - 1) // 2]


def do_bench_wrapper(fn, warmup, rep, grad_to_none, device="cuda", use_cuda_graphs=False, bypass_fail=False):
    assert (warmup, rep, grad_to_none, device) == (25, 100, None, "cpu")
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        fn()
        times.append((time.perf_counter() - begin) * 1e3)
    return Latency(times)
