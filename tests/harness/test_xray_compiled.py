"""`harness xray` on this checkout's kernels, and on copies of them with a defect."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASELINES = ROOT / "results" / "baselines"
COMPILES = pytest.mark.timeout(900)  # a minute on an idle machine


def xray(folder, *arguments):
    """``harness xray ARGUMENTS`` with the packages in ``folder``."""
    return subprocess.run([sys.executable, "-m", "harness", "xray", *arguments], cwd=folder, capture_output=True,
                          text=True, timeout=880, env={**os.environ, "PYTHONPATH": str(folder)})


@COMPILES
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_compiled_kernels_are_no_worse_than_the_baseline(arch):
    done = xray(ROOT, "--arch", arch, "--quick", "--check", str(BASELINES / f"xray_{arch.replace('_', '')}.csv"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    """A copy of the packages, and a function that edits a file of it: ``edit(name, pattern, replacement)``."""
    for package in ("kernels", "harness"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def edit(name, pattern, replacement):
        path = tmp_path / name
        text, times = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
        assert times, f"{pattern!r} is not in {name}"
        path.write_text(text)

    edit.folder = tmp_path
    return edit


def findings(copy, arch, picked):
    baseline = str(BASELINES / f"xray_{arch.replace('_', '')}.csv")
    done = xray(copy.folder, "--arch", arch, "--config", picked, "--check", baseline)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


@COMPILES
def test_a_deleted_setmaxnreg_is_found(copy):
    copy("kernels/hopper/forward.py", r", registers=\w+", "")
    said = findings(copy, "sm_90a", "fwd-d128-full/trio64")
    assert re.search(r"jagged_forward kernel: setmaxnreg: lost .*none, was", said)


@COMPILES
def test_too_much_shared_memory_is_found(copy):
    copy("kernels/hopper/forward.py", r"(k_smem = .*STREAMS \* NUM_K)\)", r"\1 + 9)")
    said = findings(copy, "sm_90a", "fwd-d128-full/solo64")
    assert re.search(r"jagged_forward kernel: smem: \d+,\d+ B", said)


@COMPILES
def test_a_spill_is_found(copy):
    copy("kernels/hopper/options.py", r"\b232\b", "104")  # registers of a consumer
    said = findings(copy, "sm_90a", "fwd-d128-full/pair128")
    assert re.search(r"jagged_forward kernel: spill: \d+ B of stack, was 0", said)
    assert re.search(r"jagged_forward mma\+softmax: spill: \d+ B of local memory", said)


@COMPILES
def test_a_main_loop_that_does_more_is_found(copy):
    copy("kernels/hopper/stale_softmax.py", r"return \(tl.math.exp2\((.*)\),\)\n",
         r"return (tl.math.exp2(\1) * tl.math.exp2(\1),)\n")
    said = findings(copy, "sm_90a", "fwd-d128-full/solo64")
    assert re.search(r"jagged_forward mma\+softmax: loop: \d+ fmul in the main loop, was \d+", said)


@COMPILES
def test_too_much_memory_of_a_blackwell_kernel_is_found(copy):
    kernel = "kernels/blackwell/backward_kernel.py"
    copy(kernel, r"^(    dv_tmem = .*float32, )1,", r"\1 2,")
    copy(kernel, r"^(    q = .*NUM_Q)\)", r"\1 + 9)")
    said = findings(copy, "sm_100a", "bwd-d128-full/m64")
    assert re.search(r"jagged_backward kernel: tmem: 640 columns", said)
    assert re.search(r"jagged_backward kernel: smem: \d+,\d+ B", said)


@COMPILES
def test_a_deleted_barrier_is_found(copy):
    copy("kernels/blackwell/backward_mma.py", r"^ *tlx\.barrier_wait\(.*do_full.*\n", "")
    said = findings(copy, "sm_100a", "bwd-d128-full/m64")
    assert re.search(r"jagged_backward mma: barrier: \d+ mbar_wait in the main loop, was \d+", said)


def test_what_is_not_there_is_named():
    for arguments, said in (
            (("--backend", "fa5"), "--backend: got 'fa5'; allowed: jfa, fa4"),
            (("--config", "solo65"), "--config: got 'solo65'; allowed: solo64"),
            (("--check", "nowhere.csv"), "nowhere.csv: can't read it"),
            (("--options", "{fwd: 1}"), "--options: got '{fwd: 1}'; allowed: switches by direction"),
            (("--options", "{sideways: {block_n: 64}}"), "--options: got 'sideways'; allowed: fwd, bwd")):
        done = xray(ROOT, "--arch", "sm_90a", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
