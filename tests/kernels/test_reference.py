from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from kernels import reference
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.reference import (
    attention_reference,
    attention_reference_backward,
    attention_reference_lowp,
    attention_reference_lowp_backward,
    select_sequences,
)

FULL = Mask()
MASKS = {"full": FULL, "causal": Mask.make(True), "window": Mask(3, 2), "causal_window": Mask(4, 0),
         "right_only": Mask(None, 1)}
LENGTHS = {"self": ([5, 0, 17, 1, 9], [5, 0, 17, 1, 9]), "cross": ([7, 3, 0, 12, 4], [2, 9, 6, 12, 0]),
           "short_kv": ([20, 31, 6], [4, 4, 4]), "all_empty": ([0, 0], [0, 0]), "none": ([], [])}


def make(lengths_q, lengths_k, mask=FULL, heads=(4, 2), head_dim=8, dtype=torch.float64, scale=0.3,
         broadcast_q=False, seed=0):
    """``(problem, (q, k, v, dout))``."""
    problem = JaggedProblem(JaggedLayout.from_lengths(lengths_q), JaggedLayout.from_lengths(lengths_k), heads[0],
                            heads[1], head_dim, dtype, scale, mask, broadcast_q)
    generator = torch.Generator().manual_seed(seed)
    shapes = (problem.q_shape, problem.kv_shape, problem.kv_shape, problem.out_shape)
    return problem, tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


def autograd_oracle(problem, q, k, v, dout):
    """Out, dq, dk, dv by torch's own attention and autograd, sequence by sequence, from a mask of pairs."""
    q, k, v = (x.double().detach().requires_grad_() for x in (q, k, v))
    outs = []
    for b in range(problem.batch):
        (start_q, end_q), (start_k, end_k) = problem.layout_q.offsets[b:b + 2], problem.layout_k.offsets[b:b + 2]
        len_q, len_k = end_q - start_q, end_k - start_k
        distance = torch.arange(len_k)[None, :] - (torch.arange(len_q)[:, None] + (len_k - len_q))
        left, right = (math.inf if bound is None else bound for bound in (problem.mask.left, problem.mask.right))
        visible = (distance >= -left) & (distance <= right)
        rows_q = slice(0, len_q) if problem.broadcast_q else slice(start_q, end_q)
        keys, values = (x[start_k:end_k].repeat_interleave(problem.group_size, dim=1).transpose(0, 1) for x in (k, v))
        out = F.scaled_dot_product_attention(q[rows_q].transpose(0, 1), keys, values, attn_mask=visible,
                                             scale=problem.softmax_scale)
        sees = visible.any(dim=1)[None, :, None]
        outs.append(torch.where(sees, out, torch.zeros_like(out)).transpose(0, 1))
    out = torch.cat([q[:0], *outs])
    grads = torch.autograd.grad(out, (q, k, v), dout.double(), allow_unused=True)
    return out.detach(), *(torch.zeros_like(x) if grad is None else grad
                           for grad, x in zip(grads, (q, k, v), strict=True))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", MASKS)
