from __future__ import annotations

import getpass
import json
import socket
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from harness.environment import Checkout, describe_checkout, describe_device


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_commit_and_dirty_flag_of_a_checkout(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "one")
    (tmp_path / "untracked").write_text("1")
    clean = describe_checkout(tmp_path)
    assert len(clean.commit) == 12
    assert clean.dirty is False
    (tmp_path / "file").write_text("2")
    assert describe_checkout(tmp_path) == Checkout(clean.commit, True)


def test_a_bundle_names_its_commit_by_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_COMMIT", "0123456789abcdef")
    monkeypatch.setenv("HARNESS_DIRTY", "0")
    assert describe_checkout(tmp_path) == Checkout("0123456789ab", False)
    monkeypatch.setenv("HARNESS_DIRTY", "1")
    assert describe_checkout(tmp_path).dirty is True


def test_nothing_known_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_COMMIT", raising=False)
    monkeypatch.delenv("HARNESS_DIRTY", raising=False)
    assert describe_checkout(tmp_path) == Checkout("", None)


def test_a_cpu_is_described_without_host_user_or_paths() -> None:
    described = describe_device(torch.device("cpu"))
    assert (described.device_type, described.driver, described.torch) == ("cpu", "", torch.__version__)
    assert described.gpu
    text = json.dumps(asdict(described))
    words = text.replace('"', " ").split()
    assert socket.gethostname() not in words
    assert getpass.getuser() not in words
    assert str(Path.home()) not in text or str(Path.home()) == "/"
