import matplotlib
import numpy as np
import pytest
from report_runs import COMMITTED, small_config, write_run

from harness import plot_parts
from harness.cases import expand
from harness.flops import visible_tiles
from harness.report.balance import (
    Launch,
    balance,
    balance_table,
    draw_balance,
    item_work,
    launch_of,
    longest_over_mean,
    worker_work,
)
from harness.report.run_data import read_run
from kernels.hopper.options import SCHEDULES, VARIANTS
from kernels.tile_schedule import TileShape

LAUNCH = Launch("64 x 64", TileShape(64, 64), 12)


@pytest.fixture(params=[{}, {"causal": True}, {"causal": True, "window": [64, 0]},
                        {"mode": "broadcast_q", "lengths": None, "lengths_k": {"kind": "uniform", "max": 512},
                         "len_q": 96}], ids=["full", "causal", "window", "broadcast"])
def case(request):
    return expand(small_config(**request.param))[0]


def test_every_schedule_deals_all_the_work_that_there_is(case):
    tiles = visible_tiles(case.mask, case.lengths_q, case.lengths_k, 64, 64)
    assert (tiles > 0).all()
    work = {name: worker_work(case, LAUNCH, name) for name in SCHEDULES}
    assert {name: found.sum() for name, found in work.items()} == dict.fromkeys(SCHEDULES, tiles.sum() * 4)
    assert all(len(found) == 12 for found in work.values())


def test_sorting_and_drawing_balance_better_than_neither(case):
    longest = {name: longest_over_mean(worker_work(case, LAUNCH, name)) for name in SCHEDULES}
    assert longest["dynamic"] < longest["none"]
    if case.mask.is_full:  # a mask makes the tiles of a sequence unequal, and the list keeps them together
        assert longest["zigzag"] < longest["none"]
    assert longest["dynamic"] < 1.05


def test_a_tile_that_sees_nothing_still_takes_a_turn():
    case = expand(small_config(mode="cross", lengths=None, lengths_q={"kind": "constant", "value": 64},
                               lengths_k={"kind": "constant", "value": 0}))[0]
    assert item_work(case, TileShape(64, 64), "none").tolist() == [1] * 40 * 4


def test_equal_work_divided_evenly_is_perfect():
    case = expand(small_config(batch=3, lengths={"kind": "constant", "value": 64}))[0]
    assert all(worker_work(case, LAUNCH, name).tolist() == [1] * 12 for name in SCHEDULES)
    assert longest_over_mean(np.zeros(3)) == 1.0


def test_the_launch_is_that_of_the_variant_which_ran():
    options = VARIANTS["tri64"]
    launch = launch_of("hopper/tri64/zigzag", 132)
    assert launch_of("hopper/tri64-stale/zigzag", 132) == launch
    assert launch.shape == TileShape(options.block_m, options.block_n)
    assert launch.workers == 132 * options.ctas_per_sm * options.streams
    assert launch_of("portable/64x64w4s3", 132) == Launch("128 x 128 tiles", TileShape(128, 128), 132)


def test_the_committed_runs_balance_is_drawn_where_it_matters_most():
    run = read_run(COMMITTED)
    found = balance(run)
    assert set(found["case"]) == set(run.records["case"])
    assert (found["dynamic"] <= found["none"] + 1e-9).all()
    table = balance_table(run).html()
    assert all(case in table for case in found["case"])
    with matplotlib.rc_context(rc=plot_parts.RC):
        figure = draw_balance(run, most=2)
    assert [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes] == list(
        found.assign(gain=found["none"] / found["zigzag"]).nlargest(2, "gain")["case"])
    assert "modelled" in figure.texts[0].get_text()


def test_without_the_lengths_there_is_a_reason_instead(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    assert draw_balance(run) == "the lengths aren't known: gem.run.json isn't beside the CSV"
    assert balance(run).empty
