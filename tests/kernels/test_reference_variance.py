"""What the low-precision twin is expected to get wrong, against what it does get wrong over many draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.reference import (
    attention_reference,
    attention_reference_backward,
    attention_reference_lowp,
    attention_reference_lowp_backward,
    attention_reference_lowp_backward_variance,
    attention_reference_lowp_variance,
    rounding_variance,
)

BATCH = 200  # sequences alike: as many draws of each row's error
SHAPES = {
    "two keys": (1, 2, Mask(), False, torch.bfloat16),
    "causal": (6, 6, Mask(None, 0), False, torch.bfloat16),
    "window": (9, 12, Mask(3, 1), False, torch.float16),
    "shared q": (3, 5, Mask(), True, torch.bfloat16),
    "long": (70, 90, Mask(), False, torch.bfloat16),
}


def make(name: str) -> tuple[JaggedProblem, tuple[torch.Tensor, ...]]:
    len_q, len_k, mask, broadcast_q, dtype = SHAPES[name]
    batch = 8 if name == "long" else BATCH
    layouts = [JaggedLayout.from_lengths(np.full(batch, length), torch.device("cpu")) for length in (len_q, len_k)]
    problem = JaggedProblem(*layouts, num_heads_q=4, num_heads_kv=2, head_dim=32, mask=mask, broadcast_q=broadcast_q,
                            dtype=dtype, softmax_scale=32**-0.5)
    torch.manual_seed(5)
    shapes = (problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape)
    return problem, tuple(torch.randn(shape).to(dtype) for shape in shapes)


@pytest.mark.parametrize("name", SHAPES)
def test_the_variance_is_the_mean_squared_error_of_the_twin(name: str) -> None:
    problem, (q, k, v, dout) = make(name)
    exact = (attention_reference(problem, q, k, v)[0], *attention_reference_backward(problem, q, k, v, dout))
    twins = (attention_reference_lowp(problem, q, k, v)[0], *attention_reference_lowp_backward(problem, q, k, v, dout))
    variances = (attention_reference_lowp_variance(problem, q, k, v),
                 *attention_reference_lowp_backward_variance(problem, q, k, v, dout))
    for value, twin, variance in zip(exact, twins, variances, strict=True):
        assert variance.shape == value.shape
        assert variance.dtype == torch.float32
        expected = variance + rounding_variance(value, problem.dtype)
        error = (twin - value).square()
        assert float(error.sum() / expected.sum()) == pytest.approx(1.0, rel=0.25)
        rows = len(value) // problem.batch
        if rows and name != "long":  # each row of the sequences, over the sequences
            error, variance, expected = (x.unflatten(0, (-1, rows)).sum((0, 2, 3)) for x in (error, variance, expected))
            ratio = (error / expected)[variance > 0]  # results that are held exactly have no error at all
            assert ratio.min() > 0.6
            assert ratio.max() < 1.6


def test_one_key_needs_no_rounding() -> None:
    problem, tensors = make("two keys")
    layout = problem.layout_q
    alone = JaggedProblem(layout, layout, num_heads_q=4, num_heads_kv=2, head_dim=32, mask=Mask(), broadcast_q=False,
                          dtype=problem.dtype, softmax_scale=problem.softmax_scale)
    q, dout = tensors[0], tensors[3]
    k, v = tensors[1][:BATCH], tensors[2][:BATCH]
    for variance in (attention_reference_lowp_variance(alone, q, k, v),
                     *attention_reference_lowp_backward_variance(alone, q, k, v, dout)[1:]):
        assert variance.abs().max() < 1e-12


def test_rounding_has_the_variance_of_a_random_mantissa() -> None:
    torch.manual_seed(0)
    x = torch.randn(100_000) * 10
    for dtype in (torch.bfloat16, torch.float16):
        error = (x.to(dtype).float() - x).square().sum()
        assert float(error / rounding_variance(x, dtype).sum()) == pytest.approx(1.0, rel=0.1)
    assert rounding_variance(torch.zeros(3), torch.float16).min() > 0  # subnormal results have an absolute error
