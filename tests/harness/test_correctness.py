from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_cases import tiny_case

from harness.backends.base import Outputs
from harness.correctness import MAX_SEQUENCES, Oracle, Verdict, choose_sequences, nan_of_any_dtype, poison
from harness.inputs import Inputs, make_inputs, make_problem
from kernels import reference
from kernels.mask import Mask

LENGTHS = (5, 0, 200, 1, 90, 64, 65)
CASES = {
    "full": tiny_case(lengths_q=LENGTHS),
    "causal_cross": tiny_case(mode="cross", lengths_q=LENGTHS, lengths_k=(9, 4, 100, 0, 90, 3, 128),
                              mask=Mask(None, 0)),
    "window": tiny_case(lengths_q=LENGTHS, mask=Mask(16, 0), num_heads_kv=2, dtype="fp16"),
    "broadcast_q": tiny_case(mode="broadcast_q", lengths_q=(40,) * 7, lengths_k=LENGTHS),
    "low_lse": tiny_case(lengths_q=LENGTHS, hazard="low_lse"),
    "stride0": tiny_case(lengths_q=LENGTHS, hazard="stride0"),
    "nonfinite": tiny_case(lengths_q=LENGTHS, hazard="nonfinite_neighbours"),
    "nonfinite_broadcast": tiny_case(mode="broadcast_q", lengths_q=(40,) * 7, lengths_k=LENGTHS,
                                     hazard="nonfinite_neighbours"),
    "all_empty": tiny_case(lengths_q=(0, 0)),
    "ones": tiny_case(lengths_q=(1, 1, 1)),
}
ALL = 10**9


def computed(inputs: Inputs) -> Outputs:
    """A plain computation in the case's dtype, which must always pass."""
    arguments = (inputs.problem, inputs.q, inputs.k, inputs.v)
    out, lse = reference.attention_reference_lowp(*arguments)
    return Outputs(out, lse, *reference.attention_reference_lowp_backward(*arguments, inputs.dout))


def check(oracle: Oracle, outputs: Outputs) -> tuple[Verdict, Verdict]:
    return oracle.check_forward(outputs), oracle.check_backward(outputs)


@pytest.mark.parametrize("name", CASES)
def test_a_plain_computation_passes_with_room(name: str) -> None:
    inputs = make_inputs(CASES[name], "cpu")
    for verdict in check(Oracle(inputs, ALL, 2.0), computed(inputs)):
        assert verdict.message == ""
        assert verdict.share <= 0.75
        assert all(error < (0.1 if name == "low_lse" else 0.01) for error in verdict.errors.values())


def otherwise_rounded(inputs: Inputs) -> Outputs:
    """Broadcast-Q of one query and one head as kernels compute it: P is rounded before it is divided by its sum."""
    problem, dtype, q = inputs.problem, inputs.problem.dtype, inputs.q[0, 0].float()
    out = torch.zeros(problem.out_shape)
    dq, dk, dv = torch.zeros(problem.q_shape), torch.zeros(problem.kv_shape), torch.zeros(problem.kv_shape)
    for b in np.flatnonzero(problem.layout_k.lengths):
        rows = slice(*problem.layout_k.offsets[b:b + 2].tolist())
        k, v, dout = inputs.k[rows, 0].float(), inputs.v[rows, 0].float(), inputs.dout[b, 0].float()
        scores = k @ q * problem.softmax_scale
        p = (scores - scores.max()).exp()
        out[b, 0] = p.to(dtype).float() @ v / p.sum()
        p = p / p.sum()
        ds = p * (v @ dout - out[b, 0].to(dtype).float() @ dout)
        dq[0, 0] += ds.to(dtype).float() @ k * problem.softmax_scale
        dk[rows, 0] = ds.to(dtype).float()[:, None] * q * problem.softmax_scale
        dv[rows, 0] = p.to(dtype).float()[:, None] * dout
    return Outputs(out.to(dtype), None, dq.to(dtype), dk.to(dtype), dv.to(dtype))


