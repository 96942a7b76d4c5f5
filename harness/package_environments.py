"""Named environments: packages of a backend beside the harness's own, so that two versions of a rival run in one sweep.

An environment is a folder of ``.environments/`` (or of the folder that HARNESS_ENVIRONMENTS names), made by
``make env``: a virtual environment, whose interpreter then runs the worker, or an unpacked bundle of packages, which
come first on the path of the interpreter that runs the harness. One named ``<backend>@<version>`` must hold that
version.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.environment import ROOT

VARIABLE = "HARNESS_ENVIRONMENTS"
NESTED = ("nvidia_cutlass_dsl/dsl_packages", "nvidia_cutlass_dsl/python_packages")  # a .pth file adds them to a venv


@dataclass(frozen=True)
class PackageEnvironment:
    """An interpreter, and folders that come before all others on its path. ``problem`` says why it can't be used."""

    python: str = sys.executable
    paths: tuple[str, ...] = ()
    problem: str = ""


def folder() -> Path:
    """Where environments are."""
    return Path(os.environ.get(VARIABLE) or ROOT / ".environments").expanduser()


def available() -> list[str]:
    """Names of those that are there, sorted."""
    return sorted(path.name for path in folder().glob("*/")) if folder().is_dir() else []


def find(name: str) -> PackageEnvironment:
    """The environment of that name, the harness's own for an empty one. Never raises."""
    if not name:
        return PackageEnvironment()
    place = folder() / name
    python = place / "bin" / "python"
    if python.is_file() and os.access(python, os.X_OK):
        return PackageEnvironment(python=str(python.absolute()))  # not resolved: the link is what makes it a venv
    if os.path.lexists(python) or (place / "pyvenv.cfg").exists():  # its packages without it would be used by no one
        return PackageEnvironment(problem=f"{python}: no interpreter that can be run, as after its Python was moved or "
                                          f"removed; make env NAME={name} makes it anew")
    if not place.is_dir() or not any(place.iterdir()):
        there = ", ".join(available()) or "none"
        return PackageEnvironment(problem=f"there is no environment {name!r} (there: {there}); "
                                          f"make env NAME={name}, or unpack a bundle there")
    nested = [place / part for part in NESTED if (place / part).is_dir()]
    return PackageEnvironment(paths=tuple(str(path.absolute()) for path in (place, *nested)))


def pinned_version(name: str, backend: str) -> str:
    """The version that an environment's name promises of a backend; empty if it promises none."""
    key, _, version = name.partition("@")
    return version if key == backend else ""
