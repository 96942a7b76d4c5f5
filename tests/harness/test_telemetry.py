from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from harness import telemetry
from harness.telemetry import Monitor, Telemetry, decode_throttle, merge


def test_reasons_match_nvml_and_idle_is_none() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert decode_throttle(pynvml.nvmlClocksEventReasonSwPowerCap) == "sw_power_cap"
    assert decode_throttle(pynvml.nvmlClocksEventReasonHwThermalSlowdown) == "hw_thermal"
    both = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwSlowdown
    assert decode_throttle(both) == "hw_slowdown+sw_thermal"
    assert decode_throttle(pynvml.nvmlClocksEventReasonGpuIdle) == ""


def test_merge_takes_median_clock_and_every_reason() -> None:
    merged = merge([Telemetry(1700, 650, 60, "sw_power_cap"), Telemetry(1750, 690, 65, ""),
                    Telemetry(1760, None, 63, "hw_slowdown")])
    assert merged == Telemetry(1750, 670, 65, "sw_power_cap+hw_slowdown")
    assert merge([Telemetry(), Telemetry()]) == Telemetry()


def test_a_cpu_has_empty_readings_and_says_why() -> None:
    monitor = Monitor(torch.device("cpu"))
    assert monitor.read() == Telemetry()
    assert monitor.problem == "not an NVIDIA GPU"
    assert monitor.driver() == ""


class FakeNvml(types.ModuleType):
    """NVML with two devices; the second tells no power."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-AAAA-{handle}"

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError("not supported")
        return 650_500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # the older name alone
        return 4 if handle == 1 else 0

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1755 - handle

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"


def on_gpu(monkeypatch: pytest.MonkeyPatch, nvml: Any, uuid: str) -> Monitor:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(telemetry.torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid=uuid))
    return Monitor(torch.device("cuda"))


def test_device_is_found_by_uuid_and_what_it_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = on_gpu(monkeypatch, FakeNvml("pynvml"), "aaaa-1")
    assert monitor.problem == ""
    assert monitor.read() == Telemetry(1754, None, 61, "sw_power_cap")
    assert monitor.driver() == "580.1"
    assert on_gpu(monkeypatch, FakeNvml("pynvml"), "GPU-AAAA-0").read() == Telemetry(1755, 650.5, 61, "")


def test_a_gpu_without_nvml_has_empty_readings_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = on_gpu(monkeypatch, None, "aaaa-1")  # None makes the import fail
    assert monitor.read() == Telemetry()
    assert monitor.problem.startswith("no NVML: ")
    assert "no GPU with UUID bbbb" in on_gpu(monkeypatch, FakeNvml("pynvml"), "bbbb").problem
