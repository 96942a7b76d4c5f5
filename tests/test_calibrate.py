"""`results/modelled/calibrate.py`: what it takes a measured row for."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("greenlet")
pytest.importorskip("triton.language.extra.tlx")

from kernels.hopper.backward_options import DEFAULT, SHORT_GAP, HopperBackwardOptions

SCRIPT = Path(__file__).parents[1] / "results/modelled/calibrate.py"


@pytest.fixture(scope="module")
def calibrate() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("calibrate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "calibrate", module)  # its dataclasses look there
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("options", [
    DEFAULT, SHORT_GAP, HopperBackwardOptions(direct_dq=False),
    HopperBackwardOptions(q_stages=1, do_stages=1, dq_stages=1, ds_stages=1, owned_blocks=0),
    HopperBackwardOptions(skip_half=True, l2_hints=True, serpentine=True, pairs=True, rotate=True, owned_blocks=64),
    HopperBackwardOptions(serpentine=True, hold=True), HopperBackwardOptions(keep_dq=True, turns=True),
    HopperBackwardOptions(counted=True, deterministic=True), HopperBackwardOptions(alternate=True, l2_hints=True),
], ids=lambda options: options.token)
def test_a_backward_s_name_says_its_switches(calibrate, options):
    switches, schedule = calibrate.backward_that_ran(f"hopper/{options.token}/sorted")
    assert HopperBackwardOptions.make(switches) == options
    assert schedule == "sorted"


@pytest.mark.parametrize("variant", [
    "ahead-l2-own4", "q2o2k1s2d2-late-own4", "q2o2k1s2d2-own4-dk", "q3o2k1s2d2-own4"])
def test_a_name_of_other_kernels_is_refused(calibrate, variant):
    with pytest.raises(ValueError, match=r"not a name of today's options|q_stages: expected 1 to 2"):
        calibrate.backward_that_ran(f"hopper/{variant}/zigzag")


def test_each_measured_backward_is_predicted_with_the_switches_of_its_name(calibrate):
    rows = [row for row in calibrate.measured() if row.direction == "bwd"]
    assert rows
    for row in rows:
        token = HopperBackwardOptions.make(json.loads(row.options)).token
        assert row.variant == f"hopper/{token}/{row.schedule}"
