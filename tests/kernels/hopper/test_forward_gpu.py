"""The Hopper forward on a GPU: nasty and random layouts against the oracle, guard rows, repeatability."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forward_cases import ALL, EDGES, MASKS, SHIPPED, check, problem, tensors

from kernels.hopper import IMPLEMENTATION
from kernels.hopper.forward import forward

GUARD = 4096  # elements before and after each output
pytestmark = pytest.mark.gpu


@pytest.fixture
def guards(monkeypatch):
    """Outputs lie between guard elements; returns a function that says whether all of them are untouched."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU here")
    kept = []
    empty = torch.empty

    def guarded(shape, **how):
        size = int(np.prod(shape))
        whole = torch.full((size + 2 * GUARD,), float("nan"), **how)
        kept.append(whole)
        return whole[GUARD:GUARD + size].view(shape)

    def run(case, q, k, v, options):
        monkeypatch.setattr(torch, "empty", guarded)
        out, lse = forward(case, q, k, v, options)
        monkeypatch.setattr(torch, "empty", empty)
        assert all(x[:GUARD].isnan().all() and x[-GUARD:].isnan().all() for x in kept), "written outside of the output"
        kept.clear()
        return out, lse

    return run


def compare(run, case, options, seed=0):
    q, k, v = tensors(case, "cuda", seed)
    out, lse = run(case, q, k, v, options)
    check(case, q, k, v, out, lse)
    again = run(case, q, k, v, options)
    assert torch.equal(out.view(torch.int16), again[0].view(torch.int16))
    assert torch.equal(lse.view(torch.int32), again[1].view(torch.int32))


@pytest.mark.parametrize("name", ALL)
def test_edges(name, guards):
    options = ALL[name]
    dim = 64 if options.why_not(128, MASKS["full"]) else 128
    compare(guards, problem(*EDGES, dim=dim, device="cuda"), options)
    compare(guards, problem(192, EDGES[1], 4, 2, dim=dim, device="cuda"), options)


@pytest.mark.parametrize("mask", ["causal", "window", "left", "right"])
@pytest.mark.parametrize("name", SHIPPED)
def test_masks(name, mask, guards):
    options = SHIPPED[name]
    dim = 64 if options.why_not(128, MASKS[mask]) else 128
    compare(guards, problem(*EDGES, dim=dim, mask=MASKS[mask], device="cuda"), options)


@pytest.mark.parametrize("name", SHIPPED)
def test_fp16_at_64(name, guards):
    compare(guards, problem(*EDGES, dim=64, dtype=torch.float16, device="cuda"), SHIPPED[name])


@pytest.mark.parametrize("seed", range(200))
def test_random_layouts(seed, guards):
    random = np.random.default_rng(seed)
    longest = int(random.choice([40, 200, 700, 1500]))
    batch = int(random.integers(1, 12 if longest > 500 else 60))
    len_k = random.integers(0, longest + 1, batch)
    len_q = [len_k, random.integers(0, longest + 1, batch), 32][seed % 3]
    name = list(SHIPPED)[seed % len(SHIPPED)]
    options, mask = SHIPPED[name], ["full", "causal", "window"][int(random.integers(3))]
    if mask != "full":
        options = replace(options, schedule="dynamic")
    dim = 64 if options.why_not(128, MASKS[mask]) else 128
    case = problem(len_q, len_k, 4, int(random.choice([1, 2, 4])), dim=dim, mask=MASKS[mask], device="cuda")
    compare(guards, case, options, seed)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_heads_of_long_sequences_in_sections(mask, guards):
    case = problem([4096, 5000, 0, 4097], [4096, 5000, 10, 4200], 8, 8, mask=MASKS[mask], device="cuda")
    compare(guards, case, replace(SHIPPED["pair128"], schedule="dynamic" if mask == "causal" else "zigzag"))


def test_a_sequence_of_nan_stays_among_itself(guards):
    for name, options in SHIPPED.items():
        dim = 64 if options.why_not(128, MASKS["full"]) else 128
        case = problem(*EDGES, dim=dim, device="cuda")
        q, k, v = tensors(case, "cuda")
        clean = [x.clone() for x in (q, k, v)]
        rows_q, rows_k = (slice(*layout.offsets[4:6].tolist()) for layout in (case.layout_q, case.layout_k))
        k[rows_k], v[rows_k], q[rows_q] = float("nan"), float("inf"), float("nan")
        out, lse = guards(case, q, k, v, options)
        others = torch.ones(case.layout_q.total, dtype=torch.bool, device="cuda")
        others[rows_q] = False
        check(case, *clean, out, lse, rows=others)
        assert out[rows_q].isnan().any(), name


def test_the_selected_variant_through_the_implementation(guards):
    case = problem(*EDGES, device="cuda")
    q, k, v = tensors(case, "cuda")
    check(case, q, k, v, *IMPLEMENTATION.forward(case, q, k, v))
