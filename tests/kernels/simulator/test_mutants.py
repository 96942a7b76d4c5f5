"""Mutants: every kind of change is made, and the simulator notices those that matter."""

import ast
import csv

import pytest
import small_kernels
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.simulator.campaigns import ARGUMENTS, CAMPAIGNS
from kernels.simulator.cases import Case, Output
from kernels.simulator.mutants import apply, sites_of
from kernels.simulator.mutation import _differ, argument_key, run_campaign, write_survivors


def pipeline_case(blocks):
    def prepare():
        source = torch.randn(blocks * 64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()

        def call():
            out = torch.empty_like(source)
            descs = [TensorDescriptor(t, list(t.shape), list(t.stride()), [64, 64]) for t in (source, out)]
            small_kernels.pipeline[(1,)](*descs, blocks, BLOCK=64, SLOTS=2, FAULT="none")
            return [Output("out", out, (source + source).float())]

        return call

    return Case(f"pipeline-{blocks}", 90, prepare)


SOURCE = """
def f(q, k, full, empty, n):
    tlx.barrier_wait(full[n % 2], 0)
    x = tlx.local_load(q[n % 2])
    tlx.barrier_arrive(empty[n % 2])
    y = n + 1
    tlx.barrier_arrive(empty[0])
    tlx.async_dot(q[0], k[0], mBarriers=[full[0]], use_acc=True)
    z = tlx.async_dot_wait(0, x)
    tlx.barrier_expect_bytes(full[0], 64)
    tlx.async_descriptor_store_wait(0)
    helper(x)
"""


@pytest.mark.parametrize(("kind", "statement", "text"), [
    ("drop", "tlx.barrier_wait(full[n % 2], 0)", "pass"),
    ("flip phase", "tlx.barrier_wait(full[n % 2], 0)", "tlx.barrier_wait(full[n % 2], 0 ^ 1)"),
    ("barrier 0", "tlx.barrier_arrive(empty[n % 2])", "tlx.barrier_arrive(empty[__sim.changed_index(n % 2, 0)])"),
    ("buffer 0", "tlx.local_load(q[n % 2])", "x = tlx.local_load(q[__sim.changed_index(n % 2, 0)])"),
    ("drop mBarriers[0]", "tlx.async_dot(q[0], k[0], mBarriers=[full[0]], use_acc=True)",
     "tlx.async_dot(q[0], k[0], mBarriers=[], use_acc=True, force_async=True)"),
    ("flip use_acc", "tlx.async_dot(q[0], k[0], mBarriers=[full[0]], use_acc=True)",
     "tlx.async_dot(q[0], k[0], mBarriers=[full[0]], use_acc=not True)"),
    ("wait for one less", "tlx.async_dot_wait(0, x)", "z = tlx.async_dot_wait(0 + 1, x)"),
    ("half the bytes", "tlx.barrier_expect_bytes(full[0], 64)", "tlx.barrier_expect_bytes(full[0], 64 // 2)"),
    ("wait for one less", "tlx.async_descriptor_store_wait(0)", "tlx.async_descriptor_store_wait(0 + 1)"),
    ("drop", "helper(x)", "pass"),
])
def test_change(kind, statement, text):
    (site,) = [each for each in sites_of("f", ast.parse(SOURCE)) if (each.kind, each.statement) == (kind, statement)]
    after = ast.unparse(apply(ast.parse(SOURCE), site)).splitlines()
    assert text in [line.strip() for line in after]
    assert sum(a != b for a, b in zip(after, ast.unparse(ast.parse(SOURCE)).splitlines(), strict=True)) == 1


def test_swaps_only_where_the_neighbour_matters():
    swaps = {(site.kind, site.statement) for site in sites_of("f", ast.parse(SOURCE))
             if site.kind in ("release earlier", "wait later")}
    assert swaps == {("wait later", "tlx.barrier_wait(full[n % 2], 0)"),  # past the load that it guards
                     ("release earlier", "tlx.barrier_arrive(empty[n % 2])"),  # before the load; not before y = n + 1
                     ("wait later", "tlx.async_descriptor_store_wait(0)")}


def test_campaign_catches_all_but_equivalent_mutants(tmp_path):
    campaign = run_campaign("pipeline", [pipeline_case(5), pipeline_case(2)], max_schedules=6)
    assert run_campaign("pipeline", [pipeline_case(5), pipeline_case(2)], max_schedules=6, jobs=2) == campaign
    assert campaign.count("caught") >= 12
    # Compiled in as FAULT == "none": these statements do not run, or guard a branch that does not.
    survivors = {argument_key("pipeline", each.site): each for each in campaign.survivors()}
    assert not survivors, list(survivors)
    path = tmp_path / "survivors.csv"
    write_survivors(path, [campaign], {})
    assert path.read_text().splitlines() == ["mutant,line,runs,argument"]


@pytest.mark.parametrize(("dtype", "same"), [(torch.float32, True), (torch.int32, False)])
def test_a_small_difference_counts_among_integers_only(dtype, same):
    right = torch.tensor([1000, 0]).to(dtype)
    everywhere = torch.ones(2, dtype=torch.bool)
    found = _differ([(right + torch.tensor([0, 1]).to(dtype), everywhere)], [(right, everywhere)])
    assert (found is None) == same


def test_unchanged_kernel_must_pass():
    def prepare():
        return lambda: [Output("x", torch.ones(3), torch.zeros(3), times=0)]

    with pytest.raises(RuntimeError, match="the unchanged kernel fails"):
        run_campaign("nothing", [Case("nothing", 90, prepare)], 1)


def test_it_must_pass_in_every_schedule():
    """A failure in a later one would be every mutant's."""
    def prepare():
        calls = iter(range(100))
        return lambda: [Output("x", torch.ones(3), torch.full((3,), float(next(calls) < 5)), times=0)]

    with pytest.raises(RuntimeError, match="the unchanged kernel fails"):
        run_campaign("nothing", [Case("nothing", 90, prepare)], 20)
    run_campaign("nothing", [Case("nothing", 90, prepare)], 5)


def test_every_survivor_that_is_listed_has_an_argument_and_a_campaign():
    from importlib import resources

    text = resources.files("kernels.simulator").joinpath("survivors.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len({row["mutant"] for row in rows})
    for row in rows:
        assert row["mutant"].split(" | ")[0] in CAMPAIGNS, row["mutant"]
    assert len(ARGUMENTS) == sum(bool(row["argument"]) for row in rows)
