"""The example trains on what is here: on a CPU at its tiny size, with the kernels in Triton's interpreter."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(tmp_path, *arguments):
    return subprocess.run([sys.executable, "-m", "examples.train_gem_block", "--tiny", "--csv", tmp_path / "losses.csv",
                           *arguments], cwd=ROOT, capture_output=True, text=True)


def losses(tmp_path):
    """The attentions, and of each step their losses."""
    found = {}
    with (tmp_path / "losses.csv").open() as file:
        for row in csv.DictReader(file):
            assert float(row["tokens_per_s"]) > 0
            assert row["device"]
            found.setdefault(row["attention"], []).append(float(row["loss"]))
    return list(found), list(zip(*found.values(), strict=True))


def test_losses_agree_and_are_drawn(tmp_path):
    done = run(tmp_path, "--plot", tmp_path / "losses.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens/s") >= 2
    names, steps = losses(tmp_path)
    assert {"jfa", "sdpa"} <= set(names)
    assert len(steps) == 8
    for step in steps:
        assert all(math.isclose(loss, step[0], rel_tol=0.02) for loss in step)
    assert (tmp_path / "losses.png").stat().st_size > 1000


def test_it_learns(tmp_path):
    done = run(tmp_path, "--attention", "sdpa", "--steps", "60")
    assert done.returncode == 0, done.stderr
    _, steps = losses(tmp_path)
    assert sum(loss for (loss,) in steps[-8:]) < 0.5 * sum(loss for (loss,) in steps[:8])


def test_committed_curves_of_the_real_size_are_one_training():
    found = {}
    with (ROOT / "results/baselines/nvidia-h200/gem_block.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault((row["attention"], row["device"]), []).append(float(row["loss"]))
    assert set(found) == {("jfa", "NVIDIA H200"), ("sdpa", "a CPU")}
    jfa, sdpa = found.values()
    assert len(jfa) == len(sdpa) == 40
    assert max(abs(one - other) for one, other in zip(jfa, sdpa, strict=True)) < 1e-4
    assert jfa[-1] < 0.5 * jfa[0]
