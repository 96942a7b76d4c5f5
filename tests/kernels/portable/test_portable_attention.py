from __future__ import annotations

import math

import pytest
import torch
from portable_problems import check, make_problem, make_tensors, run_portable

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.portable import IMPLEMENTATION
from kernels.portable.options import BackwardOptions, TileOptions
from kernels.problem import JaggedProblem
from kernels.reference import attention_reference, attention_reference_backward, select_sequences

CAUSAL = Mask.make(True)

# name: lengths_q, lengths_k, further arguments of make_problem
CASES = {
    "self": ([33, 0, 48, 1], [33, 0, 48, 1], {"heads": (2, 2)}),
    "self causal": ([33, 0, 48, 1], [33, 0, 48, 1], {"mask": CAUSAL}),
    "cross": ([33, 32, 17], [48, 5, 16], {"heads": (2, 2)}),
    "cross causal": ([33, 32, 17], [48, 5, 16], {"mask": CAUSAL}),
    "short_kv": ([48, 40], [8, 8], {"heads": (4, 2)}),
    "no keys": ([20, 33, 0], [0, 20, 0], {"heads": (2, 1)}),
    "no queries": ([0, 33], [40, 20], {"heads": (2, 2)}),
    "more queries than keys, causal": ([48, 20], [20, 1], {"mask": CAUSAL}),
    "length 1": ([1, 1, 1], [1, 1, 1], {"mask": CAUSAL}),
    "one query, causal": ([1, 1], [40, 33], {"mask": CAUSAL}),
    "a tile": ([32, 16], [16, 32], {}),
    "a tile, causal": ([32, 16], [32, 48], {"mask": CAUSAL}),
    "a tile and one": ([33, 17], [17, 33], {"mask": CAUSAL}),
    "a tile less one": ([31, 15], [15, 31], {"mask": CAUSAL}),
    "window": ([48, 33], [48, 20], {"mask": Mask(7, 3)}),
    "window across tiles": ([48, 20], [65, 48], {"mask": Mask(34, 0)}),
    "window left only": ([48, 33], [33, 48], {"mask": Mask(20, None)}),
    "window right only": ([48, 33], [33, 48], {"mask": Mask(None, 20)}),
    "diagonal": ([40, 20], [40, 33], {"mask": Mask(0, 0)}),
    "window beyond the lengths": ([40], [33], {"mask": Mask(10**12, 10**12)}),
    "one sequence": ([48], [48], {"mask": CAUSAL, "heads": (4, 1)}),
    "fp16": ([33, 20], [40, 20], {"dtype": torch.float16, "head_dim": 64}),
    "D=64": ([33, 20], [40, 20], {"head_dim": 64, "heads": (4, 2)}),
    "D=96": ([33, 20], [40, 20], {"head_dim": 96, "mask": CAUSAL}),
    "D=128": ([33, 20], [40, 20], {"head_dim": 128}),
    "negative scale": ([33, 20], [40, 20], {"scale": -0.3}),
    "scale 0": ([33, 20], [40, 20], {"scale": 0.0, "mask": CAUSAL}),
    "broadcast_q": ([33] * 5, [40, 0, 17, 1, 33], {"broadcast_q": True, "heads": (2, 1)}),
    "broadcast_q causal": ([33] * 5, [40, 0, 17, 1, 33], {"broadcast_q": True, "mask": CAUSAL}),
    "broadcast_q window": ([20] * 5, [40, 17, 1, 33, 16], {"broadcast_q": True, "mask": Mask(9, 2), "heads": (2, 2)}),
    "broadcast_q D=96": ([7] * 4, [40, 0, 17, 16], {"broadcast_q": True, "head_dim": 96}),
    "broadcast_q no keys": ([7] * 2, [0, 0], {"broadcast_q": True}),
    "long tail": ([48, *[1] * 12], [1, 48, *[2] * 11], {"mask": CAUSAL}),
    "all empty": ([0, 0, 0], [0, 0, 0], {"heads": (2, 1)}),
    "no sequence": ([], [], {}),
    "queries, no keys at all": ([5, 40], [0, 0], {}),
    "keys, no queries at all": ([0, 0], [5, 40], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_matches_the_oracle(device, guarded_empty, case):
    lengths_q, lengths_k, arguments = CASES[case]
    problem = make_problem(device, lengths_q, lengths_k, **arguments)
    tensors = make_tensors(problem)
    check(problem, tensors, run_portable(problem, tensors))


@pytest.mark.parametrize("mask", [Mask(), Mask(10, 5)])
@pytest.mark.parametrize("broadcast_q", [False, True])
def test_default_tiles(device, guarded_empty, mask, broadcast_q):
    problem = make_problem(device, [70] * 2, [33, 100], mask, head_dim=64, broadcast_q=broadcast_q)
    tensors = make_tensors(problem)
    check(problem, tensors, run_portable(problem, tensors, None, None))


def test_broadcast_q_without_sequences_has_zero_gradient(device, guarded_empty):
    layout_q = JaggedLayout.from_lengths([], device)
    layout_q.max_seqlen = 20  # the dense q's rows
    problem = JaggedProblem(layout_q, JaggedLayout.from_lengths([], device), 2, 1, 32, torch.bfloat16, 1.0,
                            broadcast_q=True)
    out, lse, dq, dk, _ = run_portable(problem, make_tensors(problem))
    assert out.shape == (0, 2, 32)
    assert lse.shape == (2, 0)
    assert dk.shape == (0, 1, 32)
    assert dq.shape == (20, 2, 32)
    assert (dq == 0).all()


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, of the spoilt sequences themselves
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("mask", [Mask(), Mask(5, 5)])
def test_nonfinite_neighbours_stay_among_themselves(device, guarded_empty, value, mask):
    lengths_q, lengths_k = [20, 17, 33, 5], [18, 20, 20, 7]
    problem = make_problem(device, lengths_q, lengths_k, mask, heads=(2, 1))
    tensors = make_tensors(problem)
    clean = run_portable(problem, tensors)
    offsets = [problem.layout_q.offsets, problem.layout_k.offsets, problem.layout_k.offsets, problem.layout_q.offsets]
    for tensor, bounds in zip(tensors, offsets, strict=True):
        for sequence in (1, 3):
            tensor[bounds[sequence]:bounds[sequence + 1]] = value
    spoilt = run_portable(problem, tensors)
    _, rows_q, rows_k = select_sequences(problem, [0, 2])
    for index, rows in ((0, rows_q), (2, rows_q), (3, rows_k), (4, rows_k)):
        assert torch.equal(spoilt[index][rows], clean[index][rows])
    assert torch.equal(spoilt[1][:, rows_q], clean[1][:, rows_q])


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_far_from_zero(device, guarded_empty, sign):
    """With lse near -300 a key beyond the end, scored 0, would overflow exp2; near 300 the sum would."""
    problem = make_problem(device, [20, 33], [18, 40], heads=(1, 1), scale=1.0)
    tensors = make_tensors(problem)
    tensors[0].mul_(0.1).add_(3.0)
    tensors[1].mul_(0.1).add_(3.0 * sign)
    results = run_portable(problem, tensors)
    assert results[1].min() * sign > 0
    assert results[1].abs().min() > 250
    check(problem, tensors, results)


def test_strided_inputs(device):
    """Stride 0 over heads and rows, heads outermost, a transposed last dimension: no layout is assumed."""
    problem = make_problem(device, [20, 33], [18, 40], heads=(2, 2))
    q, k, v, dout = make_tensors(problem)
    tensors = [q[:, :1].expand(-1, 2, -1), k.permute(1, 0, 2).contiguous().permute(1, 0, 2),
               v[:1].expand(58, -1, -1), dout.permute(0, 2, 1).contiguous().permute(0, 2, 1)]
    check(problem, tensors, run_portable(problem, tensors))
    dense = [tensor.contiguous() for tensor in tensors]
    for got, expected in zip(run_portable(problem, tensors), run_portable(problem, dense), strict=True):
        assert torch.equal(got, expected)


def test_loose_maximum_length(device):
    """max_seqlen is an upper bound: a loose one changes nothing."""
    lengths = [20, 0, 33]
    problem = make_problem(device, lengths, lengths, CAUSAL)
    tensors = make_tensors(problem)
    exact = run_portable(problem, tensors)
    loose = make_problem(device, lengths, lengths, CAUSAL)
    loose.layout_q.max_seqlen = loose.layout_k.max_seqlen = 130
    for got, expected in zip(run_portable(loose, tensors), exact, strict=True):
        assert torch.equal(got, expected)


def test_many_sequences(device, guarded_empty):
    """More sequences than one round of the search looks at, nearly all of them empty."""
    lengths = [0] * 200
    lengths[0], lengths[63], lengths[64], lengths[130], lengths[199] = 3, 40, 1, 20, 33
    problem = make_problem(device, lengths, lengths, heads=(1, 1))
    tensors = make_tensors(problem)
    check(problem, tensors, run_portable(problem, tensors))


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [Mask(), CAUSAL])
def test_totals_past_2_to_the_31_elements(device, mask):
    lengths = [1024] * 2112
    problem = make_problem(device, lengths, lengths, mask, heads=(8, 8), head_dim=128)
    assert math.prod(problem.q_shape) > 2**31
    generator = torch.Generator(device).manual_seed(0)
    tensors = [torch.randn(problem.q_shape, generator=generator, device=device, dtype=torch.bfloat16)
               for _ in range(4)]
    results = run_portable(problem, tensors, None, None)
    part, rows_q, _ = select_sequences(problem, [0, 2111])
    q, k, v, dout = (tensor[rows_q] for tensor in tensors)
    exact = (*attention_reference(part, q, k, v), *attention_reference_backward(part, q, k, v, dout))
    for index, got in enumerate((results[0], results[1].T, *results[2:])):
        expected = exact[1].T if index == 1 else exact[index]
        torch.testing.assert_close(got[rows_q].double(), expected, rtol=0.02, atol=0.02)


def test_backward_gives_the_same_bits_again(device):
    problem = make_problem(device, [33] * 3, [40, 0, 17], broadcast_q=True)
    tensors = make_tensors(problem)
    first = run_portable(problem, tensors)
    for got, again in zip(first, run_portable(problem, tensors), strict=True):
        assert torch.equal(got, again)


def test_implementation_says_what_it_declines(device):
    cpu = torch.device("cpu")
    assert IMPLEMENTATION.declines(make_problem(device, [4], [4]), "fwd", device) is None
    assert "head_dim 80" in IMPLEMENTATION.declines(make_problem(cpu, [4], [4], head_dim=80), "fwd", device)
    assert "float32" in IMPLEMENTATION.declines(make_problem(cpu, [4], [4], dtype=torch.float32), "bwd", device)
    assert "meta" in IMPLEMENTATION.declines(make_problem(cpu, [4], [4]), "fwd", torch.device("meta"))


def test_old_gpus_and_missing_interpreter_are_declined(monkeypatch):
    problem = make_problem("cpu", [4], [4])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "8.0" in IMPLEMENTATION.declines(problem, "fwd", torch.device("cuda"))
    monkeypatch.setattr("kernels.portable.is_interpreted", lambda kernel: False)
    assert "TRITON_INTERPRET=1" in IMPLEMENTATION.declines(problem, "fwd", torch.device("cpu"))


def test_schedules_are_refused(device):
    problem = make_problem(device, [4], [4])
    q, k, v, _ = make_tensors(problem)
    with pytest.raises(ValueError, match="zigzag"):
        IMPLEMENTATION.forward(problem, q, k, v, schedule="zigzag")
    with pytest.raises(TypeError, match="BackwardOptions"):
        IMPLEMENTATION.forward(problem, q, k, v, options=BackwardOptions())


def test_describe_names_the_tiles(device):
    problem = make_problem(device, [4], [4])
    tiles = IMPLEMENTATION.make_options("bwd", {"dkdv": {"BLOCK_M": 32}, "dq": {"BLOCK_N": 16}})
    assert IMPLEMENTATION.describe(problem, "bwd", options=tiles) == "portable/dkdv32x64w4s2-dq64x16w4s2"
    assert IMPLEMENTATION.describe(problem, "fwd", options=TileOptions(128, 64, 8, 3)) == "portable/128x64w8s3"
    assert IMPLEMENTATION.describe(problem, "fwd").startswith("portable")
