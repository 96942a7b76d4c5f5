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
    assert {name.split("-")[0] for name in compiled} == set(VARIANTS)


def test_nothing_spills(compiled):
    assert {name: line["spills"] for name, line in compiled.items() if line["spills"]} == {}


def test_shared_memory_fits_and_is_what_options_say(compiled):
    for name, line in compiled.items():
        assert (line["shared"] + 1024) * line["ctas_per_sm"] <= SMEM_PER_SM, name
        assert 0 <= line["shared"] - line["estimate"] <= 4096, name


def test_registers_are_redistributed(compiled):
    assert all(line["set_registers"] for line in compiled.values())


def test_softmax_runs_beside_the_second_matmul(compiled):
    loops = {name: line["beside_matmul"] for name, line in compiled.items() if not name.endswith("full")}
    assert all(found and all(found) for found in loops.values()), loops


def test_ptxas_moves_the_softmax_without_a_mask(compiled):
    """Not wanted, but so far no loss: see the notes; another outcome means that a compiler differs."""
    assert not any(all(compiled[name]["beside_matmul"])
               for name in ("solo64-128-full", "tri64-128-full", "pair128-128-full"))
