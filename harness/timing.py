"""The timer: the one place where a latency is taken.

What is inside the window:

- Kernel scope on a GPU: device work alone. A spinning kernel holds the stream while the host enqueues start event,
  call and end event; its length is calibrated to the host's time for that, so the device never waits for the host.
- Operation scope on a GPU: the device is idle when the start event is recorded, so host work (scheduling, Python,
  autograd, launches) counts as far as the device waits for it; the end event is recorded after the call returns.
- On a CPU: both scopes are the call's wall-clock time.
- Engine `cuda_events_sustained`: kernel scope spins once a batch of samples instead of before each, which is enough
  where the device is the slower one. Without those pauses a card at its power limit clocks lower.
- Engine `tritonbench`: what `harness.integrations.tritonbench.do_bench` says, in both scopes alike.

Cache state: cold (the default) writes a buffer of twice the L2 cache between samples, outside the window, so that a
sample finds none of its inputs in L2 (on a CPU a fixed 32 MiB buffer, which empties private caches only). Warm does
not.

Warm-up: every block begins with untimed calls, at least as many as asked for and for at least `WARMUP_SECONDS`, so
that clocks have risen after the pause since the backend's last block.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from harness.integrations.tritonbench import do_bench

Call = Callable[[], None]

WARMUP_SECONDS = 0.01
CPU_BUFFER_BYTES = 32 * 2**20
SPIN_CYCLES_PER_SECOND = 2.0e9  # at least the SM clock of any supported GPU, so that a spin is never too short
SPIN_MARGIN = 1.5
SPIN_MIN_SECONDS = 20e-6
SPIN_MAX_SECONDS = 0.05
EVENT_RESOLUTION_MS = 5e-4  # two CUDA events closer than this may read as simultaneous
QUEUE_DEPTH = 16  # samples enqueued before the host waits: far below the depth at which launches block


@dataclass(frozen=True)
class BlockPlan:
    """How one block of samples is taken.

    ``host_ahead`` is kernel scope's window, see the module; ``cold`` flushes L2 before every sample. A block has at
    least ``min_samples``, and more until ``max_samples`` or ``max_seconds`` (flushes and waiting included) is reached.
    ``engine`` is a `harness.config.TimingConfig`'s; with `tritonbench` samples come as many at a time as its do_bench
    takes, so there may be more than ``max_samples``.
    """

    host_ahead: bool
    engine: str = "cuda_events"
    cold: bool = True
    warmup: int = 3
    min_samples: int = 15
    max_samples: int = 100
    max_seconds: float = 0.15


class Timer:
    """Takes samples of a call on one device. Keeps its flush buffer, so make one and use it for all rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        flush_bytes = CPU_BUFFER_BYTES
        if device.type == "cuda":
            flush_bytes = max(2 * torch.cuda.get_device_properties(device).L2_cache_size, flush_bytes)
        self._flush_buffer = torch.empty(flush_bytes // 4, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Device memory that the timer holds."""
        return self._flush_buffer.numel() * self._flush_buffer.element_size()

    def sample(self, call: Call, plan: BlockPlan) -> list[float]:
        """One block: latencies of ``call`` in ms, after the warm-up. Raises whatever the call raises."""
        self._warm_up(call, plan.warmup)
        latencies: list[float] = []
        with _no_garbage_collection():
            take, batch = self._taker(call, plan)
            end = time.perf_counter() + plan.max_seconds
            while len(latencies) < plan.min_samples or (len(latencies) < plan.max_samples
                                                        and time.perf_counter() < end):
                latencies += take(min(batch, plan.max_samples - len(latencies)))
        return latencies

    def _taker(self, call: Call, plan: BlockPlan) -> tuple[Callable[[int], list[float]], int]:
        """A function that takes some samples, and how many to ask it for at once."""
        if plan.engine == "tritonbench":
            return lambda _: do_bench.latencies_ms(call, self.device.type), 1
        if self.device.type != "cuda":
            return lambda n: [self._sample_cpu(call, plan.cold) for _ in range(n)], 1
        if not plan.host_ahead:
            return lambda n: [self._sample_operation(call, plan.cold) for _ in range(n)], 1
        spin_cycles = int(self._enqueue_seconds(call) * SPIN_MARGIN * SPIN_CYCLES_PER_SECOND)
        sustained = plan.engine == "cuda_events_sustained"
        batch = QUEUE_DEPTH if sustained else min(QUEUE_DEPTH, plan.min_samples)
        return lambda n: self._samples_host_ahead(call, n, plan.cold, spin_cycles, sustained), batch

    def _warm_up(self, call: Call, calls: int) -> None:
        end = time.perf_counter() + WARMUP_SECONDS
        done = 0
        while done < calls or time.perf_counter() < end:
            call()
            self._synchronize()
            done += 1

    def _sample_cpu(self, call: Call, cold: bool) -> float:
        if cold:
            self._flush_buffer.zero_()
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3

    def _sample_operation(self, call: Call, cold: bool) -> float:
        if cold:
            self._flush_buffer.zero_()
        self._synchronize()
        start, end = _event(), _event()
        start.record()
        call()
        end.record()
        end.synchronize()
        return _elapsed_ms(start, end)

    def _samples_host_ahead(self, call: Call, n: int, cold: bool, spin_cycles: int, spin_once: bool) -> list[float]:
        pairs = [(_event(), _event()) for _ in range(n)]
        for index, (start, end) in enumerate(pairs):
            if cold:
                self._flush_buffer.zero_()
            if index == 0 or not spin_once:
                torch.cuda._sleep(spin_cycles)
            start.record()
            call()
            end.record()
        self._synchronize()
        return [_elapsed_ms(start, end) for start, end in pairs]

    def _enqueue_seconds(self, call: Call) -> float:
        """Longest of three host times to enqueue one sample on an idle device, within the spin's bounds."""
        longest = SPIN_MIN_SECONDS
        for _ in range(3):
            self._synchronize()
            begin = time.perf_counter()
            start, end = _event(), _event()
            start.record()
            call()
            end.record()
            longest = max(longest, time.perf_counter() - begin)
        self._synchronize()
        return min(longest, SPIN_MAX_SECONDS)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _elapsed_ms(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return max(start.elapsed_time(end), EVENT_RESOLUTION_MS)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
