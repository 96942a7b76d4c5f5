"""The Blackwell forward in the simulator: every switch, schedule and mask against the oracle; races are errors."""

import functools

import pytest
import torch
from hopper.forward_cases import EDGES, MASKS, check, problem, tensors

from kernels.blackwell.forward import forward
from kernels.blackwell.options import SCHEDULES, BlackwellForwardOptions

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
from kernels.simulator import SimulationError, Simulator
from kernels.simulator.mutants import Collector, Mutator

Options = BlackwellForwardOptions
SMALL = ([300, 0, 130, 40], [130, 64, 300, 0])
SWITCHED = {
    "as it is": Options(),
    **{schedule: Options(schedule=schedule) for schedule in SCHEDULES if schedule != "zigzag"},
    "one slice": Options(p_slices=1), "four slices": Options(p_slices=4), "three slots": Options(kv_slots=3),
    "own columns": Options(alias_tmem=False), "always rescaled": Options(skip_rescale=False),
    "all MUFU": Options(emulated_exp2=0), "half emulated": Options(emulated_exp2=8),
    "one at a time": Options(packed_math=False), "all masked": Options(peel_masks=False),
    "barriers of a group": Options(warp_barriers=False),
    "late release": Options(early_release=False), "idle group": Options(skip_idle_group=False),
    "head by head": Options(section_mb=0), "own columns, clc": Options(alias_tmem=False, schedule="clc"),
}


def simulate(case, q, k, v, options, mode="random", seed=0, resident=1, **settings):
    case.layout_k._cache.clear()
    with Simulator(seed, mode, arch=100, sms=2, resident=resident, **settings) as simulator:
        out, lse = forward(case, q, k, v, options)
    simulator.check_written(out, name="out")
    simulator.check_written(lse, name="lse")
    return out, lse


@pytest.mark.parametrize("name", SWITCHED)
def test_every_switch_on_cross_attention(name):
    case = problem(*SMALL, dim=64)
    q, k, v = tensors(case)
    check(case, q, k, v, *simulate(case, q, k, v, SWITCHED[name], mode="lazy" if len(name) % 2 else "random"))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, dim):
    case = problem(*EDGES, dim=dim, mask=MASKS[mask], heads_q=1, heads_kv=1)
    q, k, v = tensors(case)
    options = Options(schedule="clc" if dim == 64 else "zigzag")
    check(case, q, k, v, *simulate(case, q, k, v, options, seed=1, resident=2 if dim == 64 else 1))


@pytest.mark.parametrize("schedule", ["zigzag", "clc"])
def test_broadcast_q_and_grouped_heads(schedule):
    for len_q in (40, 192):
        case = problem(len_q, EDGES[1][:5], heads_q=4, heads_kv=1, dim=64)
        q, k, v = tensors(case)
        check(case, q, k, v, *simulate(case, q, k, v, Options(schedule=schedule), mode="eager"))


def test_heads_in_sections_under_a_mask():
    case = problem([300, 270], [300, 270], heads_q=4, heads_kv=2, dim=64, mask=MASKS["causal"])
    q, k, v = tensors(case)
    check(case, q, k, v, *simulate(case, q, k, v, Options(section_mb=0, schedule="clc"), resident=3))


@pytest.mark.parametrize("name", ["as it is", "clc", "own columns"])
def test_a_sequence_of_nan_stays_among_itself(name):
    case = problem(EDGES[0][:5], EDGES[1][:5], dim=64)
    q, k, v = tensors(case)
    clean = [x.clone() for x in (q, k, v)]
    rows_q, rows_k = (slice(*layout.offsets[2:4].tolist()) for layout in (case.layout_q, case.layout_k))
    k[rows_k], v[rows_k], q[rows_q] = float("nan"), float("inf"), float("nan")
    out, lse = simulate(case, q, k, v, SWITCHED[name])
    others = torch.ones(case.layout_q.total, dtype=torch.bool)
    others[rows_q] = False
    check(case, *clean, out, lse, rows=others)


def test_fp16_and_scores_that_grow_block_by_block():
    """Later blocks have larger scores, so that O is rescaled; KV blocks are walked from the last."""
    case = problem([130], [900], dim=64, dtype=torch.float16)
    q, k, v = tensors(case)
    q, k = q.abs(), k.abs() * torch.linspace(4, 0.1, 900)[:, None, None]
    for options in (Options(), Options(skip_rescale=False)):
        check(case, q, k.half(), v, *simulate(case, q, k.half(), v, options))


def test_deleting_any_wait_of_the_matmul_warp_is_noticed():
    case = problem([300, 300], [300, 290], dim=64, heads_q=1, heads_kv=1)
    q, k, v = tensors(case)
    collector = Collector()
    run = functools.partial(simulate, case, q, k, v, Options())
    out, lse = run(mutation=collector)
    waits = [site for site in collector.sites if site.kind == "drop" and "barrier_wait" in site.statement
             and site.file.endswith("forward_mma.py")]
    assert len(waits) == 5
    for site in waits:
        noticed = 0
        for mode, seed in (("lazy", 0), ("random", 0), ("eager", 0), ("lazy", 1)):
            try:
                got = run(mode, seed, mutation=Mutator(site))
                noticed += not (torch.equal(got[0], out) and torch.equal(got[1], lse))
            except SimulationError:
                noticed += 1
        assert noticed, site.statement
