"""Problems in spoilt surroundings (NaN around every input), and the check of their results."""

from __future__ import annotations

import math

import torch

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.portable import IMPLEMENTATION
from kernels.portable.options import BackwardOptions, TileOptions
from kernels.problem import JaggedProblem
from kernels.reference import (
    attention_reference,
    attention_reference_backward,
    attention_reference_lowp,
    attention_reference_lowp_backward,
)

FULL = Mask()
GUARD = 4096  # elements on either side
NAMES = ("out", "lse", "dq", "dk", "dv")
TILE = TileOptions(BLOCK_M=32, BLOCK_N=16, num_warps=4, num_stages=1)
BACKWARD_TILES = BackwardOptions(dkdv=TileOptions(16, 32, 4, 1), dq=TILE)


def make_problem(device, lengths_q, lengths_k, mask=FULL, heads=(1, 1), head_dim=32, dtype=torch.bfloat16,
                 broadcast_q=False, scale=None):
    layouts = [JaggedLayout.from_lengths(lengths, device) for lengths in (lengths_q, lengths_k)]
    return JaggedProblem(layouts[0], layouts[1], *heads, head_dim, dtype,
                         1 / math.sqrt(head_dim) if scale is None else scale, mask, broadcast_q)


def make_tensors(problem, seed=0):
    """``(q, k, v, dout)``, each in the middle of a buffer of NaN."""
    generator = torch.Generator().manual_seed(seed)
    device = problem.layout_k.device
    tensors = []
    for shape in (problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape):
        buffer = torch.full((2 * GUARD + math.prod(shape),), math.nan, dtype=problem.dtype, device=device)
        inner = buffer[GUARD:GUARD + math.prod(shape)].view(shape)
        inner.copy_(torch.randn(shape, generator=generator))
        tensors.append(inner)
    return tensors


def run_portable(problem, tensors, tile=TILE, backward_tiles=BACKWARD_TILES):
    """``(out, lse, dq, dk, dv)``."""
    q, k, v, dout = tensors
    out, lse = IMPLEMENTATION.forward(problem, q, k, v, options=tile)
    return (out, lse, *IMPLEMENTATION.backward(problem, q, k, v, out, lse, dout, options=backward_tiles))


def check(problem, tensors, results):
    """Every element is right: its error is a small multiple of the low-precision reference's largest error."""
    q, k, v, dout = tensors
    exact = (*attention_reference(problem, q, k, v), *attention_reference_backward(problem, q, k, v, dout))
    lowp = (*attention_reference_lowp(problem, q, k, v), *attention_reference_lowp_backward(problem, q, k, v, dout))
    shapes = (problem.out_shape, (problem.num_heads_q, problem.layout_q.total), problem.q_shape, problem.kv_shape,
              problem.kv_shape)
    for name, shape, got, expected, twin in zip(NAMES, shapes, results, exact, lowp, strict=True):
        assert got.shape == shape, name
        assert got.dtype == (torch.float32 if name == "lse" else problem.dtype), name
        unseen = expected == -math.inf
        assert torch.equal(got == -math.inf, unseen), f"{name}: -inf in other places"
        got, expected, twin = (x.double().masked_fill(unseen, 0.0) for x in (got, expected, twin))
        if not expected.numel():
            continue
        allowed = 3 * (twin - expected).abs().max() + 1e-5 * expected.abs().max()
        error = (got - expected).abs().max()
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"  # a NaN fails here
