"""What the compiler makes of the backward's variants for sm_90a: shared memory that fits, spills, and how much code."""

from pathlib import Path

import pytest
from offline_script import lines_of

from kernels.hopper.backward_options import BARRIER_BYTES
from kernels.hopper.options import SMEM_PER_CTA

SCRIPT = Path(__file__).with_name("compile_backward.py")
# Bytes of stack a thread at most; others: none.
SPILLS = {
    "short, keys unseen": 72, "short, long Q, keys unseen": 48, "short, causal, keys unseen": 80, "short, window": 16,
    "short, groups": 8, "short, turns, groups": 8, "short, turns, keys unseen": 16, "long, causal": 8,
    "shared Q, groups": 8, "hold, D = 64": 24, "causal": 8, "window": 24, "groups": 8, "skip, all once": 16,
    "skip, short gap": 8, "skip, groups": 8, "counted, causal": 8, "counted, groups": 8, "counted, D = 64": 16,
    "turns, groups": 8, "D = 64, window": 16}
CODE = 4096  # instructions at most, 64 KB: beyond that warps wait for them, where steps are few to a tile
LONGER = {"short, causal, keys unseen": 4312}


@pytest.fixture(scope="module")
def compiled():
    return {line["name"]: line for line in lines_of(SCRIPT)}


def test_spills_are_known(compiled):
    assert {name: line["stack"] for name, line in compiled.items() if line["stack"] > SPILLS.get(name, 0)} == {}


def test_buffers_need_what_is_said_before_they_are_made(compiled):
    assert all(0 < line["shared"] - line["buffers"] <= BARRIER_BYTES for line in compiled.values())


def test_shared_memory_fits(compiled):
    assert {name: line["shared"] for name, line in compiled.items() if line["shared"] > SMEM_PER_CTA} == {}


def test_registers_are_redistributed(compiled):
    assert all(line["set_registers"] for line in compiled.values())


def test_code_for_short_sequences_stays_where_it_is_fetched_from(compiled):
    """What the rule takes for them is in use from end to end in every tile."""
    counts = {name: line["instructions"] for name, line in compiled.items() if name.split(",")[0] == "short"}
    assert len(counts) > 10
    assert {name: count for name, count in counts.items() if count > LONGER.get(name, CODE)} == {}


def test_code_for_tiles_without_steps_is_left_out_where_there_are_none(compiled):
    for name in ("short", "short, long Q", "short, causal", "short, turns", "short, pairs"):
        assert compiled[name]["instructions"] < compiled[f"{name}, keys unseen"]["instructions"]
    assert compiled["default"]["instructions"] < compiled["keys unseen"]["instructions"]
