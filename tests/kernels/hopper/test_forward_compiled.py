"""What the compiler makes of every shipped variant for sm_90a: no spills, shared memory that fits, softmax in place."""

from pathlib import Path

import pytest
from offline_script import lines_of

from kernels.hopper.options import SMEM_PER_SM, VARIANTS

SCRIPT = Path(__file__).with_name("compile_forward.py")


@pytest.fixture(scope="module")
def compiled():
    return {line["case"]: line for line in lines_of(SCRIPT)}


def test_every_variant_is_compiled(compiled):
    assert {name.split("-")[0] for name in compiled} == {*VARIANTS, "solo64_exact", "pair128_exact"}


def test_nothing_spills(compiled):
    assert {name: line["spills"] for name, line in compiled.items() if line["spills"]} == {}


def test_shared_memory_fits_and_is_what_options_say(compiled):
    for name, line in compiled.items():
        assert (line["shared"] + 1024) * line["ctas_per_sm"] <= SMEM_PER_SM, name
        assert 0 <= line["shared"] - line["estimate"] <= 4096, name


def test_registers_are_redistributed(compiled):
    assert all(line["set_registers"] for line in compiled.values())


def test_a_step_takes_no_maximum_and_exchanges_nothing(compiled):
    """Where every exponential stays small: what is left is one exponential for each of a thread's scores."""
    steps = {name: line["steps"] for name, line in compiled.items() if "exact" not in name}
    for name, found in steps.items():
        scores = 64 if name.startswith("pair128") else 32
        assert found, name
        for one in found:
            assert (one["maxima"], one["exchanges"], one["products"], one["exponentials"]) == (0, 0, 0, scores), name


def test_a_step_without_a_mask_has_as_few_instructions_as_it_had(compiled):
    most = {name: max(one["all"] for one in line["steps"]) for name, line in compiled.items() if name.endswith("full")}
    assert most["solo64-128-full"] <= 205
    assert most["tri64c-64-full"] <= 185
    assert most["pair128-128-full"] <= 340
    assert most["solo64_exact-128-full"] > 300


def test_with_a_maximum_at_each_step_masked_softmax_runs_beside_the_second_matmul(compiled):
    loops = {name: line["beside_matmul"] for name, line in compiled.items() if "exact" in name and "full" not in name}
    assert all(found and all(found) for found in loops.values()), loops
    assert loops
