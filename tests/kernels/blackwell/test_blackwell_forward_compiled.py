"""What the compiler makes of the Blackwell forward for sm_100a: loops without spills, memory that fits."""

from pathlib import Path

import pytest
from offline_script import lines_of

from kernels.blackwell.options import SMEM_PER_CTA, TMEM_COLUMNS

SCRIPT = Path(__file__).with_name("compile_blackwell_forward.py")


@pytest.fixture(scope="module")
def compiled():
    return {line["name"]: line for line in lines_of(SCRIPT, beside=SCRIPT.parents[1])}


def test_what_the_rule_picks_spills_nothing_in_its_loops_and_a_descriptor_at_most_outside(compiled):
    """At D = 128 ptxas keeps the 64-bit descriptor of global memory on the stack, read once a tile."""
    picked = {name: line for name, line in compiled.items() if name.startswith("rule")}
    assert {name: line["spilling_loops"] for name, line in picked.items() if line["spilling_loops"]} == {}
    assert all(line["loops"] >= 4 for line in picked.values())  # a softmax loop for each group, load, MMA
    assert all(line["stack"] <= 16 for line in picked.values()), {name: line["stack"] for name, line in picked.items()}


def test_shared_memory_fits_and_is_what_options_say(compiled):
    for name, line in compiled.items():
        assert line["shared"] <= SMEM_PER_CTA, name
        assert 0 <= line["shared"] - line["estimate"] <= 1024, name


def test_tensor_memory_fits(compiled):
    assert all(line["tmem_estimate"] <= line["tmem"] <= TMEM_COLUMNS for line in compiled.values())


def test_registers_go_to_the_softmax_groups(compiled):
    assert all(line["registers"].count(line["softmax"]) == 2 and line["registers"].count(32) >= 3
               for line in compiled.values()), {name: line["registers"] for name, line in compiled.items()}


def test_matmuls_are_tcgen05(compiled):
    assert all(line["matmuls"] for line in compiled.values())
