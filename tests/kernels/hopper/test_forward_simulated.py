"""The Hopper forward in the simulator: every variant and every switch, against the oracle; races are errors."""

import pytest
import torch
from forward_cases import ALL, EDGES, MASKS, SHIPPED, check, problem, tensors

from kernels.hopper.forward import forward

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
from kernels.simulator import Simulator

SMALL = ([65, 0, 130, 200, 1, 70], [130, 64, 257, 90, 1, 0])


def simulate(case, q, k, v, options, mode="random", seed=0, resident=1):
    case.layout_k._cache.clear()
    with Simulator(seed, mode, arch=90, sms=3, resident=resident) as simulator:
        out, lse = forward(case, q, k, v, options)
    simulator.check_written(out, name="out")
    simulator.check_written(lse, name="lse")
    return out, lse


@pytest.mark.parametrize("name", ALL)
def test_every_variant_and_switch_on_cross_attention(name):
    options = ALL[name]
    case = problem(*SMALL, dim=64 if options.why_not(128, MASKS["full"]) else 128)
    q, k, v = tensors(case)
    check(case, q, k, v, *simulate(case, q, k, v, options, mode="lazy" if len(name) % 2 else "random"))


@pytest.mark.parametrize("mask", ["causal", "window", "left", "right"])
@pytest.mark.parametrize("name", SHIPPED)
def test_masks(name, mask):
    case = problem(*SMALL, dim=64, mask=MASKS[mask])
    q, k, v = tensors(case)
    check(case, q, k, v, *simulate(case, q, k, v, SHIPPED[name], mode="random", seed=1))


@pytest.mark.parametrize("name", ["pair128, dynamic, head after head", "trio64, unsorted, head after head",
                                  "solo64, dynamic", "solo64, all masked", "trio64, dynamic", "duo64, dynamic",
                                  "solo64, from both ends, dynamic", "solo64, maximum at each step"])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_masks_and_switches(name, mask):
    case = problem(*SMALL, heads_q=4, heads_kv=2, dim=64, mask=MASKS[mask])
    q, k, v = tensors(case)
    check(case, q, k, v, *simulate(case, q, k, v, ALL[name], seed=2, resident=3))


@pytest.mark.parametrize("name", ["solo64", "trio64"])
def test_broadcast_q_and_grouped_heads(name):
    case = problem(192 if name == "trio64" else 32, EDGES[1][:5], heads_q=4, heads_kv=1, dim=64)
    q, k, v = tensors(case)
    check(case, q, k, v, *simulate(case, q, k, v, SHIPPED[name], mode="eager"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_sequence_of_nan_stays_among_itself(name):
    case = problem(EDGES[0][:5], EDGES[1][:5], dim=64)
    q, k, v = tensors(case)
    clean = [x.clone() for x in (q, k, v)]
    rows_q, rows_k = (slice(*layout.offsets[2:4].tolist()) for layout in (case.layout_q, case.layout_k))
    k[rows_k], v[rows_k], q[rows_q] = float("nan"), float("inf"), float("nan")
    out, lse = simulate(case, q, k, v, SHIPPED[name])
    others = torch.ones(case.layout_q.total, dtype=torch.bool)
    others[rows_q] = False
    check(case, *clean, out, lse, rows=others)


def test_fp16_and_a_large_scale():
    case = problem(*SMALL, dim=64, dtype=torch.float16)
    q, k, v = tensors(case)
    check(case, q * 8, k, v, *simulate(case, q * 8, k, v, SHIPPED["solo64"]))


def growing(case, by, seed=0):
    """Inputs whose scores grow from the last key to the first, as the kernels walk, by some ``by`` in log2."""
    q, k, v = tensors(case, seed=seed)
    rising = torch.linspace(1, 0, case.layout_k.total)[:, None, None]
    step = by * 0.6931 * case.head_dim ** 0.5 / (1.4 * case.head_dim)  # 1.4: the mean of q below
    return (q.abs() * 0.5 + 1).to(q.dtype), (k * 0.3 + rising * step).to(k.dtype), v


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize(("mask", "by"), [("full", 30), ("full", 2000), ("window", 300)])
def test_a_maximum_that_keeps_growing_is_taken_after_all(name, mask, by):
    case = problem(*SMALL, dim=64, mask=MASKS[mask])
    q, k, v = growing(case, by)
    check(case, q, k, v, *simulate(case, q, k, v, SHIPPED[name]))


@pytest.mark.parametrize("by", [10, 14, 16, 60, 1000])
@pytest.mark.parametrize(("name", "mask"), [("solo64", "full"), ("tri64c", "window"), ("pair128", "causal")])
def test_fp16_probabilities_stay_below_its_largest_number(name, mask, by):
    """They may be large, relative to an older maximum, but not beyond 2^14: then the step is done again."""
    case = problem(*SMALL, dim=64, mask=MASKS[mask], dtype=torch.float16)
    q, k, v = growing(case, by)
    out, lse = simulate(case, q, k, v, SHIPPED[name])
    assert not out.isinf().any()
    check(case, q, k, v, out, lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "mask"), [("solo64", "full"), ("duo64", "causal"), ("solo64", "window")])
def test_very_low_scores_keep_their_lse(name, mask, dtype):
    """Scores around -300, far below where exponentials underflow, after rows that see no key at first."""
    case = problem(*SMALL, dim=64, mask=MASKS[mask], dtype=dtype)
    q, k, v = tensors(case)
    q, k = (q * 0.1 + 4).to(dtype), (k * 0.1 - 9).to(dtype)
    out, lse = simulate(case, q, k, v, SHIPPED[name])
    assert (lse[~lse.isneginf()] < -250).all()
    check(case, q, k, v, out, lse)
