"""Looks for a rival's package: present, missing, or present and broken."""

from __future__ import annotations

import importlib
import importlib.metadata
import re

import torch

from harness.backends.base import Availability

# How lines begin that libraries put below what went wrong: where it happened, and advice on finding out more.
ADVICE = re.compile(
    r"from user code:|Set TORCH|You can suppress this exception|Minifier script|Last frame execution|"  # torch.compile
    r"CUDA kernel errors might|For debugging consider|Compile with `?TORCH|Device-side assert|Search for `|"  # CUDA
    r"Exception raised from|C\+\+ CapturedTraceback|frame #0|"  # C++
    r"Repro command|For more info|Hint:|Note:|If you think this is a bug|[Pp]lease (report|file|open|include|try)")


def last_line(error: BaseException) -> str:
    """The type of an exception and the line of its message that says what went wrong, as one line: the last one above
    all advice, since a traceback may precede it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    below = next((index for index, line in enumerate(lines) if index and ADVICE.match(line)), len(lines))
    return f"{type(error).__name__}: {lines[below - 1]}" if lines else type(error).__name__


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution; None if it isn't installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_package(distribution: str, module: str, install: str) -> Availability:
    """Imports ``module`` of ``distribution``; ``install`` is the command that would install it. Never raises."""
    version = version_of(distribution)
    if version is None:
        return Availability(False, "", f"{distribution} is not installed: {install}", import_failed=True)
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a package does while it is imported is its row's message
        reason = f"{distribution} {version} fails to import: {last_line(error)}"
        return Availability(False, version, reason, import_failed=True)
    return Availability(True, version)


def find_gpu_package(device: torch.device, distribution: str, module: str, install: str) -> Availability:
    """`find_package`, which imports nothing where the device isn't an NVIDIA GPU."""
    if device.type != "cuda":
        return Availability(False, version_of(distribution) or "", "needs an NVIDIA GPU")
    return find_package(distribution, module, install)
