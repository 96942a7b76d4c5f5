"""`configs/ablation_fwd.yaml`: every variant of the Hopper forward can run every row, and no two are the same."""

from pathlib import Path

import pytest
import torch

from harness.cases import expand
from harness.config import load_config
from harness.inputs import make_problem
from kernels.hopper import IMPLEMENTATION, resolve_forward
from kernels.hopper.options import SCHEDULES

CONFIG = load_config(Path(__file__).parents[3] / "configs" / "ablation_fwd.yaml")
OPTIONS = {backend.name: IMPLEMENTATION.make_options("fwd", dict(backend.options.get("fwd", {})))
           for backend in CONFIG.backends if backend.backend == "jfa"}


@pytest.fixture(scope="module")
def problems():
    return {case.name: make_problem(case, torch.device("cpu")) for case in expand(CONFIG)}


def test_the_full_kernel_is_there_unchanged():
    assert not OPTIONS["jfa"].switches
    assert OPTIONS["jfa"].variant is None
    assert {dict(options.switches).get("schedule") for options in OPTIONS.values()} == {None, *SCHEDULES}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_variant_can_run_every_row(name, problems):
    for row, problem in problems.items():
        resolved = resolve_forward(problem, None, OPTIONS[name])
        assert resolved.why_not(problem.head_dim, problem.mask) is None, row


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "jfa"])
def test_every_variant_differs_from_the_full_kernel_on_some_row(name, problems):
    assert any(resolve_forward(problem, None, OPTIONS[name]) != resolve_forward(problem, None, OPTIONS["jfa"])
               for problem in problems.values())