@pytest.mark.parametrize("seed", range(8))
def test_few_roundings_are_judged_by_what_is_expected_of_them(seed: int) -> None:
    """Two keys that see one query: the error of delta is most of dk's, and the twin's may be next to nothing."""
    lengths = tuple(np.random.default_rng(seed).integers(0, 3, 300).tolist())
    inputs = make_inputs(tiny_case(mode="broadcast_q", lengths_q=(1,) * 300, lengths_k=lengths, num_heads_q=1,
                                   head_dim=64, seed=seed), "cpu")
    oracle, good = Oracle(inputs, ALL, 2.0), otherwise_rounded(inputs)
    for verdict in check(oracle, good):
        assert verdict.message == ""
        assert verdict.share <= 0.6
    wrong_dk, wrong_dv = good.dk.clone(), good.dv.clone()
    sizes = good.dk.float().norm(dim=(1, 2))
    sequence = min(np.flatnonzero(np.asarray(lengths) == 2), key=lambda b: abs(
        float(sizes[inputs.problem.layout_k.offsets[b]]) - 1.0))  # not one whose keys nearly cancel
    rows = slice(*inputs.problem.layout_k.offsets[sequence:sequence + 2].tolist())
    wrong_dk[rows] *= 1.2
    wrong_dv[rows] *= 1.2
    for name, outputs in (("dk", replace(good, dk=wrong_dk)), ("dv", replace(good, dv=wrong_dv))):
        message = oracle.check_backward(outputs).message
        assert message.startswith(f"{name}: ")
        assert f"sequence {sequence})" in message


@pytest.mark.parametrize("factor", [1.1, 0.9])
@pytest.mark.parametrize(("name", "rows"), [("out", slice(205, 206)), ("dq", slice(69, 133)), ("dk", slice(206, 270)),
                                            ("dv", slice(205, 206))])
def test_a_tenth_off_in_one_tile_or_short_sequence_is_found(name: str, rows: slice, factor: float) -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    outputs = computed(inputs)
    getattr(outputs, name)[rows].mul_(factor)
    forward, backward = check(Oracle(inputs, ALL, 2.0), outputs)
    assert (forward if name == "out" else backward).message.startswith(f"{name}: ")


def test_errors_are_relative_and_named() -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    good = computed(inputs)
    forward, backward = check(Oracle(inputs, ALL, 2.0), replace(good, out=good.out * 1.5, dv=good.dv * 0.5))
    assert forward.errors["out"] == pytest.approx(0.5, rel=0.02)
    assert set(forward.errors) == {"out", "lse"}
    assert backward.errors["dv"] == pytest.approx(0.5, rel=0.02)
    assert backward.errors["dq"] < 0.01
    assert backward.message.startswith("dv: ")


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("row", [0, 150, -1])
def test_one_wrong_row_of_any_tensor_is_found(name: str, row: int) -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    outputs = computed(inputs)
    getattr(outputs, name)[row] = getattr(outputs, name)[row].roll(3, dims=-1) + 0.05
    forward, backward = check(Oracle(inputs, ALL, 2.0), outputs)
    assert (forward if name == "out" else backward).message.startswith(f"{name}: ")
    assert (backward if name == "out" else forward).message == ""


def test_swapped_heads_and_a_missing_tile_are_found() -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    good = computed(inputs)
    oracle = Oracle(inputs, ALL, 2.0)
    assert oracle.check_forward(replace(good, out=good.out.flip(1))).message
    dq = good.dq.clone()
    dq[5 + 128:5 + 192] = 0
    assert "sequence 2" in oracle.check_backward(replace(good, dq=dq)).message


def test_a_row_never_written_is_found_even_outside_the_sample() -> None:
    inputs = make_inputs(tiny_case(lengths_q=(8,) * 600), "cpu")
    oracle = Oracle(inputs, 1000, 2.0)
    outside = next(b for b in range(600) if b not in oracle.sequences)
    outputs = computed(inputs)
    assert check(oracle, outputs)[0].message == ""
    outputs.out[8 * outside + 3] = torch.nan
    message = oracle.check_forward(outputs).message
    assert "NaN" in message
    assert f"row {8 * outside + 3}" in message


def test_infinite_missing_and_misshapen_results_are_wrong() -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    good = computed(inputs)
    oracle = Oracle(inputs, ALL, 2.0)
    spoilt = good.dk.clone()
    spoilt[7, 0, 0] = torch.inf
    assert "infinite" in oracle.check_backward(replace(good, dk=spoilt)).message
    assert "gave none" in oracle.check_backward(replace(good, dv=None)).message
    assert "expected shape" in oracle.check_forward(replace(good, out=good.out[:-1])).message
    assert "got torch.float32" in oracle.check_forward(replace(good, out=good.out.float())).message


