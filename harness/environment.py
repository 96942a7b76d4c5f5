"""Which machine, software and commit a run's figures come from; no host name, user or path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.telemetry import Monitor

ROOT = Path(__file__).resolve().parent.parent
TRITON_DISTRIBUTIONS = ("fbtriton", "triton", "pytorch-triton", "triton-nightly")


@dataclass(frozen=True)
class DeviceEnvironment:
    """What one worker process runs on and with. Sizes in bytes; empty text where there is none."""

    device_type: str
    gpu: str
    driver: str
    cuda: str
    torch: str
    triton: str
    python: str
    compute_capability: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Checkout:
    """Commit of the harness; `dirty` is None where nothing tells."""

    commit: str
    dirty: bool | None


def describe_device(device: torch.device) -> DeviceEnvironment:
    """Describes this process's device and packages; makes a CUDA context. For workers."""
    python = platform.python_version()
    if device.type != "cuda":
        return DeviceEnvironment(device.type, cpu_name(), "", "", torch.__version__, triton_version(), python, "",
                                 os.cpu_count() or 0, 0, 0)
    properties = torch.cuda.get_device_properties(device)
    return DeviceEnvironment(
        "cuda", properties.name, Monitor(device).driver(), torch.version.cuda or "", torch.__version__,
        triton_version(), python, f"{properties.major}.{properties.minor}", properties.multi_processor_count,
        properties.L2_cache_size, properties.total_memory)


def cpu_name() -> str:
    """Model of the processor, as Linux names it; else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else f"CPU {platform.machine()}"


def triton_version() -> str:
    """Distribution that provides triton, with its version, such as ``fbtriton 3.7.4``; empty if none is installed."""
    for name in TRITON_DISTRIBUTIONS:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def describe_checkout(root: Path = ROOT) -> Checkout:
    """Commit and whether tracked files differ from it.

    From git; where the harness is not in a checkout of its own (a bundle on a machine without git), from the
    environment variables HARNESS_COMMIT and HARNESS_DIRTY (``0`` or ``1``); else empty and None.
    """
    if (root / ".git").exists():
        try:
            commit, status = (
                subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True,
                               timeout=30).stdout.strip()
                for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]))
            return Checkout(commit[:12], bool(status))
        except (OSError, subprocess.SubprocessError):
            pass  # no git program, or a broken checkout: the variables may still tell
    dirty = os.environ.get("HARNESS_DIRTY", "")
    return Checkout(os.environ.get("HARNESS_COMMIT", "")[:12], None if dirty == "" else dirty not in ("0", "false"))