def test_matches_torch(lengths, mask):
    problem, tensors = make(*LENGTHS[lengths], MASKS[mask])
    results = (attention_reference(problem, *tensors[:3])[0], *attention_reference_backward(problem, *tensors))
    for name, got, expected in zip(("out", "dq", "dk", "dv"), results, autograd_oracle(problem, *tensors), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
def test_broadcast_q_matches_torch(mask, heads):
    problem, tensors = make([6] * 4, [9, 0, 3, 6], MASKS[mask], heads=heads, broadcast_q=True)
    results = (attention_reference(problem, *tensors[:3])[0], *attention_reference_backward(problem, *tensors))
    for got, expected in zip(results, autograd_oracle(problem, *tensors), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("budget", [1, 40, 150, 1000])
@pytest.mark.parametrize("broadcast_q", [False, True])
def test_pieces_do_not_change_the_result(monkeypatch, budget, broadcast_q):
    problem, tensors = make([11] * 3, [11, 5, 20], Mask(6, 1), heads=(6, 3), broadcast_q=broadcast_q)
    whole = (*attention_reference(problem, *tensors[:3]), *attention_reference_backward(problem, *tensors))
    monkeypatch.setattr(reference, "SCORES_PER_PIECE", budget)
    sizes = [piece.visible.shape[0] * piece.visible.shape[1] * (piece.heads_q.stop - piece.heads_q.start)
             for piece in reference._pieces(problem, torch.device("cpu"))]
    assert max(sizes) <= max(budget, 20 * 2)  # one query row of one KV head is the least
    assert sum(sizes) == 11 * (11 + 5 + 20) * 6
    pieced = (*attention_reference(problem, *tensors[:3]), *attention_reference_backward(problem, *tensors))
    for got, expected in zip(pieced, whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_lse_is_the_natural_logarithm_of_the_sum():
    problem, (q, k, v, _) = make([4], [6], Mask.make(True), heads=(1, 1))
    _, lse = attention_reference(problem, q, k, v)
    assert lse.shape == (1, 4)
    for i in range(4):
        scores = [0.3 * float(q[i, 0] @ k[j, 0]) for j in range(i + 3)]
        assert lse[0, i].item() == pytest.approx(math.log(sum(math.exp(s) for s in scores)), rel=1e-12)


def test_queries_without_a_key_give_zero_and_no_gradient():
    problem, tensors = make([6, 4, 3], [2, 0, 3], Mask.make(True))
    out, lse = attention_reference(problem, *tensors[:3])
    dq, dk, dv = attention_reference_backward(problem, *tensors)
    blind = [0, 1, 2, 3, 6, 7, 8, 9]  # 6 queries over 2 keys, causal: the last two see; then no key at all
    sighted = [row for row in range(13) if row not in blind]
    assert (out[blind] == 0).all()
    assert (lse[:, blind] == -math.inf).all()
    assert (dq[blind] == 0).all()
    assert lse[:, sighted].isfinite().all()
    assert (out[sighted] != 0).all()
    assert dk.isfinite().all()
    assert dv.isfinite().all()


def test_scores_far_below_zero():
    problem, (q, k, v, dout) = make([5], [7], heads=(1, 1), scale=1.0)
    q, k = q.abs() * 30, -k.abs() * 30
    out, lse = attention_reference(problem, q, k, v)
    assert (lse < -88).all()  # exp underflows in fp32
    results = (out, *attention_reference_backward(problem, q, k, v, dout))
    for got, expected in zip(results, autograd_oracle(problem, q, k, v, dout), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    low, low_lse = attention_reference_lowp(problem, q, k, v, torch.bfloat16)
    assert low.isfinite().all()
    torch.testing.assert_close(low_lse.double(), lse, rtol=2e-2, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("neighbour", [0, 2])
def test_a_neighbours_nan_stays_there(value, neighbour):
    problem, tensors = make([6, 8, 5], [6, 8, 5])
    clean = (*attention_reference(problem, *tensors[:3]), *attention_reference_backward(problem, *tensors))
    start, end = problem.layout_q.offsets[neighbour:neighbour + 2]
    for x in tensors:
        x[start:end] = value
    spoilt = (*attention_reference(problem, *tensors[:3]), *attention_reference_backward(problem, *tensors))
    kept = [row for row in range(19) if not start <= row < end]
    for name, got, expected in zip(("out", "lse", "dq", "dk", "dv"), spoilt, clean, strict=True):
        if name == "lse":
            got, expected = got.T, expected.T
        assert torch.equal(got[kept], expected[kept]), name
        assert not got[start:end].isfinite().any(), name


@pytest.mark.parametrize("broadcast_q", [False, True])
def test_chosen_sequences_alone(broadcast_q):
    lengths_k = [4, 7, 0, 5]
    problem, tensors = make([6] * 4 if broadcast_q else [3, 7, 2, 6], lengths_k, Mask.make(True),
                            broadcast_q=broadcast_q)
    chosen = [3, 2, 1]
    out, lse = attention_reference(problem, *tensors[:3])
    dq, dk, dv = attention_reference_backward(problem, *tensors)
    some_out, some_lse = attention_reference(problem, *tensors[:3], sequences=chosen)
    some_dq, some_dk, some_dv = attention_reference_backward(problem, *tensors, sequences=chosen)
    first_q, first_k = problem.layout_q.offsets[1], problem.layout_k.offsets[1]
    pairs = [(some_out, out, first_q), (some_lse.T, lse.T, first_q), (some_dk, dk, first_k), (some_dv, dv, first_k)]
    if broadcast_q:
        only_first = attention_reference_backward(problem, *tensors, sequences=[0])[0]
        torch.testing.assert_close(some_dq + only_first, dq, rtol=1e-12, atol=1e-14)
    else:
        pairs.append((some_dq, dq, first_q))
    for got, expected, first in pairs:
        assert got.shape == expected.shape
        assert got[:first].isnan().all()
        torch.testing.assert_close(got[first:], expected[first:], rtol=1e-12, atol=1e-14)


def test_no_chosen_sequence():
    problem, tensors = make([6] * 2, [4, 7], broadcast_q=True)
    dq, dk, _ = attention_reference_backward(problem, *tensors, sequences=[])
    assert dq.shape == problem.q_shape
    assert (dq == 0).all()
    assert dk.isnan().all()


def test_select_sequences_names_rows():
    problem, (q, k, v, _) = make([3, 7, 2], [4, 0, 5])
    part, rows_q, rows_k = select_sequences(problem, [2, 0])
    assert part.layout_q.lengths.tolist() == [2, 3]
    assert part.layout_k.lengths.tolist() == [5, 4]
    assert rows_q.tolist() == [10, 11, 0, 1, 2]
    assert rows_k.tolist() == [4, 5, 6, 7, 8, 0, 1, 2, 3]
    out, _ = attention_reference(part, q[rows_q], k[rows_k], v[rows_k])
    assert torch.equal(out, attention_reference(problem, q, k, v)[0][rows_q])


@pytest.mark.parametrize("wrong", [[3], [-1], [0, 5]])
def test_select_sequences_refuses_what_is_not_there(wrong):
    problem, _ = make([3, 7, 2], [4, 0, 5])
    with pytest.raises(IndexError, match="sequences: expected 0 to 2"):
        select_sequences(problem, wrong)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2.0**-9), (torch.float16, 2.0**-12)])
@pytest.mark.parametrize("broadcast_q", [False, True])
def test_the_twin_errs_by_its_dtypes_rounding(dtype, unit, broadcast_q):
    lengths_q = [48] * 3 if broadcast_q else [64, 33, 80]
    problem, tensors = make(lengths_q, [64, 40, 80], Mask.make(True), head_dim=32, dtype=dtype, scale=32**-0.5,
                            broadcast_q=broadcast_q)
    exact = (attention_reference(problem, *tensors[:3])[0], *attention_reference_backward(problem, *tensors))
    out, lse = attention_reference_lowp(problem, *tensors[:3])
    low = (out, *attention_reference_lowp_backward(problem, *tensors))
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), attention_reference(problem, *tensors[:3])[1], rtol=1e-5, atol=1e-5)
    for name, got, expected in zip(("out", "dq", "dk", "dv"), low, exact, strict=True):
        assert got.dtype == dtype, name
        assert got.shape == expected.shape, name
        error = (got.double() - expected).abs().max() / expected.abs().max()
        assert unit / 8 < error < unit * 8, name  # neither as good as fp32 nor worse than some roundings


