"""The gate on runs whose truth is known, and the table in the docs that says how often it is right."""

import importlib.util
import re
from pathlib import Path

import make_gate_samples
import numpy as np
import pytest
from gate_truth import TEMPLATES, Truth, tally, write_run

from harness.regression.measures import Measure, measure

ROOT = Path(__file__).resolve().parents[2]
TRUTH = Truth.load()


def test_the_samples_are_of_the_gates_rows():
    assert len(TRUTH.rows) == 20
    assert {direction for _, direction in TRUTH.rows} == {"fwd", "bwd"}
    assert all(len(blocks) == 8 for run in TRUTH.samples for blocks in run.values())


def test_samples_of_several_runs_are_taken_over_with_the_scatter_between_them(tmp_path):
    random = np.random.default_rng(0)
    csvs = [write_run(TRUTH.run(f"aa-{index}", random), tmp_path / f"{index}" / "gate.csv") for index in range(5)]
    make_gate_samples.main([str(csv) for csv in csvs], tmp_path / "samples.csv")
    several = Truth.load(tmp_path / "samples.csv")
    assert (several.rows, len(several.samples), several.gpu) == (TRUTH.rows, 5, TRUTH.gpu)
    made = [several.run("made", random) for _ in range(60)]
    row = ("self_u512", "bwd")
    ratios = [measure(run, TEMPLATES[(*row, "jfa")].key, Measure.SPEEDUP).value for run in made]
    assert 0.7 < np.std(ratios, ddof=1) / several.ratio_sd[row] < 1.8


@pytest.mark.parametrize(("slowdown", "least"), [(0.05, 0.90), (0.10, 0.99)])
def test_a_slower_row_is_caught(slowdown, least):
    """30 runs here; docs/gate.md has many more. Of 30, one may be missed at 5 % by chance, two more would tell."""
    found = tally(TRUTH, slowdown, 30)
    assert found.caught_share >= least - 0.04 * (slowdown < 0.1)
    assert found.false_alarms == 0


def test_a_run_without_a_change_is_never_slow():
    assert tally(TRUTH, 0.0, 30).false_alarms == 0


def test_the_table_is_of_these_samples_and_keeps_what_is_promised():
    spec = importlib.util.spec_from_file_location("fill_gate", ROOT / "docs" / "fill_gate.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "docs" / "gate.md").read_text()
    table = script.TABLE.search(text)[0]
    assert f"<!-- truth of {script.digest()} -->" in table, "run python docs/fill_gate.py"
    rows = {cells[0].strip(): [float(cell.strip().rstrip("%") or 0) for cell in cells[1:]]
            for cells in re.findall(r"^\| (nothing|[\d%]+) \|(.*)\|(.*)\|(.*)\|(.*)\|(.*)\|$", table, re.MULTILINE)}
    assert list(rows) == ["nothing", "3%", "5%", "10%"]
    assert all(runs >= 300 and false_alarms <= 1.0 for runs, _, false_alarms, *_ in rows.values())
    assert rows["5%"][1] >= 90
    assert rows["10%"][1] >= 99
