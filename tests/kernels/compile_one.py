"""Run apart from pytest: compiles one tiny kernel for sm_90 and prints what `kernels.offline` reads off it."""

import json

import triton
import triton.language as tl
from triton.compiler import ASTSource
from triton.runtime import driver

from kernels.offline import OfflineDriver, disassemble, resource_usage


@triton.jit
def double(x):
    tl.store(x + tl.arange(0, 128), tl.load(x + tl.arange(0, 128)) * 2)


if __name__ == "__main__":
    offline = OfflineDriver(90)
    driver.set_active(offline)
    target = driver.active.get_current_target()
    cubin = triton.compile(ASTSource(double, {"x": "*fp32"}, {}, {}), target=target).asm["cubin"]
    print(json.dumps({"target": [target.backend, target.arch, target.warp_size], "usage": resource_usage(cubin),
                      "sass": disassemble(cubin)}))
