"""The Hopper kernels on a GPU against the simulator: what is compared, and (on a GPU) that they agree."""

import csv
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from kernels.simulator import __main__ as command_line
from kernels.simulator import agreement
from kernels.simulator.agreement import LAYOUTS

NAMES = list(LAYOUTS)


def test_layouts_cover_what_the_kernels_distinguish():
    layouts = LAYOUTS.values()
    assert len(layouts) == 10
    assert {layout.head_dim for layout in layouts} == {64, 128}
    assert {layout.dtype for layout in layouts} == {torch.bfloat16, torch.float16}
    assert any(layout.broadcast_q for layout in layouts)
    assert any(layout.heads_q > layout.heads_kv for layout in layouts)
    assert any(0 in layout.lengths_k and layout.lengths_q is None for layout in layouts)
    assert {(layout.mask.left is None, layout.mask.right is None) for layout in layouts} >= {
        (True, True), (True, False), (False, False)}


def test_inputs_are_seeded_and_exact_in_their_dtype():
    layout = LAYOUTS["gqa"]
    inputs = agreement.make_inputs(layout)
    assert all(torch.equal(x, agreement.make_inputs(layout)[name]) for name, x in inputs.items())
    assert not torch.equal(inputs["k"], agreement.make_inputs(layout, 1)["k"])
    assert all(torch.equal(x.float() * 32, (x.float() * 32).round()) for x in inputs.values())


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_difference_shows(direction, tmp_path):
    layout = LAYOUTS["gqa"]
    inputs = agreement.make_inputs(layout)
    variant = next(each for each in agreement.variants(layout) if each.direction == direction)
    simulated = agreement.simulate(layout, variant, inputs)
    rows = agreement.compare("gqa", layout, variant, inputs, simulated, simulated)
    assert all(row.agrees and row.difference == 0 and row.equal == 1 for row in rows)

    name = rows[-1].tensor
    far = {**simulated, name: simulated[name].clone()}
    far[name].view(-1)[7] += 2 * rows[-1].limit
    missing = {**simulated, name: torch.full_like(simulated[name], torch.nan)}
    for measured in (far, missing):
        changed = agreement.compare("gqa", layout, variant, inputs, simulated, measured)
        assert [row.agrees for row in changed] == [True] * (len(rows) - 1) + [False]

    path = tmp_path / "rows.csv"
    agreement.write_rows(path, [*rows[:1], replace(rows[-1], difference=9.0)], "somewhere")
    read = list(csv.DictReader(path.open()))
    assert [(row["tensor"], row["agrees"], row["label"]) for row in read] == [
        (rows[0].tensor, "true", "somewhere"), (name, "false", "somewhere")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no GPU")
def test_command_says_what_is_missing():
    result = CliRunner().invoke(command_line.app, ["agree"])
    assert result.exit_code == 2
    assert "sm_90" in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_hopper_agrees_with_the_simulator(name):
    """The rule's forward, and of the other variants (forward and backward) one each, taken in turn."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90")
    layout, turn = LAYOUTS[name], NAMES.index(name)
    inputs = agreement.make_inputs(layout)
    forward, backward = ([each for each in agreement.variants(layout) if each.direction == direction]
                         for direction in ("fwd", "bwd"))
    chosen = [forward[0], forward[1 + turn % (len(forward) - 1)], backward[turn % len(backward)]]
    for variant in chosen:
        simulated = agreement.simulate(layout, variant, inputs)
        measured = agreement.run(layout, variant, inputs, "cuda")
        for row in agreement.compare(name, layout, variant, inputs, simulated, measured):
            assert row.agrees, row
