"""The Hopper backward on a GPU: nasty and random layouts against the oracle, guard rows, repeatability."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forward_cases import EDGES, MASKS, problem, tensors

from kernels.hopper import IMPLEMENTATION
from kernels.hopper.backward import BLOCK_M, BLOCK_N
from kernels.hopper.backward_options import SHORT_GAP, select
from kernels.hopper.backward_options import HopperBackwardOptions as Options
from kernels.hopper.backward_schedule import takes_pairs, takes_turns
from kernels.reference import attention_reference, attention_reference_backward, attention_reference_lowp_backward

GUARD = 4096  # elements before and after each output
VARIANTS = {
    "chosen": None, "two stages": Options(), "short gap": SHORT_GAP, "all added": Options(direct_dq=False),
    "all once": Options(dq_stages=1, ds_stages=1),
    "rotated, L2 told": Options(l2_hints=True, rotate=True), "dQ kept": replace(SHORT_GAP, keep_dq=True),
    "alternate": Options(alternate=True), "alternate, half skipped": Options(alternate=True, skip_half=True),
    "half skipped": Options(skip_half=True), "half skipped, K and V twice": replace(SHORT_GAP, skip_half=True),
    "counted": Options(counted=True, owned_blocks=1), "counted, short gap": replace(SHORT_GAP, counted=True),
}
pytestmark = pytest.mark.gpu


@pytest.fixture
def guards(monkeypatch):
    """Runs the backward with every buffer between guard elements, NaN before the call, and looks at the guards."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU here")
    kept, empty = [], torch.empty

    def guarded(shape, *more, dtype=None, device=None, **how):
        if more or None in (dtype, device) or not dtype.is_floating_point or torch.device(device).type != "cuda":
            return empty(shape, *more, dtype=dtype, device=device, **how)
        size = int(np.prod(shape))
        whole = torch.full((size + 2 * GUARD,), float("nan"), dtype=dtype, device=device, **how)
        kept.append(whole)
        return whole[GUARD:GUARD + size].view(shape)

    def run(case, q, k, v, dout, options):
        out, lse = attention_reference(case, q, k, v, dtype=torch.float32)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", guarded)
            patch.setattr(torch, "empty_like", lambda x: guarded(x.shape, dtype=x.dtype, device=x.device))
            grads = IMPLEMENTATION.backward(case, q, k, v, out.to(case.dtype), lse.contiguous(), dout, options=options)
        assert all(x[:GUARD].isnan().all() and x[-GUARD:].isnan().all() for x in kept), "written outside of a buffer"
        kept.clear()
        return grads

    return run


def inputs(case, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed + 1)
    dout = torch.randn(case.out_shape, generator=generator, device="cuda").to(case.dtype)
    return [*tensors(case, "cuda", seed), dout]


def check(case, q, k, v, dout, grads, rows=(slice(None), slice(None))):
    """Within twice the error of a 16-bit twin of the oracle; ``rows`` of dq and of dk and dv."""
    oracle = attention_reference_backward(case, q, k, v, dout)
    twin = attention_reference_lowp_backward(case, q, k, v, dout)
    for name, grad, exact, low in zip(("dq", "dk", "dv"), grads, oracle, twin, strict=True):
        part = rows[0] if name == "dq" else rows[1]
        allowed = 2 * (low.double() - exact)[part].abs().max() + 1e-3 * exact[part].abs().max() + 1e-5
        assert (grad.double() - exact)[part].abs().max() <= allowed, name


@pytest.mark.parametrize("name", VARIANTS)
def test_edges(name, guards):
    case = problem(*EDGES, device="cuda")
    values = inputs(case)
    check(case, *values, guards(case, *values, VARIANTS[name]))


@pytest.mark.parametrize("heads_kv", [1, 4])
@pytest.mark.parametrize("len_q", [32, 192])
@pytest.mark.parametrize("name", ["chosen", "short gap", "two stages", "all once"])
def test_shared_queries(name, len_q, heads_kv, guards):
    case = problem(len_q, EDGES[1] * 20, 4, heads_kv, device="cuda")
    values = inputs(case)
    grads = guards(case, *values, VARIANTS[name])
    check(case, *values, grads)
    again = guards(case, *values, VARIANTS[name])  # always in a fixed order
    assert all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(grads, again, strict=True))


@pytest.mark.parametrize("mask", ["causal", "window", "left", "right"])
@pytest.mark.parametrize("name", ["chosen", "short gap", "half skipped", "counted"])
def test_masks(name, mask, guards):
    case = problem(*EDGES, mask=MASKS[mask], device="cuda")
    values = inputs(case)
    check(case, *values, guards(case, *values, VARIANTS[name]))


@pytest.mark.parametrize("mask", ["full", "causal", "window", "left"])
@pytest.mark.parametrize("name", ["chosen", "alternate, half skipped", "all added", "counted"])
def test_heads_of_64(name, mask, guards):
    lengths = [700, 65, 300, 0, 129, 256, 1, 520]  # tiles of 256 keys that are full, half full and less
    for len_q, len_k in (EDGES, (lengths, lengths)):
        case = problem(len_q, len_k, dim=64, dtype=torch.float16, mask=MASKS[mask], device="cuda")
        values = inputs(case)
        check(case, *values, guards(case, *values, VARIANTS[name]))


