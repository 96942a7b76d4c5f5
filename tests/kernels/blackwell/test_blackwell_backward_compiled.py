"""What the compiler makes of the Blackwell backward for sm_100a: nothing spills where matmuls and loads are issued."""

from pathlib import Path

import pytest
from offline_script import lines_of

from kernels.blackwell.backward_options import SMEM_BYTES

SCRIPT = Path(__file__).with_name("compile_blackwell_backward.py")


@pytest.fixture(scope="module")
def compiled():
    return {line["name"]: line for line in lines_of(SCRIPT)}


def test_shared_memory_fits_and_is_what_options_say(compiled):
    for name, line in compiled.items():
        assert line["shared"] <= SMEM_BYTES, name
        excess = line["estimate"] - line["shared"]
        assert (-4096 if "D = 64" in name else 0) <= excess <= 250, name


def test_tensor_memory_fits(compiled):
    assert {name: line["tmem"] for name, line in compiled.items() if line["tmem"] > 512} == {}


def test_roles_that_issue_matmuls_and_loads_do_not_spill(compiled):
    assert {name: line["spills"] for name, line in compiled.items() if line["spills"]} == {}
    assert {line["issuing_roles"] for line in compiled.values()} == {2}


def test_stack_is_a_few_values_of_the_start_at_most(compiled):
    assert {name: line["stack"] for name, line in compiled.items() if line["stack"] > 16} == {}


def test_registers_are_redistributed(compiled):
    """The compute role's 168, the reduction's 96, 80 where one warp issues: more than there are would give none."""
    assert all({80, 96, 168} <= set(line["registers"]) for line in compiled.values())
