"""A rival's package that is missing, broken or fine."""

from __future__ import annotations

import importlib

import pytest
import torch

from harness.backends import registry
from harness.backends.packages import find_gpu_package, find_package, last_line

CUDA = torch.device("cuda")


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Makes a distribution ``name`` 1.2 with a module of that name and content."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, content: str) -> None:
        (tmp_path / f"{name}.py").write_text(content)
        metadata = tmp_path / f"{name}-1.2.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        importlib.invalidate_caches()

    return make


def test_a_missing_package_names_the_command():
    found = find_package("no-such-rival", "no_such_rival", "pip install no-such-rival")
    assert (found.available, found.import_failed) == (False, True)
    assert found.reason == "no-such-rival is not installed: pip install no-such-rival"


def test_a_broken_package_shows_the_last_line(distribution):
    distribution("brokenrival", "raise OSError('first line\\nlibfoo.so: cannot open')")
    found = find_package("brokenrival", "brokenrival", "pip install brokenrival")
    assert (found.available, found.import_failed, found.version) == (False, True, "1.2")
    assert found.reason == "brokenrival 1.2 fails to import: OSError: libfoo.so: cannot open"


def test_a_package_that_imports(distribution):
    distribution("finerival", "VALUE = 1")
    assert find_package("finerival", "finerival", "").available
    assert find_gpu_package(CUDA, "finerival", "finerival", "").version == "1.2"


def test_without_a_gpu_nothing_is_imported(distribution):
    distribution("untouchedrival", "raise SystemExit")
    found = find_gpu_package(torch.device("cpu"), "untouchedrival", "untouchedrival", "")
    assert (found.available, found.import_failed, found.version) == (False, False, "1.2")


def test_fa4_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("harness.backends.packages.version_of", lambda name: None)
    reason = registry.create("fa4").availability(CUDA).reason
    assert reason == "flash-attn-4 is not installed: pip install --pre 'flash-attn-4[cu13]'"


def test_triton_that_fails_to_import_fails_our_kernels(monkeypatch):
    def broken(name):
        raise ImportError("libtriton.so: cannot open")

    backend = registry.create("jfa_triton")
    monkeypatch.setattr("harness.backends.jfa.importlib.import_module", broken)
    found = backend.availability(torch.device("cpu"))
    assert (found.available, found.import_failed) == (False, True)
    assert "triton fails to import: ImportError: libtriton.so" in found.reason


def test_last_line():
    assert last_line(ValueError("a\nb\n\n")) == "ValueError: b"
    assert last_line(KeyError()) == "KeyError"


@pytest.mark.parametrize(("message", "line"), [
    ("SubprocException: An exception occurred in a subprocess:\n\nTraceback (most recent call last):\n"
     "  File \"a.py\", line 1, in f\n    f()\nRuntimeError: no active backend\n\n\n"
     "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace. For even more, set TORCH_LOGS=\"+dynamo\"\n",
     "RuntimeError: no active backend"),
    ("backend='inductor' raised:\nLoweringException: shapes differ\n\nfrom user code:\n   File \"b.py\", line 2, in g\n"
     "    return g(x)\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace",
     "LoweringException: shapes differ"),
    ("CUDA error: misaligned address\nSearch for `cudaErrorMisalignedAddress' in a manual\nCUDA kernel errors might be "
     "asynchronously reported\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
     "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n", "CUDA error: misaligned address"),
    ("PTXAS error: internal error\n`ptxas` stderr:\nptxas fatal: too many registers\n\nRepro command: ptxas -v x.ptx\n",
     "ptxas fatal: too many registers"),
    ("expected a tensor\nException raised from check at f.cpp:1 (most recent call first):\nframe #0: f\nframe #1: g",
     "expected a tensor"),
    ("Set TORCH_LOGS", "Set TORCH_LOGS"),
])
def test_advice_below_what_went_wrong_is_not_the_message(message, line):
    assert last_line(RuntimeError(message)) == f"RuntimeError: {line}"