MANY = {  # lengths of Q and K, heads, options: enough sequences for every CTA of the card
    "in turns": ([65, 128, 1, 0, 300, 700] * 30, [65, 128, 1, 0, 300, 700] * 30, {},
                 Options(turns=True, owned_blocks=1, serpentine=True)),
    "in turns, causal": ([65, 128, 1, 0, 300, 700] * 30, [65, 128, 1, 0, 300, 700] * 30, {"mask": MASKS["causal"]},
                         Options(turns=True, owned_blocks=2, l2_hints=True)),
    "in pairs": ([65, 128, 1, 0, 300, 500, 200, 257, 64, 193, 330, 40] * 80, [256, 0, 300, 65, 500, 1] * 160, {},
                 Options(pairs=True, owned_blocks=8, serpentine=True, skip_half=True, rotate=True)),
    "in pairs, as chosen": ([300, 1, 0, 64, 65, 500, 129] * 60, [256] * 420, {}, None),
    "tiles without steps": ([65, 0, 0, 200, 0, 0, 0, 300] * 80, [400, 300, 130, 0, 500, 64, 700, 257] * 80, {},
                            Options(serpentine=True, skip_half=True, rotate=True, l2_hints=True)),
    "in turns, tiles without steps": ([65, 0, 0, 200, 0, 0, 0, 300] * 40, [400, 300, 130, 0, 500, 64, 700, 257] * 40,
                                      {"dim": 64}, None),
}


@pytest.mark.parametrize("name", MANY)
def test_many_sequences(name, guards):
    len_q, len_k, how, options = MANY[name]
    case = problem(len_q, len_k, device="cuda", **how)
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    chosen = options or select(case)
    assert takes_turns(case, chosen, programs) == ("turns" in name)
    assert takes_pairs(case, chosen, programs, BLOCK_M, BLOCK_N[case.head_dim]) == ("pairs" in name)
    values = inputs(case)
    check(case, *values, guards(case, *values, options))


@pytest.mark.parametrize("name", ["two stages", "short gap", "all once", "rotated, L2 told", "counted"])
def test_deterministic_calls_repeat_bit_by_bit(name, guards):
    lengths = [700, 65, 300, 0, 129, 1, 2000, 64] * 8
    case = problem(lengths, lengths, 4, 4, device="cuda")
    values = inputs(case)
    options = replace(VARIANTS[name], deterministic=True)
    first = guards(case, *values, options)
    check(case, *values, first)
    for _ in range(5):
        again = guards(case, *values, options)
        assert all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", ["two stages", "all added", "short gap", "half skipped", "counted"])
def test_scores_so_low_that_a_missing_key_would_overflow(name, guards):
    case = problem(*EDGES, device="cuda")
    q, k, v, dout = inputs(case)
    q, k = q.abs() * 32, -k.abs()
    lse = attention_reference(case, q, k, v)[1]
    assert lse[~lse.isneginf()].max() < -88
    check(case, q, k, v, dout, guards(case, q, k, v, dout, VARIANTS[name]))


@pytest.mark.parametrize("name", ["two stages", "all added", "short gap", "half skipped", "counted"])
def test_a_sequence_of_nan_stays_among_itself(name, guards):
    case = problem(*EDGES, device="cuda")
    q, k, v, dout = inputs(case)
    clean = [x.clone() for x in (q, k, v, dout)]
    rows_q, rows_k = (slice(*layout.offsets[4:6].tolist()) for layout in (case.layout_q, case.layout_k))
    q[rows_q], k[rows_k], v[rows_k], dout[rows_q] = float("nan"), float("nan"), float("inf"), float("nan")
    grads = guards(case, q, k, v, dout, VARIANTS[name])
    others = [torch.ones(layout.total, dtype=torch.bool, device="cuda") for layout in (case.layout_q, case.layout_k)]
    others[0][rows_q] = False
    others[1][rows_k] = False
    check(case, *clean, grads, others)
    assert grads[0][rows_q].isnan().any()


@pytest.mark.parametrize("name", ["two stages", "short gap"])
def test_nan_in_keys_shows_in_every_gradient(name, guards):
    case = problem([100, 200], [100, 200], device="cuda")
    q, k, v, dout = inputs(case)
    k[10] = float("nan")
    assert all(grad[:100].isnan().any() for grad in guards(case, q, k, v, dout, VARIANTS[name]))


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts(seed, guards):
    random = np.random.default_rng(seed)
    longest = int(random.choice([40, 200, 700, 1500]))
    batch = int(random.integers(1, 12 if longest > 500 else 60))
    len_k = random.integers(0, longest + 1, batch)
    len_q = [len_k, random.integers(0, longest + 1, batch), 32][seed % 3]
    mask = MASKS[["full", "causal"][seed % 7 == 0]]
    case = problem(len_q, len_k, 4, [4, 1][seed % 5 == 0], mask=mask, device="cuda")
    values = inputs(case, seed)
    name = list(VARIANTS)[seed % len(VARIANTS)]
    check(case, *values, guards(case, *values, VARIANTS[name]))
