"""`harness simulate`: configs/sim.yaml on this project's TLX kernels, and what it says of kernels that are broken."""

import functools
import io
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from harness import cli, simulation
from harness.cases import MODES, expand
from harness.config import load_config
from harness.errors import UserError
from kernels.hopper.options import VARIANTS
from kernels.simulator import Schedule
from kernels.simulator.mutants import Collector, Mutator

CONFIG = load_config(Path(__file__).resolve().parents[2] / "configs" / "sim.yaml")
CASES = expand(CONFIG)
TINY = """\
name: tiny
backends:
  - {backend: jfa, name: solo, options: {fwd: {variant: solo64}, impl: hopper}}
  - {backend: jfa, name: solo-too, options: {fwd: {variant: solo64}, impl: hopper}}
  - {backend: jfa, name: small, options: {fwd: {variant: tri64c}, impl: hopper}}
  - padded
cases:
  - {name: self, mode: self, num_heads_q: 1, head_dim: 128, lengths: {kind: list, values: [130, 0, 65]}}
"""


def simulate(*arguments):
    return CliRunner().invoke(cli.app, ["simulate", *map(str, arguments)], prog_name="harness", catch_exceptions=False)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def broken(monkeypatch):
    """Drops the consumers' first wait for a full slot from the forward."""
    collector = Collector()
    whole = functools.partial(simulation.Simulator, mutation=collector)
    monkeypatch.setattr(simulation, "Simulator", whole)
    rows(CASES[:1], ["solo64"], [Schedule("lazy", 0)])
    site = next(site for site in collector.sites
                if site.function == "consume" and site.kind == "drop" and "full" in site.statement)
    monkeypatch.setattr(simulation, "Simulator", functools.partial(whole.func, mutation=Mutator(site)))
    return site


def rows(cases, backends, schedules):
    return list(simulation.simulate(CONFIG, cases, backends, "hopper", schedules))


def test_config_covers_modes_masks_heads_and_poison():
    assert {case.mode for case in CASES} == set(MODES)
    assert {case.head_dim for case in CASES} == {64, 128}
    assert {case.hazard for case in CASES} == {"none", "nonfinite_neighbours", "guard", "low_lse"}
    masks = {(case.mask.left is not None, case.mask.right is not None) for case in CASES}
    assert masks == {(False, False), (False, True), (True, False), (True, True)}
    assert any(case.num_heads_q > case.num_heads_kv for case in CASES)
    assert any(0 in case.lengths_k for case in CASES)
    assert all(case.total_q <= 1000 for case in CASES)
    names = {backend.options.get("fwd", {}).get("variant") for backend in CONFIG.backends}
    assert names - {None} == set(VARIANTS)


HOPPER = [backend for backend in CONFIG.backends if backend.options["impl"] == "hopper"]
FORWARD = [backend.name for backend in HOPPER if "fwd" in backend.options and backend.name != "solo64"]
BACKWARD = [backend.name for backend in HOPPER if "bwd" in backend.options]


@pytest.mark.parametrize("position", range(len(CASES)), ids=[case.name for case in CASES])
def test_kernels_are_right_on(position):
    """Each case on one variant a direction in turn, and on solo64, by one schedule: the command runs them all."""
    schedule = Schedule("lazy", 0) if position % 2 else Schedule("random", 1)
    names = ["solo64", FORWARD[position % len(FORWARD)], BACKWARD[position % len(BACKWARD)]]
    got = rows([CASES[position]], names, [schedule])
    if got[-1].declined:  # such as what needs head_dim 128
        got += rows([CASES[position]], ["owned"], [schedule])
    for row in got:
        assert not row.findings, row.findings[0].text
        assert row.declined or (row.passed == 1 and 0 < row.share <= 1)
    assert [row.direction for row in got if not row.declined][-1] == "bwd"
    assert "fwd" in [row.direction for row in got if not row.declined]


def test_table_and_what_is_declined(tiny):
    result = simulate("--config", tiny, "--schedules", 2)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.lstrip().startswith("self")]
    assert [line[1:3] for line in lines] == [["fwd", "solo"], ["fwd", "small"]]  # solo-too is the same variant
    assert lines[0][4] == "2/2"
    assert "declined:" in lines[1]
    assert "head_dim" in " ".join(lines[1])


def test_csv_of_one_schedule(tiny):
    result = simulate("--config", tiny, "--backend", "solo", "--seed", 7, "--mode", "eager", "--csv")
    assert result.exit_code == 0, result.output
    (row,) = pd.read_csv(io.StringIO(result.stdout)).to_dict("records")
    assert (row["case"], row["direction"], row["schedules"], row["passed"]) == ("self", "fwd", 1, 1)
    assert np.isnan(row["found"])


def test_jobs_share_the_rows_and_change_nothing(tiny):
    alone, shared = (simulate("--config", tiny, "--schedules", 2, "--csv", "--jobs", jobs) for jobs in (1, 2))
    assert shared.exit_code == alone.exit_code == 0
    assert shared.stdout == alone.stdout


def test_all_declined_is_no_success(tiny):
    result = simulate("--config", tiny, "--backend", "small", "--schedules", 1)
    assert result.exit_code == 1


def test_a_race_is_found_and_found_again(tiny, broken):
    result = simulate("--config", tiny, "--backend", "solo", "--schedules", 3)
    assert result.exit_code == 1
    assert "3 " in result.stdout
    first = result.stderr.split("again: ")[0]
    assert "last events, oldest first:" in first
    again = shlex.split(result.stderr.split("again: ")[1].splitlines()[0])
    assert again[:2] == ["harness", "simulate"]
    repeated = simulate(*again[2:])
    assert repeated.exit_code == 1
    assert repeated.stderr.split("again: ")[0] == first


def test_wrong_results_and_unwritten_elements_are_findings(monkeypatch):
    case = CASES[0]
    implementation = simulation.dispatch.load("hopper")
    right = type(implementation).forward

    def half(self, *arguments, **keywords):
        out, lse = right(self, *arguments, **keywords)
        return out / 2, lse

    monkeypatch.setattr(type(implementation), "forward", half)
    (row, *_) = rows([case], ["solo64"], [Schedule("lazy", 0)])
    assert [finding.check for finding in row.findings] == ["wrong"]
    assert row.found == "1 wrong"
    assert row.findings[0].text.startswith("out: ")

    def copied(self, *arguments, **keywords):
        out, lse = right(self, *arguments, **keywords)
        return out.clone(), lse

    monkeypatch.setattr(type(implementation), "forward", copied)
    (row, *_) = rows([case], ["solo64"], [Schedule("lazy", 0)])
    assert [finding.check for finding in row.findings] == ["never written"]
    assert row.passed == 0


def test_bad_choices_say_what_is_allowed(tiny):
    for arguments, wanted in ((["--impl", "ampere"], "'ampere'; allowed: hopper"),
                              (["--backend", "padded"], "'padded' can't be simulated as hopper; allowed: solo, "),
                              (["--case", "other"], "no case 'other'")):
        result = simulate("--config", tiny, *arguments)
        assert result.exit_code == 2
        assert wanted in result.stderr
        assert result.stderr.count("\n") == 1


def test_config_without_kernels_to_simulate():
    rivals = CONFIG.model_copy(update={"backends": CONFIG.backends[:0]})
    with pytest.raises(UserError, match="none is jfa with impl auto or hopper"):
        next(simulation.simulate(rivals, CASES, None, "hopper", [Schedule("lazy", 0)]))
