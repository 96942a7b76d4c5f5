"""Run apart from pytest, without TRITON_INTERPRET: compiles the Hopper backward for sm_90a, without a GPU.

Prints one JSON line a variant: name, shared (bytes), buffers (bytes of it that were expected), stack (bytes a thread,
0 if nothing spills), instructions (of the whole kernel, 16 bytes each), set_registers (setmaxnreg requests).
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import torch
import triton
from triton.compiler import ASTSource
from triton.runtime import driver

from kernels.hopper.backward import kernel_constants
from kernels.hopper.backward_kernel import jagged_backward
from kernels.hopper.backward_options import SHORT_GAP, buffer_bytes, select
from kernels.hopper.backward_options import HopperBackwardOptions as Options
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.offline import OfflineDriver, resource_usage
from kernels.problem import JaggedProblem

HOPPER = OfflineDriver(90)
EXECUTABLE = 4  # a flag of a section


def problem(length_q=1, length_k=1, **changes):
    values = {"num_heads_q": 2, "num_heads_kv": 2, "head_dim": 128, "dtype": torch.bfloat16, "softmax_scale": 0.1}
    layout_q, layout_k = (JaggedLayout.from_lengths([length]) for length in (length_q, length_k))
    return JaggedProblem(layout_q, layout_k, **(values | changes))


def chosen(length_q, length_k, **changes):
    """What the rule takes for sequences of about these lengths."""
    known = {name: value for name, value in changes.items() if name != "all_seen"}
    return select(problem(length_q, length_k, **known)), changes


# Name, options, and what is unlike in the problem; ``all_seen`` is of the schedule, and true unless it is there.
VARIANTS = {
    "short": chosen(500, 500), "short, pairs": chosen(250, 250),
    "short, pairs, keys unseen": chosen(250, 250, all_seen=False),
    "short, keys unseen": chosen(300, 500, all_seen=False), "short, long Q": chosen(2000, 300),
    "short, long Q, keys unseen": chosen(2000, 300, all_seen=False),
    "short, causal": chosen(1000, 1000, mask=Mask.make(True)),
    "short, causal, keys unseen": chosen(1000, 1000, mask=Mask.make(True), all_seen=False),
    "short, window": chosen(1000, 1000, mask=Mask.make(True, (64, 0))),
    "short, groups": chosen(500, 500, num_heads_q=8), "short, turns": chosen(1000, 1000),
    "short, turns, groups": chosen(1000, 1000, num_heads_q=8), "short, D = 64": chosen(500, 500, head_dim=64),
    "short, turns, keys unseen": chosen(1000, 1000, all_seen=False),
    "long, causal": chosen(4000, 4000, mask=Mask.make(True)), "shared Q": chosen(192, 1000, broadcast_q=True),
    "shared Q, groups": chosen(192, 1000, broadcast_q=True, num_heads_q=8),
    "shared Q, causal": chosen(192, 1000, broadcast_q=True, mask=Mask.make(True), all_seen=False),
    "shared Q, D = 64": chosen(192, 1000, broadcast_q=True, head_dim=64),
    "keys unseen": (Options(), {"all_seen": False}), "turns, keys unseen": (Options(turns=True), {"all_seen": False}),
    "hold": (Options(serpentine=True, hold=True), {}),
    "hold, causal": (Options(serpentine=True, hold=True), {"mask": Mask.make(True)}),
    "hold, turns": (Options(serpentine=True, hold=True, turns=True), {}),
    "hold, D = 64": (Options(serpentine=True, hold=True), {"head_dim": 64}),
    "default": (Options(), {}), "dQ once": (Options(dq_stages=1), {}), "dS once": (Options(ds_stages=1), {}),
    "all once": (Options(dq_stages=1, ds_stages=1), {}),
    "short gap": (SHORT_GAP, {}), "hints, rotated": (Options(l2_hints=True, rotate=True), {}),
    "one block of shared Q": (replace(SHORT_GAP, keep_dq=True), {"broadcast_q": True}),
    "causal": (Options(), {"mask": Mask.make(True)}), "window": (Options(), {"mask": Mask.make(True, (64, 0))}),
    "groups": (Options(), {"num_heads_q": 8}), "fp16": (Options(), {"dtype": torch.float16}),
    "skip": (Options(skip_half=True), {}), "skip, causal": (Options(skip_half=True), {"mask": Mask.make(True)}),
    "skip, counted": (Options(skip_half=True, counted=True, l2_hints=True), {}),
    "skip, all once": (Options(dq_stages=1, ds_stages=1, skip_half=True), {}),
    "skip, short gap": (replace(SHORT_GAP, skip_half=True), {}),
    "skip, groups": (Options(skip_half=True), {"num_heads_q": 8}),
    "skip, D = 64": (Options(skip_half=True), {"head_dim": 64}),
    "counted": (Options(counted=True), {}), "counted, causal": (Options(counted=True), {"mask": Mask.make(True)}),
    "counted, groups": (Options(counted=True, l2_hints=True), {"num_heads_q": 8}),
    "counted, short gap": (replace(SHORT_GAP, counted=True), {}),
    "counted, D = 64": (Options(counted=True), {"head_dim": 64}),
    "turns": (Options(turns=True), {}), "turns, groups": (Options(turns=True), {"num_heads_q": 8}),
    "serpentine, skip": (Options(skip_half=True, l2_hints=True, serpentine=True), {}),
    "serpentine, skip, causal": (Options(skip_half=True, l2_hints=True, serpentine=True), {"mask": Mask.make(True)}),
    "alternate": (Options(alternate=True), {}),
    "alternate, skip, causal": (Options(alternate=True, skip_half=True), {"mask": Mask.make(True)}),
    "pairs": (Options(pairs=True), {}),
    "D = 64": (Options(), {"head_dim": 64}),
    "D = 64, window": (Options(), {"head_dim": 64, "mask": Mask.make(True, (64, 0))}),
}


def compile_backward(options, changes):
    """The compiled kernel, and the bytes that its buffers should need."""
    known = {name: value for name, value in changes.items() if name != "all_seen"}
    case = problem(**known)
    constants = kernel_constants(case, options, options.turns, options.pairs, changes.get("all_seen", True))
    dim, names = case.head_dim, jagged_backward.arg_names
    buffers = buffer_bytes(options, dim, constants["KEEP"])
    types = dict.fromkeys(names, "i32")
    types.update(dict.fromkeys(constants, "constexpr"), rows="*fp32", tiles="*i32", bounds="*i32", scale="fp32",
                 scale_log2="fp32", desc_acc=f"tensordesc<fp32[64,{dim // 2}]>")
    element = "bf16" if case.dtype == torch.bfloat16 else "fp16"
    types |= {name: kind for name, kind in (("out", f"*{element}"), ("dout", f"*{element}"), ("lse", "*fp32"),
                                            ("acc", "*fp32"), ("dq", f"*{element}"), ("counters", "*i32"))
              if name in names}
    for name in ("q", "do", "k", "v", "dk", "dv", "dq"):
        types[f"desc_{name}"] = f"tensordesc<{element}[1,1,64,{dim // 2 if name == 'dq' else dim}]>"
    fixed = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names
               if types[name].startswith("*") or name == "row_stride"}
    cluster = {"ctas_per_cga": (2, 1, 1)} if options.pairs else {}
    return triton.compile(ASTSource(jagged_backward, types, fixed, aligned), target=HOPPER.target,
                          options={"num_warps": 4, "num_stages": 1} | cluster), buffers


def instructions(cubin):
    """How many a kernel has, from the sizes of the ELF file's executable sections."""
    table, (size, count) = struct.unpack_from("<Q", cubin, 0x28)[0], struct.unpack_from("<HH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    return sum(section[5] for section in sections if section[2] & EXECUTABLE) // 16


def main():
    driver.set_active(HOPPER)
    for name, (options, changes) in VARIANTS.items():
        kernel, buffers = compile_backward(options, changes)
        print(json.dumps({"name": name, "shared": kernel.metadata.shared, "buffers": buffers,
                          "stack": resource_usage(kernel.asm["cubin"])["stack"],
                          "instructions": instructions(kernel.asm["cubin"]),
                          "set_registers": kernel.asm["ptx"].count("setmaxnreg.inc")}))


if __name__ == "__main__":
    main()
