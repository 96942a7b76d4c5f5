from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_cases import tiny_config

from harness import package_environments
from harness.backends import registry
from harness.config import BackendConfig
from harness.fleet import Member
from harness.records import Status
from harness.runner import RunOptions, run

REQUIREMENTS = Path(package_environments.ROOT) / "requirements" / "environments"


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "environments"
    folder.mkdir()
    monkeypatch.setenv(package_environments.VARIABLE, str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return folder


def make_bundle(folder: Path, name: str, version: str) -> None:
    """An unpacked bundle: one module and its distribution's metadata."""
    information = folder / name / f"pretend_rival-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pretend-rival\nVersion: {version}\n")
    (folder / name / "pretend_rival.py").write_text(f"VERSION = {version!r}\n")


def make_venv(folder: Path, name: str) -> None:
    """As little of a virtual environment as its interpreter needs to be told from ours."""
    (folder / name / "bin").mkdir(parents=True)
    python = folder / name / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPRETEND_VENV={name} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


def test_key_with_version_is_backend_in_environment() -> None:
    backend = BackendConfig.model_validate("fa4@4.0.0b15")
    assert (backend.backend, backend.environment, backend.name) == ("fa4", "fa4@4.0.0b15", "fa4@4.0.0b15")
    named = BackendConfig.model_validate({"backend": "fa4@4.0.0b15", "name": "may"})
    assert (named.backend, named.environment, named.name) == ("fa4", "fa4@4.0.0b15", "may")
    assert BackendConfig.model_validate("fa4").environment == ""


def test_own_environment_needs_nothing() -> None:
    assert package_environments.find("") == package_environments.PackageEnvironment(sys.executable, (), "")


def test_bundle_comes_first_on_the_path(environments: Path) -> None:
    make_bundle(environments, "rival@1", "1")
    for part in package_environments.NESTED:
        (environments / "rival@1" / part).mkdir(parents=True)
    found = package_environments.find("rival@1")
    assert found.python == sys.executable
    place = environments / "rival@1"
    assert [Path(path) for path in found.paths] == [place, *(place / part for part in package_environments.NESTED)]


def test_venv_is_run_by_its_own_interpreter(environments: Path) -> None:
    make_venv(environments, "venv")
    assert package_environments.find("venv").python == str(environments / "venv" / "bin" / "python")


def test_venv_without_an_interpreter_is_no_bundle_of_packages(environments: Path) -> None:
    make_venv(environments, "moved")
    python = environments / "moved" / "bin" / "python"
    python.unlink()
    for spoil in (lambda: python.symlink_to("/nowhere/python3"), lambda: python.write_text("")):
        spoil()
        found = package_environments.find("moved")
        assert found.paths == ()
        assert "no interpreter that can be run" in found.problem
        assert "make env NAME=moved" in found.problem
        python.unlink()


def test_two_versions_in_one_csv(environments: Path, tmp_path: Path) -> None:
    make_bundle(environments, "rival@1.0", "1.0")
    make_bundle(environments, "rival@2.0", "2.0")
    make_venv(environments, "venv")
    key = "fake_backends:VersionedBackend"
    config = tiny_config([{"backend": key, "name": "old", "environment": "rival@1.0"},
                          {"backend": key, "name": "new", "environment": "rival@2.0"},
                          {"backend": key, "name": "venv", "environment": "venv"},
                          {"backend": key, "name": "none"}], ["one"], directions=("fwd",), scopes=("kernel",))
    records = run(config, RunOptions(out_dir=tmp_path / "out", device="cpu")).records
    assert [(record.backend, record.backend_version, record.status) for record in records] == [
        ("old", "1.0", Status.OK), ("new", "2.0", Status.OK), ("venv", "venv", Status.OK),
        ("none", "", Status.IMPORT_ERROR)]


def test_missing_environment_is_named_with_those_there(environments: Path, tmp_path: Path) -> None:
    make_bundle(environments, "rival@1.0", "1.0")
    config = tiny_config([{"backend": "fake_backends:FakeBackend", "environment": "fa4@0"}], ["one"])
    records = run(config, RunOptions(out_dir=tmp_path / "out", device="cpu")).records
    assert {record.status for record in records} == {Status.IMPORT_ERROR}
    assert records[0].message.startswith("there is no environment 'fa4@0' (there: rival@1.0); make env NAME=fa4@0")


def test_environment_must_hold_the_version_in_its_name(environments: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKENDS", {"rival": "fake_backends:VersionedBackend"})
    make_bundle(environments, "rival@2.0", "1.0")
    member = Member(BackendConfig.model_validate("rival@2.0"), "cpu", tmp_path, 60.0)
    member._client._hello["backend"] = "fake_backends:VersionedBackend"  # the worker has the shipped registry
    member.start()
    assert member.problem == (Status.IMPORT_ERROR, "its environment should hold version 2.0, but holds 1.0")
    assert package_environments.pinned_version("fa4@2.0", "cudnn") == ""
    assert package_environments.pinned_version("may", "fa4") == ""


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_locked_sets_pin_every_package_and_what_their_name_says(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert all("==" in line for line in lines)
    package = {"fa4": "flash-attn-4", "cudnn": "nvidia-cudnn-frontend"}[path.stem.partition("@")[0]]
    assert f"{package}=={path.stem.partition('@')[2]}" in lines
