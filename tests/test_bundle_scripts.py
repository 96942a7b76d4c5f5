"""The scripts for machines without network, on archives of a pretend package."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
ENVIRONMENT = "fa4@4.0.0b15"


def pack(folder: Path, archive: str, module: str) -> Path:
    """``<folder>/<archive>.tar.xz`` with one module, as `bundle.sh` lays it out."""
    source = folder / f"{module}.py"
    folder.mkdir(exist_ok=True)
    source.write_text(f"NAME = {module!r}\n")
    path = folder / f"{archive}.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        tar.add(source, source.name)
    source.unlink()
    return path


def shell(command: str, *arguments: object, **variables: object) -> subprocess.CompletedProcess[str]:
    """In an environment with nothing in it but what finds programs."""
    return subprocess.run(["bash", "-c", command, "bash", *map(str, arguments)], capture_output=True, text=True,
                          check=False, env={"PATH": os.environ["PATH"], **{key: str(value) for key, value
                                                                           in variables.items()}})


def unbundle(bundle: Path) -> subprocess.CompletedProcess[str]:
    program = "import pretend_base, pretend_fa4; print(pretend_fa4.NAME)"
    return shell(f'. "{SCRIPTS}/unbundle.sh" "$1" && "$2" -c "$3"', bundle, sys.executable, program)


def test_unbundled_packages_are_found(tmp_path: Path) -> None:
    pack(tmp_path, "base", "pretend_base")
    whole = pack(tmp_path, "fa4", "pretend_fa4")
    content = whole.read_bytes()
    whole.unlink()
    for index, part in enumerate((content[:100], content[100:])):  # as with PART=
        Path(f"{whole}.{index:02d}").write_bytes(part)
    for _ in range(2):  # the second finds it unpacked
        done = unbundle(tmp_path)
        assert (done.returncode, done.stdout) == (0, "pretend_fa4\n"), done.stderr


def test_a_bundle_that_is_cut_or_missing_ends_it(tmp_path: Path) -> None:
    pack(tmp_path, "base", "pretend_base")
    path = pack(tmp_path, "fa4", "pretend_fa4")
    content = path.read_bytes()
    path.write_bytes(content[:-60])
    done = unbundle(tmp_path)
    assert done.returncode == 1
    assert "fa4.tar.xz: can't be unpacked" in done.stderr
    path.write_bytes(content)
    assert unbundle(tmp_path).returncode == 0
    assert unbundle(tmp_path / "nowhere").returncode == 1


def test_an_environment_comes_out_of_its_archive(tmp_path: Path) -> None:
    pack(tmp_path / "bundle", ENVIRONMENT, "pretend_fa4")
    places = tmp_path / "environments"
    command = f'"{SCRIPTS}/environment.sh" "$@"'
    for _ in range(2):
        done = shell(command, ENVIRONMENT, tmp_path / "bundle", HARNESS_ENVIRONMENTS=places)
        assert (done.returncode, done.stdout) == (0, f"{ENVIRONMENT}: ready\n"), done.stderr
        assert [path.name for path in places.rglob("*.py")] == ["pretend_fa4.py"]
    other = shell(command, "cudnn@1.32.0", tmp_path / "bundle", HARNESS_ENVIRONMENTS=places)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "no cudnn@1.32.0.tar.xz there; make it with: make bundle NAME=cudnn@1.32.0" in other.stderr
    assert [path.name for path in places.iterdir()] == [ENVIRONMENT]


@pytest.mark.parametrize("name", ["../gpu", "nope", "../environments/fa4@4.0.0b15"])
@pytest.mark.parametrize("script", ["environment.sh", "bundle.sh"])
def test_a_name_is_that_of_a_locked_set(tmp_path: Path, script: str, name: str) -> None:
    arguments = (name, tmp_path) if script == "environment.sh" else (tmp_path, name)
    done = shell(f'"{SCRIPTS}/{script}" "$@"', *arguments, HARNESS_ENVIRONMENTS=tmp_path / "environments")
    assert done.returncode == 2
    assert f"NAME={name}: no such locked set; allowed: " in done.stderr
    assert ENVIRONMENT in done.stderr
    assert not list(tmp_path.iterdir())
