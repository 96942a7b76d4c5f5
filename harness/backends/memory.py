"""How much memory a device has."""

from __future__ import annotations

import psutil
import torch


def device_memory(device: torch.device) -> int:
    """Bytes of memory of a GPU, or of this machine for a CPU, in use or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total
