"""Run apart from pytest, without TRITON_INTERPRET: compiles the Blackwell backward for sm_100a, without a GPU.

Prints one JSON line a variant: name, shared (bytes), estimate (what its options say), tmem (columns), stack (bytes a
thread), registers (those that roles ask for), spills (in the roles that issue matmuls and loads).
"""

from __future__ import annotations

import json
import re

import torch

from kernels.blackwell import backward
from kernels.blackwell.backward_options import LONG_TILES, PAIR, SHORT_TILES
from kernels.blackwell.backward_options import BlackwellBackwardOptions as Options
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.offline import compiled_launches, disassemble, resource_usage
from kernels.problem import JaggedProblem

WINDOW = Mask.make(True, (64, 0))
VARIANTS = {
    "64 rows": (Options(), None, {}),
    "64 rows, K and V twice, groups": (SHORT_TILES, None, {"num_heads_q": 8}),
    "64 rows, no switch": (Options(early_release=0, peel=False, warp_barriers=False, packed=False), None,
                           {"mask": WINDOW}),
    "128 rows, causal": (LONG_TILES, None, {"mask": Mask.make(True)}),
    "128 rows, launch control": (LONG_TILES, "clc", {}),
    "128 rows, D = 64": (None, None, {"head_dim": 64, "mask": WINDOW}),
    "pair": (PAIR, None, {}),
    "pair, window, launch control, fp16": (PAIR, "clc", {"mask": WINDOW, "dtype": torch.float16}),
    "pair, D = 64": (PAIR, None, {"head_dim": 64}),
}


def compile_main(options, schedule, changes):
    layout = JaggedLayout.from_lengths([300])
    values = {"num_heads_q": 2, "num_heads_kv": 2, "head_dim": 128, "dtype": torch.bfloat16, "softmax_scale": 0.1}
    case = JaggedProblem(layout, layout, **(values | changes))
    q, k = torch.zeros(case.q_shape, dtype=case.dtype), torch.zeros(case.kv_shape, dtype=case.dtype)
    lse = torch.zeros(case.num_heads_q, layout.total)
    with compiled_launches(100) as launches:
        backward.backward(case, q, k, k, q, lse, q, schedule, options)
    (main,) = [each for each in launches if each.metadata.name == "jagged_backward"]
    return case, main


def roles(sass):
    """The disassembly, cut where a role takes its registers."""
    return re.split(r"USETMAXREG", sass)


def main():
    for name, (options, schedule, changes) in VARIANTS.items():
        case, kernel = compile_main(options, schedule, changes)
        issuing = [part for part in roles(disassemble(kernel.asm["cubin"]))
                   if "UTCHMMA" in part or ("UTMALDG" in part and "UTMAREDG" not in part)]
        chosen = options or backward.select(case, "zigzag")
        print(json.dumps({
            "name": name, "shared": kernel.metadata.shared, "estimate": chosen.smem_bytes(case.head_dim),
            "tmem": kernel.metadata.tmem_size, "stack": resource_usage(kernel.asm["cubin"])["stack"],
            "registers": sorted({int(count) for count in re.findall(r"setmaxnreg\.\S+\s+(\d+)", kernel.asm["ptx"])}),
            "issuing_roles": len(issuing), "spills": sum(part.count("STL") for part in issuing)}))


if __name__ == "__main__":
    main()
