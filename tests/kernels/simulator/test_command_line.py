"""`python -m kernels.simulator`."""

from typer.testing import CliRunner

from kernels.simulator import __main__ as command_line
from kernels.simulator.campaigns import CAMPAIGNS
from kernels.simulator.tutorials import TUTORIALS

RUN = CliRunner()


def test_list_names_every_case():
    result = RUN.invoke(command_line.app, ["list"])
    assert result.exit_code == 0
    assert result.output.split() == list(TUTORIALS)


def test_sweep_runs_what_is_named():
    result = RUN.invoke(command_line.app, ["sweep", "hopper_fa_ws/one-group", "--schedules", "2"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("hopper_fa_ws/one-group: 2 ok")
    assert result.output.count("\n") == 1


def test_sweep_of_one_schedule_fails_with_its_text(monkeypatch):
    case = TUTORIALS["blackwell_fa_ws"]
    strict = {case.name: type(case)(case.name, case.arch, case.prepare)}  # nothing allowed
    monkeypatch.setattr(command_line, "TUTORIALS", strict)
    result = RUN.invoke(command_line.app, ["sweep", "--mode", "lazy", "--seed", "3"])
    assert result.exit_code == 1
    assert "blackwell_fa_ws: 1 uninitialised" in result.output
    assert "Simulator(seed=3, mode='lazy', arch=100" in result.output


def test_unknown_names_are_errors_that_say_what_there_is():
    result = RUN.invoke(command_line.app, ["sweep", "no-such-case"])
    assert result.exit_code == 2
    assert "hopper_fa_ws" in result.output
    result = RUN.invoke(command_line.app, ["mutants", "no-such-kernel"])
    assert result.exit_code == 2
    assert next(iter(CAMPAIGNS)) in result.output
