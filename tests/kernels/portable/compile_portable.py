"""Run apart from pytest, without TRITON_INTERPRET: compiles the portable kernels for GPUs that are not here.

Prints one JSON line for each: kernel, arch, tile, registers, stack (bytes a thread; what spills goes there).
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from kernels.portable.backward import delta_kernel, dkdv_kernel, dq_kernel
from kernels.portable.forward import forward_kernel
from kernels.portable.options import TileOptions
from kernels.portable.tiles import select

KERNELS = {"forward": forward_kernel, "dkdv": dkdv_kernel, "dq": dq_kernel}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class OfflineDriver:
    """Answers what compiling asks of a driver."""

    def __init__(self, target):
        self.target = target

    def get_current_target(self):
        return self.target

    def get_active_torch_device(self):
        return "cpu"

    def get_current_device(self):
        return 0

    def map_python_to_cpp_type(self, type_name):
        return type_name


def compile_kernel(kernel, arch, constants, fp32, options):
    """Registers and stack of a kernel with 16-byte aligned bf16 tensors, but ``fp32`` those named so."""
    target = GPUTarget("cuda", arch, 32)
    driver.set_active(OfflineDriver(target))
    types, values, hints = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        aligned = True
        if name in constants:
            types[name], values[(index,)], aligned = "constexpr", constants[name], False
        elif name in ("lse", "delta", *fp32):
            types[name] = "*fp32"
        elif name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv"):
            types[name] = "*bf16"
        elif name.startswith("cu_seqlens"):
            types[name] = "*i32"
        elif "scale" in name:
            types[name], aligned = "fp32", False
        else:
            types[name], aligned = "i32", name.startswith("stride")
        if aligned:
            hints[(index,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(ASTSource(kernel, types, values, hints), target=target, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    return int(registers), int(stack)


def main():
    for arch, head_dim, flags in ((80, 64, {"SEARCH": True}), (90, 128, {"HAS_LEFT": True, "HAS_RIGHT": True}),
                                  (100, 96, {"BROADCAST_Q": True})):
        for name, kernel in KERNELS.items():
            tile: TileOptions = select(name, arch // 10, head_dim, 256, 256)[1]
            constants = {"HAS_LEFT": False, "HAS_RIGHT": False, "GROUP": 2, "HEAD_DIM": head_dim,
                         "BLOCK_D": triton.next_power_of_2(head_dim), "BROADCAST_Q": False, "SEARCH": False,
                         "BLOCK_M": tile.BLOCK_M, "BLOCK_N": tile.BLOCK_N, **flags}
            registers, stack = compile_kernel(kernel, arch, constants, ("dq",) if constants["BROADCAST_Q"] else (),
                                              {"num_warps": tile.num_warps, "num_stages": tile.num_stages})
            print(json.dumps({"kernel": name, "arch": arch, "tile": str(tile), "registers": registers, "stack": stack}))
    registers, stack = compile_kernel(delta_kernel, 80, {"HEAD_DIM": 96, "BLOCK_D": 128, "BLOCK_M": 64}, (),
                                      {"num_warps": 4})
    print(json.dumps({"kernel": "delta", "arch": 80, "tile": "", "registers": registers, "stack": stack}))


if __name__ == "__main__":
    main()
