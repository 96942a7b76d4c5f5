"""The Hopper forward on a GPU: nasty and random layouts against the oracle, guard rows, repeatability."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forward_cases import ALL, EDGES, MASKS, SHIPPED, check, problem, tensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.hopper import IMPLEMENTATION
from kernels.hopper.forward import forward

GUARD = 4096  # elements before and after each output
pytestmark = pytest.mark.gpu


@pytest.fixture
def guards(monkeypatch):
    """What the forward allocates lies between guard elements; returns a run that fails unless they are untouched."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU here")
    kept = []
    empty = torch.empty

    def guarded(*shape, dtype=None, device=None, **how):
        if device is None or torch.device(device).type != "cuda":
            return empty(*shape, dtype=dtype, device=device, **how)
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        size = int(np.prod(shape))
        fill = float("nan") if dtype.is_floating_point else -7
        whole = torch.full((size + 2 * GUARD,), fill, dtype=dtype, device=device, **how)
        kept.append(whole)
        return whole[GUARD:GUARD + size].view(shape)

    def run(case, q, k, v, options):
        monkeypatch.setattr(torch, "empty", guarded)
        out, lse = forward(case, q, k, v, options)
        monkeypatch.setattr(torch, "empty", empty)
        for x in kept:
            guard = torch.cat([x[:GUARD], x[-GUARD:]])
            assert (guard.isnan() if x.is_floating_point() else guard == -7).all(), "written outside of an allocation"
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


@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize("name", SHIPPED)
def test_masks(name, mask, guards):
    options = replace(SHIPPED[name], schedule="dynamic")  # as the selection rule runs masks, and the random layouts
    dim = 64 if options.why_not(128, MASKS[mask]) else 128
    compare(guards, problem(*EDGES, dim=dim, mask=MASKS[mask], device="cuda"), options)


@pytest.mark.parametrize("mask", ["left", "right"])
@pytest.mark.parametrize("name", ["solo64", "pair128"])
def test_one_bound(name, mask, guards):
    compare(guards, problem(*EDGES, mask=MASKS[mask], device="cuda"), SHIPPED[name])


@pytest.mark.parametrize("name", ["solo64", "pair128"])
def test_fp16_at_64(name, guards):
    compare(guards, problem(*EDGES, dim=64, dtype=torch.float16, device="cuda"), SHIPPED[name])


@st.composite
def layouts(draw):
    """Lengths of Q (an int: broadcast) and K, KV heads out of 4, a mask and a variant; at most some 8,000 rows."""
    longest = draw(st.sampled_from([40, 200, 700, 1500]))
    batch = draw(st.integers(1, 8000 // longest if longest > 200 else 40))
    lengths = st.lists(st.integers(0, longest) | st.sampled_from([0, 1, 63, 64, 65, 128]), min_size=batch,
                       max_size=batch)
    len_k = draw(lengths)
    len_q = draw(st.sampled_from(["self", "cross", "broadcast"]))
    len_q = {"self": len_k, "broadcast": 32}.get(len_q) or draw(lengths)
    return (len_q, len_k, draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from(["full", "causal", "window"])),
            draw(st.sampled_from(sorted(SHIPPED))))


@settings(max_examples=200, derandomize=True, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(layouts(), st.integers(0, 2**31))
def test_random_layouts(guards, layout, seed):
    len_q, len_k, heads_kv, mask, name = layout
    options = SHIPPED[name] if mask == "full" else replace(SHIPPED[name], schedule="dynamic")
    dim = 64 if options.why_not(128, MASKS[mask]) else 128
    compare(guards, problem(len_q, len_k, 4, heads_kv, dim=dim, mask=MASKS[mask], device="cuda"), options, seed)


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


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("growth", [6, 40])
def test_a_maximum_that_keeps_growing_is_taken_after_all(name, growth, guards):
    """The kernels walk from the last key to the first; here scores grow on the way, in small steps or beyond fp32."""
    options = SHIPPED[name]
    dim = 64 if options.why_not(128, MASKS["full"]) else 128
    case = problem(*EDGES, dim=dim, device="cuda")
    q, k, v = tensors(case, "cuda")
    rising = torch.linspace(1, 0, case.layout_k.total, device="cuda")[:, None, None]
    q, k = (q.abs() * 0.7).to(q.dtype), (k * 0.3 + rising * growth).to(k.dtype)
    check(case, q, k, v, *guards(case, q, k, v, options))
