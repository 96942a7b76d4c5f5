from __future__ import annotations

import gc
import time

import pytest
import torch

from harness import timing
from harness.ceilings import measure_ceilings
from harness.timing import BlockPlan, Timer

CPU = torch.device("cpu")


def test_latency_is_the_calls_own_time_in_ms() -> None:
    latencies = Timer(CPU).sample(lambda: time.sleep(0.003), BlockPlan(host_ahead=True, min_samples=5, max_samples=5))
    assert len(latencies) == 5
    assert 3.0 <= sorted(latencies)[0] < 30.0


def test_at_least_min_samples_however_slow() -> None:
    plan = BlockPlan(host_ahead=False, warmup=1, min_samples=4, max_samples=50, max_seconds=0.001)
    assert len(Timer(CPU).sample(lambda: time.sleep(0.002), plan)) == 4


def test_at_most_max_samples_however_fast() -> None:
    plan = BlockPlan(host_ahead=False, cold=False, min_samples=1, max_samples=7, max_seconds=60.0)
    assert len(Timer(CPU).sample(lambda: None, plan)) == 7


def test_more_samples_while_there_is_time() -> None:
    plan = BlockPlan(host_ahead=False, cold=False, warmup=1, min_samples=1, max_samples=10**6, max_seconds=0.05)
    assert len(Timer(CPU).sample(lambda: time.sleep(0.001), plan)) > 5


def test_warm_up_calls_come_first_and_are_not_counted() -> None:
    calls = []
    plan = BlockPlan(host_ahead=False, cold=False, warmup=40, min_samples=3, max_samples=3)
    assert len(Timer(CPU).sample(lambda: calls.append(1), plan)) == 3
    assert len(calls) >= 43


def test_cold_flushes_before_each_sample_and_warm_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for cold in (True, False):
        timer = Timer(CPU)
        events: list[str] = []
        flush = timer._flush_buffer.zero_
        monkeypatch.setattr(timer, "_flush_buffer", type("Buffer", (), {
            "zero_": staticmethod(lambda e=events, f=flush: (f(), e.append("flush")))}))
        monkeypatch.setattr(timing, "WARMUP_SECONDS", 0.0)
        timer.sample(lambda e=events: e.append("call"),
                     BlockPlan(host_ahead=False, cold=cold, warmup=1, min_samples=2, max_samples=2))
        assert events == (["call", *["flush", "call"] * 2] if cold else ["call"] * 3)


def test_garbage_is_not_collected_within_a_block_but_again_after_it() -> None:
    enabled = []
    plan = BlockPlan(host_ahead=False, cold=False, warmup=1, min_samples=2, max_samples=2)
    Timer(CPU).sample(lambda: enabled.append(gc.isenabled()), plan)
    assert enabled[-2:] == [False, False]
    assert gc.isenabled()


@pytest.mark.parametrize(("engine", "spins"), [("cuda_events", 12), ("cuda_events_sustained", 1)])
def test_a_sustained_batch_has_one_pause(monkeypatch: pytest.MonkeyPatch, engine: str, spins: int) -> None:
    log: list[str] = []

    class Event:
        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, end: Event) -> float:
            return 1.0

    timer = Timer(CPU)
    monkeypatch.setattr(timer, "device", torch.device("cuda"))
    monkeypatch.setattr(timer, "_synchronize", lambda: None)
    monkeypatch.setattr(timing, "_event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("spin"))
    plan = BlockPlan(host_ahead=True, engine=engine, warmup=1, min_samples=12, max_samples=12)
    assert timer.sample(lambda: log.append("call"), plan) == [1.0] * 12
    assert log.count("spin") == spins
    assert log[log.index("spin"):][:4] == ["spin", "event", "call", "event"]


def test_a_call_that_raises_is_not_swallowed() -> None:
    def fail() -> None:
        raise RuntimeError("broken kernel")

    with pytest.raises(RuntimeError, match="broken kernel"):
        Timer(CPU).sample(fail, BlockPlan(host_ahead=False))
    assert gc.isenabled()


@pytest.mark.gpu
def test_kernel_scope_leaves_host_time_out_and_operation_scope_does_not() -> None:
    device = torch.device("cuda")
    x = torch.zeros(2**20, device=device)

    def call() -> None:
        x.add_(1)
        time.sleep(0.002)
        x.add_(1)

    timer = Timer(device)
    plan = {"min_samples": 10, "max_samples": 10}
    kernel = sorted(timer.sample(call, BlockPlan(host_ahead=True, **plan)))[5]
    operation = sorted(timer.sample(call, BlockPlan(host_ahead=False, **plan)))[5]
    assert kernel < 0.5
    assert 2.0 < operation < 5.0


@pytest.mark.gpu
def test_timer_agrees_with_a_spin_of_known_length() -> None:
    cycles = 2_000_000
    latencies = Timer(torch.device("cuda")).sample(lambda: torch.cuda._sleep(cycles), BlockPlan(host_ahead=True))
    assert 0.8 <= sorted(latencies)[len(latencies) // 2] <= 4.0  # 1.0 ms at 2 GHz


def test_ceilings_of_this_device(device: torch.device) -> None:
    ceilings = measure_ceilings(device)
    assert ceilings.matmul_tflops > 0
    assert ceilings.copy_tbps > 0
    if device.type == "cuda":
        assert ceilings.matmul_tflops > 20
        assert ceilings.copy_tbps > 0.2
