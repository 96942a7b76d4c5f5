"""The scripts for machines without network, on archives of a pretend package."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
ENVIRONMENT = "fa4@4.0.0b15"
ITS_OWN = ("torch", "numpy", "pandas", "scipy", "matplotlib")  # what the machine without network has


def pack(folder: Path, archive: str, *modules: str, text: str = "") -> Path:
    """``<folder>/<archive>.tar.xz`` with modules, which know their names, as `bundle.sh` lays it out."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{archive}.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        for module in modules:
            source = folder / f"{module}.py"
            source.write_text(text or f"NAME = {module!r}\n")
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
    nowhere = shell(command, ENVIRONMENT, tmp_path / "nowhere", HARNESS_ENVIRONMENTS=places)
    assert (nowhere.returncode, nowhere.stderr) == (2, f"error: BUNDLE={tmp_path}/nowhere: no such directory\n")
    assert [path.name for path in places.iterdir()] == [ENVIRONMENT]


def setup(venv: Path, *arguments: object, **variables: object) -> subprocess.CompletedProcess[str]:
    return shell(f'"{SCRIPTS}/setup.sh" "$@"', venv, *arguments, **variables)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An interpreter, of a virtual environment with pretend packages, and without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "machine"], check=True)
    for name in ITS_OWN:
        (site(tmp_path / "machine") / f"{name}.py").write_text(f"NAME = {name!r}\n")
    return tmp_path / "machine" / "bin" / "python"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    pack(folder, "base", "pydantic", "typer", "numpy")  # of both places the bundle's comes first
    pack(folder, "tlx", "triton")
    (folder / "python").write_text("{}.{}\n".format(*sys.version_info))
    return folder


def site(venv: Path) -> Path:
    return next(venv.glob("lib/python*/site-packages"))


def test_a_bundle_becomes_an_environment_that_needs_no_setup(tmp_path: Path, machine: Path, bundle: Path) -> None:
    venv, tools = tmp_path / "venv", tmp_path / "cuda"
    tools.mkdir()
    (tools / "ptxas").write_text("#!/bin/sh\n")
    (tools / "ptxas").chmod(0o755)
    for _ in range(2):  # the second makes it anew
        done = setup(venv, "gpu", bundle, PYTHON=machine, PATH=f"{tools}:{os.environ['PATH']}")
        assert (done.returncode, done.stderr) == (0, "")
    names = [*ITS_OWN, "pydantic", "typer", "triton", "harness"]
    found = shell('cd / && "$@"', venv / "bin/python", "-c",
                  f"import {', '.join(names)}; print(*({'.__file__, '.join(names)}.__file__))").stdout.split()
    assert {name: Path(path).parent for name, path in zip(names, found, strict=True)} == {
        **dict.fromkeys(ITS_OWN, site(tmp_path / "machine")),
        **dict.fromkeys(["numpy", "pydantic", "typer", "triton"], site(venv)), "harness": ROOT / "harness"}
    for tool in ("ptxas", "ptxas-blackwell"):
        assert (site(venv) / "triton/backends/nvidia/bin" / tool).readlink() == tools / "ptxas"
    real = shell('cd / && "$1" --help', venv / "bin/harness", PYTHONPATH=sysconfig.get_path("purelib"))
    assert "gate" in real.stdout, real.stderr
    for flavour in ("cpu", "gpu"):
        done = setup(venv, flavour, PYTHON=machine)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    for stamp in venv.glob(".ready-*"):  # as after a change of what the checkout needs
        stamp.unlink()
    done = setup(venv, "gpu", PYTHON=machine)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"make unbundle BUNDLE={bundle}\n")


def cut(bundle: Path) -> None:
    archive = bundle / "tlx.tar.xz"
    archive.write_bytes(archive.read_bytes()[:-60])


@pytest.mark.parametrize(("spoil", "wanted"), [
    (lambda bundle, machine, venv: bundle.rename(bundle.with_name("elsewhere")), "BUNDLE={bundle}: no such directory"),
    (lambda bundle, machine, venv: (bundle / "tlx.tar.xz").unlink(), "BUNDLE={bundle}: no tlx.tar.xz there; "),
    (lambda bundle, machine, venv: (bundle / "python").unlink(), "BUNDLE={bundle}: no python there; "),
    (lambda bundle, machine, venv: (bundle / "python").write_text("3.9\n"), "BUNDLE={bundle}: is for Python 3.9, "),
    (lambda bundle, machine, venv: cut(bundle), "{bundle}/tlx.tar.xz: can't be unpacked (xz: "),
    (lambda bundle, machine, venv: pack(bundle, "tlx", "triton", text="import left_out"),
     "BUNDLE={bundle}: unpacked, but can't import: triton (No module named 'left_out')"),
    (lambda bundle, machine, venv: (site(machine.parents[1]) / "torch.py").unlink(),
     "PYTHON={machine}: can't import what it must have: torch (No module named 'torch')"),
    (lambda bundle, machine, venv: (venv / "bin").mkdir(parents=True), "VENV={venv}: is there and not of a bundle; ")])
def test_a_bundle_that_cannot_be_used_ends_in_one_line(
        tmp_path: Path, machine: Path, bundle: Path, spoil: Callable[..., object], wanted: str) -> None:
    names = {"bundle": bundle, "machine": machine, "venv": tmp_path / "venv"}
    spoil(**names)
    done = setup(names["venv"], "cpu", bundle, PYTHON=machine, TRITON_PTXAS_PATH="/bin/true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: {wanted.format(**names)}")
    assert not list(names["venv"].glob(".ready-*"))


def test_an_environment_is_not_made_anew_with_its_own_interpreter(tmp_path: Path, machine: Path, bundle: Path) -> None:
    venv = tmp_path / "venv"
    assert setup(venv, "cpu", bundle, PYTHON=machine).returncode == 0
    done = setup(venv, "cpu", bundle, PYTHON=venv / "bin/python")  # as where it is activated
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is that of VENV=" in done.stderr
    assert setup(venv, "cpu").returncode == 0


@pytest.mark.parametrize("name", ["../gpu", "nope", "../environments/fa4@4.0.0b15"])
@pytest.mark.parametrize("script", ["environment.sh", "bundle.sh"])
def test_a_name_is_that_of_a_locked_set(tmp_path: Path, script: str, name: str) -> None:
    arguments = (name, tmp_path) if script == "environment.sh" else (tmp_path, name)
    done = shell(f'"{SCRIPTS}/{script}" "$@"', *arguments, HARNESS_ENVIRONMENTS=tmp_path / "environments")
    assert done.returncode == 2
    assert f"NAME={name}: no such locked set; allowed: " in done.stderr
    assert ENVIRONMENT in done.stderr
    assert not list(tmp_path.iterdir())
