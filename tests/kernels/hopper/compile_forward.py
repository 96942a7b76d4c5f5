"""Run apart from pytest, without TRITON_INTERPRET: compiles the Hopper forward for sm_90a, without a GPU.

Prints one JSON line a kernel: case, shared (bytes), spills (accesses of local memory), set_registers (setmaxnreg), and
of every innermost loop with matmuls and exponentials: whether its last exponential comes before its wait for O += P V,
and how often it has certain instructions where `settle` skips its step done again.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import triton
from forward_cases import MASKS, problem
from triton.compiler import ASTSource
from triton.runtime import driver

from kernels.hopper.forward import heads_a_section, jagged_forward, kernel_constants, launch_options
from kernels.hopper.options import VARIANTS
from kernels.offline import OfflineDriver, disassemble

HOPPER = OfflineDriver(90)


def compile_forward(options, dim, mask):
    case = problem([1], [1], 4, 4, dim=dim, mask=MASKS[mask])
    bounds = case.mask.left is not None, case.mask.right is not None
    sections = heads_a_section(options, 4, 4, dim, 1) < 4
    constants = kernel_constants(options, dim, *bounds, sections)
    types = dict.fromkeys(jagged_forward.arg_names, "i32")
    types.update(dict.fromkeys(constants, "constexpr"), lse="*fp32", tiles="*i32", header="*i32", scale="fp32")
    for name, rows in (("q", 64), ("k", options.block_n), ("v", options.block_n), ("o", 64)):
        types[f"desc_{name}"] = f"tensordesc<bf16[1,1,{rows},{dim}]>"
    values = {(jagged_forward.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(jagged_forward, types, values, {}), target=HOPPER.target,
                          options={"num_warps": 4, "num_stages": 1, **launch_options(options)})


def inner_loops(sass):
    """Instructions of every innermost loop with matmuls and exponentials, labels (``.L_x_1:``) among them."""
    labels, code = {}, []
    for line in sass.splitlines():
        if label := re.match(r"^(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(code)
            code.append(label[0])
        elif instruction := re.match(r"^\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            code.append(instruction[1])
    # A branch back without a condition is the return from a wait that stands elsewhere.
    branches = ((at, re.search(r"^@.*BRA.*`\((\.L_x_\d+)\)", text)) for at, text in enumerate(code))
    loops = [(labels[to[1]], at) for at, to in branches if to and labels.get(to[1], at) < at]
    loops = [(a, b) for a, b in loops if any("HGMMA" in text for text in code[a:b])]
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    bodies = [code[a:b + 1] for a, b in inner]
    return [body for body in bodies if any("MUFU.EX2" in text for text in body)]


def beside_matmul(body):
    """No exponential follows the loop's wait for its last matmul."""
    wait = max(at for at, text in enumerate(body) if "WARPGROUP.DEPBAR" in text)
    return max(at for at, text in enumerate(body) if "MUFU.EX2" in text) < wait


def step(body):
    """Counts of some instructions and of all, without what the branch after the vote jumps over."""
    vote = next((at for at, text in enumerate(body) if text.startswith("VOTE.ANY")), None)
    if vote is not None:
        branch = next(at for at in range(vote, len(body)) if "BRA" in body[at])
        body = body[:branch] + body[body.index(re.search(r"\.L_x_\d+", body[branch])[0] + ":"):]
    names = {"maxima": "FMNMX", "exchanges": "SHFL", "exponentials": "MUFU.EX2", "products": "FMUL"}
    counts = {name: sum(text.split(" ")[0].startswith(opcode) for text in body) for name, opcode in names.items()}
    return {**counts, "all": sum(not text.endswith(":") for text in body)}


def main():
    driver.set_active(HOPPER)
    exact = {f"{name}_exact": replace(VARIANTS[name], stale_max=False) for name in ("solo64", "pair128")}
    for name, variant in {**VARIANTS, **exact}.items():
        cases = [("full", variant)]
        cases.append(("causal" if name == "tri64" else "window", replace(variant, schedule="dynamic", section_mb=0)))
        for mask, options in cases:
            dim = 128 if options.why_not(128, MASKS[mask]) is None else 64
            compiled = compile_forward(options, dim, mask)
            sass = disassemble(compiled.asm["cubin"])
            print(json.dumps({
                "case": f"{name}-{dim}-{mask}", "shared": compiled.metadata.shared, "ctas_per_sm": options.ctas_per_sm,
                "estimate": options.shared_memory(dim), "spills": len(re.findall(r"\b(?:STL|LDL)\b", sass)),
                "set_registers": len(re.findall(r"setmaxnreg", compiled.asm["ptx"])),
                "beside_matmul": [beside_matmul(body) for body in inner_loops(sass)],
                "steps": [step(body) for body in inner_loops(sass)]}), flush=True)


if __name__ == "__main__":
    main()
