"""Run apart from pytest, without TRITON_INTERPRET: compiles the Blackwell forward for sm_100a, without a GPU.

Prints one JSON line a kernel: name, shared (bytes), estimate (`shared_memory`), tmem and tmem_estimate (columns),
stack (bytes a thread: where spills go), spilling_loops (innermost loops that compute, load or multiply and touch it),
loops (all of those), registers (setmaxnreg, in the order of the PTX), softmax (registers asked for its groups), matmuls
(tcgen05.mma).
"""

import json
import re

import torch
from hopper.forward_cases import MASKS, problem, tensors

from kernels.blackwell import IMPLEMENTATION
from kernels.blackwell.options import BlackwellForwardOptions, resolve_forward
from kernels.offline import compiled_launches, disassemble, resource_usage

PLAIN = BlackwellForwardOptions(schedule="none", p_slices=1, skip_rescale=False, emulated_exp2=0, packed_math=False,
                                peel_masks=False, early_release=False, warp_barriers=False, skip_idle_group=False)
CASES = {
    "rule": (None, problem([300], [300])),
    "rule, causal": (None, problem([300], [300], mask=MASKS["causal"])),
    "rule, 64": (None, problem([300], [300], dim=64)),
    "own columns, window, fp16, 64": (BlackwellForwardOptions(alias_tmem=False, schedule="clc"),
                                      problem([300], [300], dim=64, mask=MASKS["window"], dtype=torch.float16)),
    "every switch off": (PLAIN, problem([300], [300], 4, 2)),
}


def innermost_loops(sass):
    """Instructions of every innermost loop with exponentials, loads or matmuls."""
    labels, code = {}, []
    for line in sass.splitlines():
        if label := re.match(r"^(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"^\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            code.append(instruction[1])
    branches = ((at, re.search(r"BRA.*`\((\.L_x_\d+)\)", text)) for at, text in enumerate(code))
    loops = [(labels[to[1]], at) for at, to in branches if to and labels.get(to[1], at) < at]
    loops = [code[a:b + 1] for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    return [loop for loop in loops if any(re.search(r"MUFU.EX2|UTMALDG|UTCHMMA", text) for text in loop)]


def main():
    for name, (options, case) in CASES.items():
        with compiled_launches(100) as launches:
            IMPLEMENTATION.forward(case, *tensors(case), options=options)
        kernel = launches[-1]
        chosen = resolve_forward(case, None, options)
        loops = innermost_loops(disassemble(kernel.asm["cubin"]))
        print(json.dumps({
            "name": name, "shared": kernel.metadata.shared, "estimate": chosen.shared_memory(case.head_dim),
            "tmem": kernel.metadata.tmem_size, "tmem_estimate": chosen.tmem_columns(case.head_dim),
            "stack": resource_usage(kernel.asm["cubin"])["stack"], "loops": len(loops),
            "softmax": chosen.registers,
            "spilling_loops": sum(any(re.search(r"\b(?:STL|LDL)\b", text) for text in loop) for loop in loops),
            "registers": [int(count) for count in re.findall(r"setmaxnreg\D+u32\s+(\d+)", kernel.asm["ptx"])],
            "matmuls": len(re.findall(r"tcgen05\.mma", kernel.asm["ptx"]))}), flush=True)


if __name__ == "__main__":
    main()
