"""What FlashAttention-4 asks of a GPU while it compiles, answered without one.

FA4 looks at the device at import, when it picks tiles, and when CuTe DSL picks a target. Kernels are then compiled from
tensors without data (`FakeTensorMode`), and none is launched. The stubs stay for the rest of the process, so call
`pretend` in one that does nothing else, before torch or FA4 is used.
"""

from __future__ import annotations

import contextlib
import os
import types

import torch

_SMS = {90: 132, 100: 148}  # of an H200, a B200


def pretend(arch: int, dump: str) -> None:
    """From now on torch sees a GPU of compute capability ``arch`` (90 or 100), and CuTe DSL dumps into ``dump``:
    MLIR, PTX and cubin of each kernel."""
    os.environ.update(FLASH_ATTENTION_ARCH=f"sm_{arch}", CUTE_DSL_ARCH=f"sm_{arch}a", CUTE_DSL_DUMP_DIR=dump,
                      CUTE_DSL_KEEP="ir,ptx,cubin")
    capability = (arch // 10, arch % 10)
    properties = types.SimpleNamespace(
        multi_processor_count=_SMS[arch], major=capability[0], minor=capability[1], name=f"sm_{arch} (not here)",
        L2_cache_size=50 << 20, total_memory=140 << 30, shared_memory_per_block_optin=232_448)
    answers = {
        "is_available": lambda: True, "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties, "current_device": lambda: 0,
        "device_count": lambda: 1, "device": lambda *args, **kwargs: contextlib.nullcontext(),
        "current_stream": lambda *args: types.SimpleNamespace(cuda_stream=0)}
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
