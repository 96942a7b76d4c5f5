"""What the command line says to someone who has not read its page: help, completion, and errors with a next step."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from sample_records import gem_like
from typer.testing import CliRunner

from harness.cli import app
from harness.cli.paths import config_path, is_records, records_path
from harness.errors import UserError
from harness.records import append_records, append_samples

ROOT = Path(__file__).resolve().parents[2]
TOP = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = {name: command for name, command in TOP.items() if not hasattr(command, "commands")} | {
    f"{group} {name}": command for group, held in TOP.items()
    for name, command in getattr(held, "commands", {}).items()}


def examples(name):
    """The commands at the end of a command's help."""
    text = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="harness", env={"COLUMNS": "200"}).stdout
    return [line.strip() for line in text[text.index("Examples:"):].splitlines()[1:] if line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_it_can_parse(name):
    lines = examples(name)
    assert lines
    command = COMMANDS[name]
    for line in lines:
        words = shlex.split(line.split(" > ")[0])
        path = ["harness", *name.split()]
        assert words[:len(path)] == path
        context = command.context_class(command, info_name=name)
        command.make_parser(context).parse_args(list(words[len(path):]))


def test_the_examples_of_the_first_help_are_of_commands_that_exist():
    text = CliRunner().invoke(app, ["--help"], prog_name="harness").stdout
    lines = [line.strip() for line in text[text.index("Examples:"):].splitlines()[1:] if line.strip()]
    assert {line.split()[1] for line in lines} <= set(TOP)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands_and_options(shell):
    script = subprocess.run([sys.executable, "-m", "harness", "--show-completion", shell], cwd=ROOT, text=True,
                            capture_output=True, timeout=120, check=True)
    assert "harness" in script.stdout
    if shell == "bash":
        asked = os.environ | {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": "harness rep", "COMP_CWORD": "1"}
        found = subprocess.run([sys.executable, "-m", "harness"], cwd=ROOT, text=True, env=asked, capture_output=True,
                               timeout=120, check=False)
        assert found.stdout.split() == ["report"]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A working directory with a config, and one run under results/runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "gem.yaml").touch()
    folder = tmp_path / "results" / "runs" / "gem-1"
    folder.mkdir(parents=True)
    append_records(folder / "gem.csv", gem_like()[:1])
    append_samples(folder / "gem.samples.csv", [])
    return Path("results/runs/gem-1")


def test_only_records_are_offered(runs):
    assert is_records(runs / "gem.csv")
    assert not is_records(runs / "gem.samples.csv")
    assert not is_records(runs / "none.csv")


@pytest.mark.parametrize(("path", "wanted"), [
    ("results", "results: is a directory; name the records CSV of a run, such as results/runs/gem-1/gem.csv"),
    ("configs", "configs: is a directory; name the records CSV of a run; there is none in it, `harness run"),
    ("results/runs/gem-1/gen.csv", "results/runs/gem-1/gen.csv: no such records CSV, such as results/runs/gem-1/gem"),
    ("elsewhere.csv", "elsewhere.csv: no such records CSV, such as results/runs/gem-1/gem.csv")])
def test_a_path_that_is_no_records_csv_gets_the_next_step(runs, path, wanted):
    with pytest.raises(UserError, match=f"^{wanted}") as raised:
        records_path(Path(path))
    assert "samples" not in str(raised.value)


def test_without_any_run_the_next_step_is_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"x\.csv: no such records CSV; `harness run CONFIG` makes one"):
        records_path(Path("x.csv"))


@pytest.mark.parametrize(("path", "wanted"), [
    ("configs", "configs: is a directory; a config is a YAML file, such as configs/gem.yaml"),
    ("gen.yaml", "gen.yaml: no such config, such as configs/gem.yaml; docs/configs.md says how to write one"),
    ("configs/jem.yaml", "configs/jem.yaml: no such config, such as configs/gem.yaml; docs/")])
def test_a_path_that_is_no_config_gets_the_next_step(runs, path, wanted):
    with pytest.raises(UserError, match=f"^{wanted}"):
        config_path(Path(path))


def test_paths_that_are_right_stay_as_they_are(runs):
    assert records_path(runs / "gem.csv") == runs / "gem.csv"
    assert config_path(Path("configs/gem.yaml")) == Path("configs/gem.yaml")


@pytest.mark.parametrize("command", ["run", "cases", "plot", "ablation", "report"])
def test_each_command_says_so_in_one_line(runs, command):
    result = CliRunner().invoke(app, [command, "results"], prog_name="harness")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: results: is a directory; ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "wanted"), [
    ("run", "Missing argument 'CONFIG'; see harness run --help"),
    ("run --jobz 3", "No such option: --jobz (Possible options: --jobs); see harness run --help"),
    ("--bogus", "No such option: --bogus; see harness --help"), ("rnu", "see harness --help"),
    ("simulate --schedules 0", "see harness simulate --help"), ("baseline updat", "see harness baseline --help"),
    ("doctor now", "see harness doctor --help"), ("xray --arch sm_80", "see harness xray --help")])
def test_a_mistake_in_the_words_is_one_line(words, wanted):
    result = CliRunner().invoke(app, words.split(), prog_name="harness")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.endswith(f"{wanted}\n")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("words", [[], ["baseline"]])
def test_no_words_at_all_show_the_help(words):
    result = CliRunner().invoke(app, words, prog_name="harness")
    assert result.exit_code == 2
    assert "Commands:" in result.output
    assert "error:" not in result.output


@pytest.mark.parametrize("more", [["--write", "x.csv"], ["--check", "x.csv"], ["--quick"], ["--config", "solo64"],
                                  ["--options", "fwd: {block_n: 64}"]])
def test_lines_of_source_go_with_nothing_that_is_for_compiled_kernels(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["xray", "--lines", *more], prog_name="harness")
    assert result.exit_code == 2
    assert result.stderr == f"error: {more[0]}: is for compiled kernels; --lines compiles nothing\n"
    assert list(tmp_path.iterdir()) == []
