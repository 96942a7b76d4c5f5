"""The documentation names everything that there is, and nothing else."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer

from harness.cli import app
from harness.records import COLUMNS, SAMPLE_COLUMNS, Status

ROOT = Path(__file__).resolve().parent.parent


def all_commands(group, prefix=""):
    """Every command by its name; of a group of commands each one, such as ``baseline update``."""
    found = {}
    for name, command in group.commands.items():
        found |= all_commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {prefix + name: command}
    return found


COMMANDS = all_commands(typer.main.get_command(app))


def section_of(name):
    """The text of a command's section in the CLI's page."""
    return next(body for heading, body in sections((ROOT / "docs" / "cli.md").read_text(), 2).items()
                if f"{heading} ".startswith(f"harness {name} "))


def sections(text, level):
    """Text under each heading of a level, by the heading without its backticks."""
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)[1:]
    return {heading.strip("`"): body for heading, body in zip(parts[::2], parts[1::2], strict=True)}


def test_every_command_has_a_section():
    headings = sections((ROOT / "docs" / "cli.md").read_text(), 2)
    assert len(headings) == len(COMMANDS)
    for name, command in COMMANDS.items():
        arguments = [each.metavar for each in command.params if each.param_type_name == "argument"]
        assert " ".join(["harness", name, *arguments]) in headings


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented_and_no_other(name):
    text = section_of(name)
    documented = re.findall(r"^\| `(--[a-z-]+)", text, flags=re.MULTILINE)
    options = [option for each in COMMANDS[name].params if each.param_type_name == "option" for option in each.opts]
    assert sorted(documented) == sorted(option for option in options if option != "--help")


def test_every_option_has_a_help_text():
    for command in COMMANDS.values():
        assert command.help
        assert all(option.help for option in command.params if option.param_type_name == "option")


def test_results_readme_documents_each_column_once():
    columns = sections((ROOT / "results" / "README.md").read_text(), 2)["Columns"]
    documented = re.findall(r"^\| `([a-z0-9_]+)` \|", columns, flags=re.MULTILINE)
    assert sorted(documented) == sorted(COLUMNS)


def test_results_readme_names_every_sample_column_and_status():
    text = (ROOT / "results" / "README.md").read_text()
    for column in SAMPLE_COLUMNS[1:]:
        assert re.search(rf"\b{column}\b", text)
    table = text[text.index("| status | meaning |"):text.index("**Intervals.**")]
    assert re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE) == [status.value for status in Status]


@pytest.mark.parametrize("filler", ["fill_readme", "fill_versions"])
def test_readme_tables_are_what_the_committed_records_say(filler):
    spec = importlib.util.spec_from_file_location(filler, ROOT / "docs" / f"{filler}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "README.md").read_text()
    table = script.TABLE.search(text)
    assert table
    assert "geometric mean" in table[0]
    assert script.filled(text) == text, f"run python docs/{filler}.py"
