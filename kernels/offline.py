"""Compiling Triton and TLX kernels for a GPU that is not here, and reading what came out. Needs fbtriton, no GPU.

    driver.set_active(OfflineDriver(90))
    kernel = triton.compile(ASTSource(fn, signature, constants, {}), target=OfflineDriver(90).target, options={...})
    resource_usage(kernel.asm["cubin"])

Run it without ``TRITON_INTERPRET``. The compiler accepts more shared or tensor memory than a GPU has: look at
``kernel.metadata.shared`` and ``.tmem_size``. The tools are those that ship inside the triton package.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


class OfflineDriver:
    """Stands in for Triton's GPU driver: enough for compiling, and for host code that asks what it runs on.

    ``arch`` is 80, 90, 100 and so on.
    """

    def __init__(self, arch: int) -> None:
        self.target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return self.target

    def get_active_torch_device(self) -> torch.device:
        """Where tensors live."""
        return torch.device("cpu")

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default one."""
        return 0

    def map_python_to_cpp_type(self, type_name: str) -> str:
        """Not needed for compiling, but asked for."""
        return type_name


def resource_usage(cubin: bytes) -> dict[str, int]:
    """``registers`` and ``stack`` (bytes; where spills go) a thread at most, of a cubin's functions."""
    printed = _run("cuobjdump", "-res-usage", cubin)
    found = re.findall(r"REG:(\d+) STACK:(\d+)", printed)
    return {"registers": max(int(registers) for registers, _ in found), "stack": max(int(stack) for _, stack in found)}


def disassemble(cubin: bytes) -> str:
    """A cubin's SASS."""
    return _run("nvdisasm", "-c", cubin)


def _run(tool: str, option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([_TOOLS / tool, option, file.name], capture_output=True, text=True, check=True).stdout