def test_lse_is_checked_where_given() -> None:
    inputs = make_inputs(CASES["causal_cross"], "cpu")
    good = computed(inputs)
    oracle = Oracle(inputs, ALL, 2.0)
    without = oracle.check_forward(replace(good, lse=None))
    assert (without.message, set(without.errors)) == ("", {"out"})
    assert oracle.check_forward(replace(good, lse=good.lse * 1.4427)).message.startswith("lse: ")
    assert oracle.check_forward(replace(good, lse=good.lse.T)).message.startswith("lse: expected shape")
    blind = good.lse.isinf()
    assert blind.any()
    assert oracle.check_forward(replace(good, lse=torch.where(blind, torch.inf, good.lse))).message == ""
    for bad in (torch.nan, 0.0):
        assert "see no key" in oracle.check_forward(replace(good, lse=torch.where(blind, bad, good.lse))).message


def test_planted_nan_must_stay_with_its_neighbours() -> None:
    inputs = make_inputs(CASES["nonfinite"], "cpu")
    good = computed(inputs)
    assert good.out.isnan().any()
    out = good.out.clone()
    out[5] = torch.nan  # the first row of sequence 2, which is clean
    assert "NaN" in Oracle(inputs, ALL, 2.0).check_forward(replace(good, out=out)).message


def test_broadcast_dq_is_a_sum_over_all_sequences_whatever_the_budget() -> None:
    inputs = make_inputs(CASES["broadcast_q"], "cpu")
    oracle = Oracle(inputs, 1, 2.0)
    assert len(oracle.sequences) == 7
    good = computed(inputs)
    assert oracle.check_backward(good).message == ""
    assert oracle.check_backward(replace(good, dq=good.dq * 6 / 7)).message.startswith("dq: ")


def test_tolerance_follows_the_factor() -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    outputs = computed(inputs)
    outputs.out.mul_(1.02)
    assert Oracle(inputs, ALL, 2.0).check_forward(outputs).message
    assert not Oracle(inputs, ALL, 20.0).check_forward(outputs).message


def test_sample_has_the_extremes_and_keeps_to_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 400, 2000)
    lengths[[10, 20, 30]] = 0, 1, 999
    problem = make_problem(tiny_case(lengths_q=tuple(lengths.tolist())), "cpu")
    chosen = choose_sequences(problem, range(2000), 20_000_000, seed=1)
    assert chosen == sorted(set(chosen))
    assert {0, 1999, 10, 20, 30} <= set(chosen)
    assert 100 < len(chosen) <= MAX_SEQUENCES
    assert (lengths[chosen] ** 2 * 2).sum() <= 20_000_000
    assert chosen == choose_sequences(problem, range(2000), 20_000_000, seed=1)
    assert chosen != choose_sequences(problem, range(2000), 20_000_000, seed=2)
    assert choose_sequences(problem, range(2000), 10**12, seed=1) == list(range(2000))


def test_oracle_counts_its_memory() -> None:
    inputs = make_inputs(CASES["full"], "cpu")
    oracle = Oracle(inputs, ALL, 2.0)
    before = oracle.nbytes
    check(oracle, computed(inputs))
    out_bytes = inputs.dout.numel() * 4
    assert oracle.nbytes > before + out_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_poison_is_nan_in_every_dtype(dtype: torch.dtype) -> None:
    assert nan_of_any_dtype(64, torch.device("cpu")).view(dtype).isnan().all()


@pytest.mark.gpu
def test_uninitialised_outputs_come_from_poisoned_memory() -> None:
    problem = make_problem(tiny_case(lengths_q=(3000, 5000)), "cuda")
    device = torch.device("cuda")
    poison(problem, ("fwd",), device)
    assert torch.empty(problem.out_shape, dtype=problem.dtype, device=device).isnan().all()
    poison(problem, ("bwd",), device)
    grads = [torch.empty(shape, dtype=problem.dtype, device=device) for shape in (problem.q_shape, problem.kv_shape)]
    assert all(grad.isnan().all() for grad in grads)
