"""Compiling Triton and TLX kernels for a GPU that is not here, and reading what came out. Needs fbtriton, no GPU.

    driver.set_active(OfflineDriver(90))
    kernel = triton.compile(ASTSource(fn, signature, constants, {}), target=OfflineDriver(90).target, options={...})
    resource_usage(kernel.asm["cubin"])

    with compiled_launches(90) as launches:          # a launcher's own kernels, as it would launch them
        implementation.forward(problem, q, k, v)     # CPU tensors; nothing runs, so the results mean nothing

Run it without ``TRITON_INTERPRET``. The compiler accepts more shared or tensor memory than a GPU has: look at
``kernel.metadata.shared`` and ``.tmem_size``. The tools are those that ship inside the triton package.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

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


@contextlib.contextmanager
def compiled_launches(arch: int, sms: int | None = None) -> Iterator[list[Any]]:
    """Within it, a launch compiles its kernel for ``arch`` and adds Triton's compiled kernel to the list; none runs.

    Host code sees a GPU of that compute capability with ``sms`` SMs (default: an H200's 132 or a B200's 148), and
    tensors stay on the CPU. Raises `RuntimeError` under ``TRITON_INTERPRET``, where there is nothing to compile.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are interpreted, not compiled; unset it")
    launches: list[Any] = []
    run = JITFunction.run

    def compile_only(jit: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
        launches.append(run(jit, *args, grid=grid, warmup=True, **kwargs))
        return launches[-1]

    capability = (arch // 10, arch % 10)
    properties = types.SimpleNamespace(multi_processor_count=sms or (132 if arch < 100 else 148), major=capability[0],
                                       minor=capability[1], name=f"sm_{arch} (not here)")
    patches: list[tuple[Any, str, Any]] = [
        (JITFunction, "run", compile_only), (driver, "_active", OfflineDriver(arch)),
        (torch.cuda, "get_device_properties", lambda *args: properties),
        (torch.cuda, "get_device_capability", lambda *args: capability), (torch.cuda, "current_device", lambda: 0)]
    with contextlib.ExitStack() as undo:
        for owner, name, value in patches:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield launches


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
