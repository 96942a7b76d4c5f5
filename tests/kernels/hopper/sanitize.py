"""Three small cases of a direction on a Hopper GPU, each against the oracle, to be run under compute-sanitizer:

    PYTHONPATH=. compute-sanitizer --tool memcheck --error-exitcode 9 python tests/kernels/hopper/sanitize.py fwd

or ``bwd``. Exits 0 if every result is right (and 9 if the sanitizer found something). Kernels are compiled as they are.
"""

from __future__ import annotations

import sys

import torch
from forward_cases import EDGES, MASKS, check, problem, tensors

from kernels.hopper import IMPLEMENTATION
from kernels.hopper.options import VARIANTS
from kernels.reference import attention_reference, attention_reference_backward, attention_reference_lowp_backward

# lengths of Q (an int: broadcast) and K, query heads, KV heads, head dimension, mask, the forward's variant
CASES = {
    "cross, empty sequences": (EDGES[0], EDGES[1], 2, 2, 128, "full", "pair128"),
    "causal, grouped heads": (EDGES[0], EDGES[1], 4, 2, 64, "causal", "tri64c"),
    "broadcast Q": (192, EDGES[1], 2, 1, 128, "full", "trio64"),
}


def run_forward(case, variant):
    q, k, v = tensors(case, "cuda")
    for options in (None, VARIANTS[variant]):
        check(case, q, k, v, *IMPLEMENTATION.forward(case, q, k, v, options=options))


def run_backward(case, variant):
    q, k, v = tensors(case, "cuda")
    dout = torch.randn(case.out_shape, device="cuda").to(case.dtype)
    out, lse = attention_reference(case, q, k, v, dtype=torch.float32)
    grads = IMPLEMENTATION.backward(case, q, k, v, out.to(case.dtype), lse.contiguous(), dout)
    exact = attention_reference_backward(case, q, k, v, dout)
    twin = attention_reference_lowp_backward(case, q, k, v, dout)
    for name, grad, right, low in zip(("dq", "dk", "dv"), grads, exact, twin, strict=True):
        allowed = 2 * (low.double() - right).abs().max() + 1e-3 * right.abs().max()
        assert (grad.double() - right).abs().max() <= allowed, name


def main(direction):
    run = {"fwd": run_forward, "bwd": run_backward}[direction]
    for name, (len_q, len_k, heads_q, heads_kv, dim, mask, variant) in CASES.items():
        run(problem(len_q, len_k, heads_q, heads_kv, dim=dim, mask=MASKS[mask], device="cuda"), variant)
        torch.cuda.synchronize()
        print(f"{direction}: {name}: right", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] not in (["fwd"], ["bwd"]):
        sys.exit("usage: sanitize.py fwd|bwd")
    main(sys.argv[1])
