"""Inputs: the same in every process, of the right shapes, and spoilt exactly as their hazard says."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from harness.cases import HAZARDS, Case
from harness.inputs import GUARD_ROWS, make_inputs, make_problem
from kernels.mask import Mask

LENGTHS = np.array([65, 30, 0, 128, 1, 40, 3, 9, 2])
NAMES = ("q", "k", "v", "dout")


def case(mode="self", hazard="none", heads=(4, 2), head_dim=64, seed=0, **values):
    lengths_k = values.pop("lengths_k", LENGTHS)
    lengths_q = {"self": lengths_k, "broadcast_q": np.full(len(lengths_k), 33)}.get(mode, lengths_k[::-1])
    values = {"dtype": "bf16", "mask": Mask(), **values}
    return Case(name="x", mode=mode, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, hazard=hazard,
                seed=seed, lengths_q=lengths_q, lengths_k=lengths_k, **values)


def scores(inputs):
    """Scaled scores of each sequence, fp64 ``[H_q, len_q, len_k]``."""
    problem = inputs.problem
    at_q, at_k = problem.layout_q.offsets, problem.layout_k.offsets
    q, k = inputs.q.double(), inputs.k.double().repeat_interleave(problem.group_size, 1)
    for b in range(problem.batch):
        rows = q if problem.broadcast_q else q[at_q[b]:at_q[b + 1]]
        yield torch.einsum("qhd,khd->hqk", rows, k[at_k[b]:at_k[b + 1]]) * problem.softmax_scale


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("mode", ["self", "cross", "broadcast_q"])
@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_shapes_and_types(mode, hazard, dtype, torch_dtype):
    inputs = make_inputs(case(mode, hazard, dtype=dtype), "cpu")
    problem = inputs.problem
    assert inputs.q.shape == problem.q_shape == ((33, 4, 64) if mode == "broadcast_q" else (278, 4, 64))
    assert inputs.k.shape == inputs.v.shape == problem.kv_shape == (278, 2, 64)
    assert inputs.dout.shape == problem.out_shape == (9 * 33 if mode == "broadcast_q" else 278, 4, 64)
    assert {getattr(inputs, name).dtype for name in NAMES} == {problem.dtype} == {torch_dtype}
    assert problem.softmax_scale == 64**-0.5
    assert problem.layout_q.lengths.tolist() == case(mode).lengths_q.tolist()
    assert not any(getattr(inputs, name).requires_grad for name in NAMES)


@pytest.mark.parametrize("mode", ["self", "cross", "broadcast_q"])
def test_self_attention_has_one_layout(mode):
    """One object, by which a kernel knows that every query sees a key; equal lengths in another mode are two."""
    problem = make_problem(case(mode, lengths_k=np.full(4, 33)), "cpu")
    assert problem.layout_q.lengths.tolist() == problem.layout_k.lengths.tolist() == [33] * 4
    assert (problem.layout_q is problem.layout_k) == (mode == "self")


def test_plain_inputs_are_standard_normal_and_independent():
    inputs = make_inputs(case(), "cpu")
    for name in NAMES:
        tensor = getattr(inputs, name).float()
        assert tensor.is_contiguous()
        assert (tensor.mean().item(), tensor.std().item()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    assert abs(torch.corrcoef(torch.stack([inputs.k.flatten().float(), inputs.v.flatten().float()]))[0, 1]) < 0.02
    assert inputs.clean_sequences.tolist() == list(range(9))


def test_a_case_means_these_tensors_in_every_process():
    here = make_inputs(case(), "cpu")
    code = ("import numpy as np; from harness.cases import Case; from harness.inputs import make_inputs; "
            "from kernels.mask import Mask; lengths = np.array([65, 30, 0, 128, 1, 40, 3, 9, 2]); "
            "made = make_inputs(Case('y', 'self', 4, 2, 64, 'bf16', Mask(), lengths, lengths), 'cpu'); "
            "print([getattr(made, name).double().abs().sum().item() for name in ('q', 'k', 'v', 'dout')])")
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str([getattr(here, name).double().abs().sum().item() for name in NAMES])


@pytest.mark.parametrize("hazard", HAZARDS)
def test_checksums_tell_whether_a_tensor_was_written_to(hazard, monkeypatch):
    made = make_inputs(case(hazard=hazard), "cpu")
    before = made.checksums()
    monkeypatch.setattr("harness.inputs.SUMMED_ELEMENTS", 7 * 256)  # parts of a few rows
    assert all(sums.equal(before[name]) for name, sums in made.checksums().items())
    for name in NAMES:
        getattr(made, name)[-1, 0, 5] = 0.125
        assert [other for other, sums in made.checksums().items() if not sums.equal(before[other])] == [name]
        before = made.checksums()


def test_seeds_differ():
    assert not torch.equal(make_inputs(case(), "cpu").q, make_inputs(case(seed=1), "cpu").q)


def test_stride0_repeats_one_head_and_one_scalar():
    inputs = make_inputs(case(hazard="stride0"), "cpu")
    assert inputs.k.stride(1) == inputs.v.stride(1) == 0
    assert inputs.dout.stride() == (0, 0, 0)
    assert not torch.equal(inputs.k, inputs.v)
    assert inputs.dout.abs().max() > 0


@pytest.mark.parametrize("mode", ["self", "cross", "broadcast_q"])
@pytest.mark.parametrize("heads", [(4, 2), (4, 4)])
def test_noncontiguous_has_strides_that_copies_remove(mode, heads):
    inputs = make_inputs(case(mode, "noncontiguous", heads), "cpu")
    assert not any(getattr(inputs, name).is_contiguous() for name in NAMES)
    assert all(getattr(inputs, name).stride(-1) == 1 for name in ("q", "k", "v"))
    assert inputs.dout.stride(-1) == 4
    if mode == "self" and heads == (4, 4):
        assert inputs.q.untyped_storage().data_ptr() == inputs.v.untyped_storage().data_ptr()


@pytest.mark.parametrize("mode", ["self", "cross", "broadcast_q"])
def test_nonfinite_neighbours_fill_odd_sequences_and_no_other(mode):
    inputs = make_inputs(case(mode, "nonfinite_neighbours"), "cpu")
    plain = make_inputs(case(mode), "cpu")
    assert inputs.clean_sequences.tolist() == [0, 2, 4, 6, 8]
    layouts = {"q": inputs.problem.layout_q, "k": inputs.problem.layout_k, "v": inputs.problem.layout_k,
               "dout": inputs.problem.layout_q}
    seen = set()
    for name, layout in layouts.items():
        tensor, clean = getattr(inputs, name), getattr(plain, name)
        if name == "q" and mode == "broadcast_q":
            assert torch.equal(tensor, clean)
            continue
        for b in range(inputs.problem.batch):
            rows = slice(layout.offsets[b], layout.offsets[b + 1])
            if b % 2 == 0:
                assert torch.equal(tensor[rows], clean[rows])
            else:
                assert not tensor[rows].isfinite().any()
                seen |= {str(value) for value in tensor[rows].flatten().tolist()}
    assert seen == {"nan", "inf", "-inf"}


@pytest.mark.parametrize("mode", ["self", "cross", "broadcast_q"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_low_lse_is_below_the_range_of_exp(mode, head_dim):
    for values in scores(make_inputs(case(mode, "low_lse", head_dim=head_dim), "cpu")):
        if values.numel():
            lse = values.logsumexp(2)
            assert lse.max() < -88
            assert lse.min() > -200
            # Not one-hot: the softmax of a long sequence still mixes keys.
            assert values.shape[2] < 40 or (values - lse[..., None]).exp().max(2).values.median() < 0.9


def test_guard_puts_nan_on_both_sides():
    inputs = make_inputs(case(hazard="guard"), "cpu")
    for name in NAMES:
        tensor = getattr(inputs, name)
        rows, heads, dim = tensor.shape
        assert tensor.isfinite().all()
        assert tensor.is_contiguous()
        whole = torch.as_strided(tensor, (rows + 2 * GUARD_ROWS, heads, dim), tensor.stride(), 0)
        assert whole[:GUARD_ROWS].isnan().all()
        assert whole[-GUARD_ROWS:].isnan().all()


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("mode", ["self", "cross", "broadcast_q"])
def test_empty_batches_have_inputs_too(mode, hazard):
    inputs = make_inputs(case(mode, hazard, lengths_k=np.zeros(3, dtype=np.int64)), "cpu")
    assert inputs.k.shape == (0, 2, 64)
    assert inputs.q.shape[0] == (33 if mode == "broadcast_q" else 0)


@pytest.mark.gpu
def test_a_gpu_makes_its_own_tensors_the_same_each_time():
    first, second = (make_inputs(case(), "cuda") for _ in range(2))
    assert all(torch.equal(getattr(first, name), getattr(second, name)) for name in NAMES)
    assert {getattr(first, name).device.type for name in NAMES} == {first.problem.layout_q.device.type} == {"cuda"}
