"""Run apart from pytest, without TRITON_INTERPRET: compiles changed switches of the Blackwell kernels for sm_100a.

``python compile_switch_changes.py SIZE SEED START COUNT`` takes that part of the sample. Prints one JSON line a change:
name, shared (bytes), tmem (columns), stack (bytes), setmaxnreg (requests in the PTX), or error, if it doesn't compile.
"""

import json
import sys

import torch
from blackwell.switch_changes import sample
from hopper.forward_cases import tensors

from kernels.blackwell import IMPLEMENTATION
from kernels.offline import compiled_launches, resource_usage


def launch(change):
    case = change.problem()
    options, schedule = change.resolved()
    q, k, v = tensors(case)
    with compiled_launches(100) as launches:
        if change.direction == "fwd":
            IMPLEMENTATION.forward(case, q, k, v, options=options)
        else:
            lse = torch.zeros(case.num_heads_q, case.layout_q.total)
            IMPLEMENTATION.backward(case, q, k, v, q, lse, q, schedule=schedule, options=options)
    (kernel,) = [each for each in launches if each.metadata.name in ("jagged_forward", "jagged_backward")]
    return kernel


def main():
    size, seed, start, count = (int(argument) for argument in sys.argv[1:])
    for change in sample(size, seed)[start:start + count]:
        line = {"name": str(change)}
        try:
            kernel = launch(change)
        except Exception as error:  # whatever the compiler raises is what the test reports
            line["error"] = f"{type(error).__name__}: {error}"[:300]
        else:
            line |= {"shared": kernel.metadata.shared, "tmem": kernel.metadata.tmem_size,
                     "stack": resource_usage(kernel.asm["cubin"])["stack"],
                     "setmaxnreg": kernel.asm["ptx"].count("setmaxnreg")}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