def test_the_twin_rounds_inputs_that_are_not_in_its_dtype():
    problem, tensors = make([9, 4], [9, 6])
    rounded = tuple(x.bfloat16() for x in tensors)
    for got, expected in zip(attention_reference_lowp_backward(problem, *tensors, dtype=torch.bfloat16),
                             attention_reference_lowp_backward(problem, *rounded, dtype=torch.bfloat16), strict=True):
        assert torch.equal(got, expected)


def test_fp32_oracle_is_near_fp64():
    problem, tensors = make(*LENGTHS["cross"], Mask.make(True))
    out, _ = attention_reference(problem, *tensors[:3], dtype=torch.float32)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), attention_reference(problem, *tensors[:3])[0], rtol=1e-4, atol=1e-5)


def test_inputs_of_any_strides_are_left_as_they_are():
    problem, (q, k, v, _) = make([5, 3], [5, 3])
    wide = torch.cat([q, q], dim=2)[..., :8]
    dout = torch.ones(1, dtype=torch.float64).expand(problem.out_shape)
    before = wide.clone()
    for got, expected in zip(attention_reference_backward(problem, wide, k, v, dout),
                             attention_reference_backward(problem, q, k, v, dout.contiguous()), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(wide, before)


def test_a_long_sequence_fits_the_budget():
    problem, tensors = make([300, 4096], [1, 4096], Mask.make(True), heads=(2, 1), head_dim=4, dtype=torch.float32)
    pieces = list(reference._pieces(problem, torch.device("cpu")))
    assert all((p.rows_q.stop - p.rows_q.start) * 2 * 4096 <= reference.SCORES_PER_PIECE for p in pieces)
    assert len(pieces) > 2
    out, lse = attention_reference(problem, *tensors[:3], dtype=torch.float32, sequences=[1])
    last = 0.3 * tensors[0][-1].double() @ tensors[1][300 - 299:, 0].double().T  # the last query sees every key
    expected = torch.softmax(last, dim=-1) @ tensors[2][1:, 0].double()
    torch.testing.assert_close(out[-1].double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse[:, -1].double(), torch.logsumexp(last, dim=-1), rtol=1e-5, atol=1e-5)
    assert out[:300].isnan().all()
