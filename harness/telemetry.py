"""What a GPU says of itself through NVML: SM clock, power, temperature, throttle reasons. No root needed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

# NVML's clock event reasons by name; the constants' bits are fixed by nvml.h. Idle and a user's own clock setting
# are no throttling. `sw_power_cap` is the usual state of a card at its power limit, and says no more than that.
THROTTLE_REASONS = {
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal",
    0x0000000000000040: "hw_thermal",
    0x0000000000000080: "hw_power_brake",
    0x0000000000000100: "display_clocks",
}


@dataclass(frozen=True)
class Telemetry:
    """One reading, or several merged; None where there is no NVML or the device doesn't tell."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: str = ""


def decode_throttle(bits: int) -> str:
    """Names of the reasons in ``bits``, joined by ``+``; empty if the clock isn't held back."""
    return "+".join(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def merge(readings: Iterable[Telemetry]) -> Telemetry:
    """Median clock and power, highest temperature, and every throttle reason of the readings."""
    readings = list(readings)

    def known(name: str) -> list[float]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    clocks, powers, temperatures = known("sm_clock_mhz"), known("power_w"), known("temperature_c")
    seen = {reason for reading in readings for reason in reading.throttle.split("+")}
    return Telemetry(statistics.median(clocks) if clocks else None, statistics.median(powers) if powers else None,
                     max(temperatures) if temperatures else None,
                     "+".join(name for name in THROTTLE_REASONS.values() if name in seen))


class Monitor:
    """Reads one CUDA device through NVML; every reading is empty on a CPU or where NVML can't be used.

    The device is found by its UUID, since CUDA's numbers follow CUDA_VISIBLE_DEVICES and NVML's don't.
    ``problem`` says why there are no readings.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self.problem = ""
        if device.type != "cuda":
            self.problem = "not an NVIDIA GPU"
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = _handle(pynvml, str(torch.cuda.get_device_properties(device).uuid))
            self._nvml = pynvml
        except Exception as error:  # whatever NVML lacks here, times can be taken without it
            self.problem = f"no NVML: {type(error).__name__}: {error}"

    def read(self) -> Telemetry:
        """Readings of this moment."""
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return Telemetry()

        def ask(function: str, *arguments: Any) -> Any:
            try:
                return getattr(nvml, function)(handle, *arguments)
            except (nvml.NVMLError, AttributeError):  # not told on this device, or not known to this NVML
                return None

        power_mw = ask("nvmlDeviceGetPowerUsage")
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        clock = ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        temperature = ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        return Telemetry(None if clock is None else float(clock), None if power_mw is None else power_mw / 1000,
                         None if temperature is None else float(temperature), decode_throttle(bits or 0))

    def driver(self) -> str:
        """NVIDIA driver version; empty without NVML."""
        if self._nvml is None:
            return ""
        version = self._nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else version


def _handle(nvml: Any, uuid: str) -> Any:
    """NVML's handle of the GPU with a UUID as torch writes it (with or without the ``GPU-`` in front)."""
    wanted = uuid.removeprefix("GPU-").lower()
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        found = nvml.nvmlDeviceGetUUID(handle)
        found = found.decode() if isinstance(found, bytes) else found
        if found.removeprefix("GPU-").lower() == wanted:
            return handle
    raise LookupError(f"NVML lists no GPU with UUID {uuid}")
