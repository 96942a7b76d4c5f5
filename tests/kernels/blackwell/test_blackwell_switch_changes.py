"""Changed switches of the Blackwell kernels: refused with a reason, or compiled for sm_100a within the chip's memory.

Every change of one switch and of two is checked for the first. A seeded sample is compiled: eight, or as many as
``BLACKWELL_SWITCH_CHANGES`` says; with ``BLACKWELL_SWITCH_SEED`` another sample.
"""

import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from blackwell.switch_changes import BACKWARD_BASES, Change, changes, head_dims, sample
from offline_script import printed_by

from kernels.blackwell.backward_options import SMEM_BYTES, BlackwellBackwardOptions
from kernels.blackwell.options import SMEM_PER_CTA, TMEM_COLUMNS, BlackwellForwardOptions

SCRIPT = Path(__file__).with_name("compile_switch_changes.py")
SIZE = int(os.environ.get("BLACKWELL_SWITCH_CHANGES", "8"))
AT_ONCE = 8
SEED = int(os.environ.get("BLACKWELL_SWITCH_SEED", "0"))
SWITCHES = {"fwd": {field.name for field in fields(BlackwellForwardOptions)},
            "bwd": {field.name for field in fields(BlackwellBackwardOptions)} | {"schedule"}}


@pytest.mark.parametrize("count", [1, 2])
def test_each_change_is_valid_or_refused_with_a_reason_that_names_what_is_wrong(count):
    refused = {str(change): (change, reason) for change in changes(count) if (reason := change.refusal()) is not None}
    assert refused
    for name, (change, reason) in refused.items():
        named = set(re.findall(r"[a-z_0-9]+", reason))
        assert named & SWITCHES[change.direction] or "shared memory" in reason, f"{name}: {reason}"
        assert "\n" not in reason, name


def test_every_switch_is_changed_and_valid_somewhere():
    """``pair`` is so only with another: it needs `warp_barriers` off."""
    valid = [change for count in (1, 2) for change in changes(count) if change.refusal() is None]
    for direction, names in SWITCHES.items():
        assert {name for change in valid if change.direction == direction for name, _ in change.switches} == names


def test_valid_changes_fit_by_their_own_account():
    for change in changes(2):
        if change.refusal() is None:
            options, _ = change.resolved()
            if change.direction == "fwd":
                assert options.tmem_columns(change.head_dim) <= TMEM_COLUMNS
                assert options.shared_memory(change.head_dim) <= SMEM_PER_CTA
            else:
                assert options.smem_bytes(change.head_dim) <= SMEM_BYTES


def test_the_bases_themselves_are_valid():
    bases = [Change("fwd", "rule", dim, "full", ()) for dim in (64, 128)]
    bases += [Change("bwd", base, dim, "full", ()) for base in BACKWARD_BASES for dim in head_dims(base)]
    assert {str(base): base.refusal() for base in bases if base.refusal()} == {}


@pytest.mark.parametrize("start", range(0, SIZE, AT_ONCE))
def test_a_sample_of_valid_changes_compiles_and_fits(start):
    printed = printed_by(str(SCRIPT), str(SIZE), str(SEED), str(start), str(AT_ONCE), beside=SCRIPT.parents[1])
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["name"] for line in lines] == [str(each) for each in sample(SIZE, SEED)[start:start + AT_ONCE]]
    assert {line["name"]: line["error"] for line in lines if "error" in line} == {}
    for line in lines:
        assert line["shared"] <= SMEM_PER_CTA, line
        assert line["tmem"] <= TMEM_COLUMNS, line
        assert line["setmaxnreg"] > 0, line
