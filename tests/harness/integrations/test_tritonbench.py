"""Our cases under TritonBench's runner, and its do_bench as a timing engine.

Where TritonBench is installed these tests run with it, else with a stand-in of what the integration uses of it.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from harness.cases import expand
from harness.config import load_config
from harness.errors import ConfigError
from harness.flops import attention_flops
from harness.integrations.tritonbench import do_bench
from harness.records import read_records
from harness.timing import BlockPlan, Timer

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = importlib.util.find_spec("tritonbench") is not None
STAND_IN = Path(__file__).parent / "stand_in"
FAKE = "fake_backends:FakeBackend"
METRICS = ["latency", "tflops", "speedup", "accuracy"]


@pytest.fixture
def config(tmp_path):
    """Writes a config of tiny cases by name, with a fault each; returns its path."""
    def write(backends=(), engine="cuda_events", **faults):
        faults = faults or {"good": ""}
        fake = {"backend": FAKE, "name": "fake", "options": {"faults": {k: v for k, v in faults.items() if v}}}
        cases = [{"name": name, "mode": "self", "batch": 3, "num_heads_q": 2, "head_dim": 16, "seed": index,
                  "lengths": {"kind": "uniform", "max": 40}} for index, name in enumerate(faults)]
        path = tmp_path / "tiny.yaml"
        with path.open("w") as file:
            YAML().dump({"name": "tiny", "backends": [fake, *backends], "cases": cases,
                         "timing": {"engine": engine, "max_seconds": 0.1}}, file)
        return path
    return write


DRIVER = """
import json, sys
from typer.testing import CliRunner
from harness.cli import app
for words in json.load(sys.stdin):
    done = CliRunner().invoke(app, words)
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""


def python(*arguments, stand_in=not INSTALLED, **values):
    """A finished process."""
    paths = [str(ROOT), str(ROOT / "tests" / "harness"), *([str(STAND_IN)] if stand_in else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, env=environment, text=True,
                          capture_output=True, timeout=240, check=False, **values)


def harness(*commands, stand_in=not INSTALLED):
    """``(exit status, stdout, stderr)`` of each command, all run in one process, as torch takes long to import."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = python("-c", DRIVER, stand_in=stand_in, input=words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def under_tritonbench(path, *commands, code=0):
    """Of each command, rows by case of the CSV on standard output, and stderr."""
    found = []
    for status, stdout, stderr in harness(*(["tritonbench", path, "--device", "cpu", "--csv", *command]
                                            for command in commands)):
        assert status == code, stderr
        rows = csv.DictReader(io.StringIO(stdout), delimiter=";")
        found.append(({row["case"]: row for row in rows}, stderr))
    return found


def test_a_config_gives_inputs_benchmarks_and_flops(config):
    path = config(one="", two="")
    modes = {"--fwd": ["fwd"], "--bwd": ["bwd"], "--fwd-bwd": ["fwd", "bwd"]}
    found = under_tritonbench(path, *([mode, "--metrics", ",".join(METRICS)] for mode in modes))
    for (rows, _), directions in zip(found, modes.values(), strict=True):
        for case in expand(load_config(path)):
            row = rows[case.name]
            latency, tflops, speedup, accuracy = (float(row[f"fake-{metric}"]) for metric in METRICS)
            flops = sum(attention_flops(case, direction) for direction in directions)
            assert tflops == pytest.approx(flops / latency / 1e9)
            assert speedup == pytest.approx(float(row["sdpa_loop-latency"]) / latency)  # the config has no rival
            assert accuracy == 1


def test_the_rival_that_the_config_has_is_the_baseline_and_another_may_be_asked_for(config):
    path = config(backends=["padded"], good="")
    by_default, other = (rows["good"] for rows, _ in under_tritonbench(path, [], ["--baseline", "fake", "--bwd"]))
    assert "fake-speedup" in by_default
    assert "sdpa_loop-latency" not in by_default
    ratio = float(other["fake-latency"]) / float(other["padded-latency"])
    assert float(other["padded-speedup"]) == pytest.approx(ratio)


def test_what_is_wrong_has_no_tflops_and_what_is_declined_no_latency(config):
    path = config(bad="wrong", declined="declined", spilt="oom")
    (rows, stderr), = under_tritonbench(path, ["--bwd", "--metrics", ",".join(METRICS)])
    assert (float(rows["bad"]["fake-accuracy"]), rows["bad"]["fake-tflops"]) == (0, "")
    assert "wrong: fake on bad, bwd: dq: " in stderr
    assert rows["declined"]["fake-latency"] == "not supported"
    assert "no backward for this" in stderr
    assert rows["spilt"]["fake-latency"] == "CUDA OOM"


def test_a_failure_ends_the_run_unless_it_is_to_go_on(config):
    path = config(bad="raises", good="")
    (_, stderr), = under_tritonbench(path, ["--bwd"], code=1)
    assert "crash: fake on bad, bwd: RuntimeError: needs num_m_blocks" in stderr.splitlines()[-1]
    (rows, _), = under_tritonbench(path, ["--bwd", "--keep-going"])
    assert "needs num_m_blocks" in rows["bad"]["fake-latency"]
    assert float(rows["good"]["fake-latency"]) > 0


def test_results_are_written_where_they_are_asked_for(config, tmp_path):
    quiet = ["tritonbench", config(), "--device", "cpu", "--skip-print"]
    for status, stdout, stderr in harness([*quiet, "--output", tmp_path / "a.csv"],
                                          [*quiet, "--csv", "--output-dir", tmp_path]):
        assert (status, stdout) == (0, ""), stderr
    assert "fake-latency" in (tmp_path / "a.csv").read_text()
    assert "fake-latency" in (tmp_path / "jagged_flash_attention.csv").read_text()


REFUSED = {
    (): "--device: there is no GPU here; allowed: --device cpu",
    ("--device", "cpu", "--isolate"): "--isolate: can't be used here",
    ("--device", "cpu", "--fwd", "--bwd"): "--fwd: another direction",
    ("--device", "cpu", "--precision", "fp16"): "--precision: got 'fp16'",
    ("--device", "cpu", "--op", "gemm"): "--op: got 'gemm'",
    ("--device", "cpu", "--metrics", "latency,compile_time"): "--metrics: compile_time",
    ("--device", "cpu", "--baseline", "nix"): "--baseline: no such backend 'nix'; allowed: fake",
    ("--device", "cpu", "--only", "nix"): "--only: no such backend 'nix'; allowed: fake",
    ("--device", "cpu", "--case", "nix"): "no such case 'nix'",
    ("--device", "cpu", "--frobnicate"): "unrecognized arguments: --frobnicate",
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the first is about a machine without a GPU")
def test_what_cannot_be_is_one_line_and_exit_status_2(config):
    path = config()
    found = harness(*(["tritonbench", path, *options] for options in REFUSED))
    for (status, _, stderr), said in zip(found, REFUSED.values(), strict=True):
        assert status == 2
        assert said in stderr.splitlines()[-1]


@pytest.mark.skipif(INSTALLED, reason="TritonBench is installed")
def test_without_tritonbench_both_ways_say_how_to_install_it(config):
    path = config(engine="tritonbench")
    for status, _, stderr in harness(["run", path], ["tritonbench", path], stand_in=False):
        assert status == 2
        assert "tritonbench is not installed: pip install --no-deps -r requirements/tritonbench.txt" in stderr
        assert len(stderr.splitlines()) == 1


def test_a_run_takes_its_times_by_do_bench_and_says_so(config, tmp_path):
    (status, _, stderr), = harness(["run", config(engine="tritonbench"), "--out", tmp_path / "run", "--no-plots",
                                    "--device", "cpu"])
    assert status == 0, stderr
    records = read_records(tmp_path / "run" / "tiny.csv")
    assert set(records["status"]) == {"ok"}
    assert all("timed by tritonbench" in message for message in records["message"])
    assert (records["n_samples"] >= 30).all()


def test_the_agreement_of_the_ways_is_a_row_a_backend_and_direction(config, tmp_path):
    path = config(backends=["padded"], good="")
    path.write_text(path.read_text().replace("max_seconds: 0.1", "max_seconds: 0.1\nscopes: [kernel]"))
    done = python("-m", "harness.integrations.tritonbench.agreement", path, "--out", tmp_path / "agreement.csv")
    assert done.returncode in (0, 1), done.stderr  # how far apart they are on a busy CPU is chance
    assert "furthest from cuda_events_sustained: " in done.stdout
    with (tmp_path / "agreement.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["backend"], row["direction"]) for row in rows] == [
        ("fake", "fwd"), ("fake", "bwd"), ("padded", "fwd"), ("padded", "bwd")]
    ways = ("cuda_events", "cuda_events_sustained", "tritonbench", "operator")
    assert all(float(row[f"{way}_ms"]) > 0 for row in rows for way in ways)
    wrong = config(good="wrong")
    done = python("-m", "harness.integrations.tritonbench.agreement", wrong, "--out", tmp_path / "agreement.csv")
    assert done.returncode == 2
    assert "fake on good, bwd: wrong: dq: " in done.stderr.splitlines()[-1]


def test_blocks_of_do_bench_follow_the_plan_until_it_has_enough(monkeypatch):
    calls = []
    monkeypatch.setattr(do_bench, "latencies_ms", lambda call, device_type: calls.append(device_type) or [1.0, 2.0])
    plan = BlockPlan(host_ahead=True, engine="tritonbench", warmup=1, min_samples=5, max_samples=9, max_seconds=1e-9)
    assert Timer(torch.device("cpu")).sample(lambda: None, plan) == [1.0, 2.0] * 3
    assert calls == ["cpu"] * 3


def test_a_warm_cache_is_refused(config):
    path = config(engine="tritonbench")
    path.write_text(path.read_text().replace("max_seconds: 0.1", "cold_l2: false"))
    with pytest.raises(ConfigError, match=r"timing.cold_l2: got false; allowed: true with engine tritonbench"):
        load_config(path)


def test_the_pages_table_is_what_the_committed_agreement_says():
    spec = importlib.util.spec_from_file_location("fill_agreement", ROOT / "docs" / "fill_agreement.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.PAGE.read_text()
    assert text.count("| `self_u512` |") >= 4
    assert script.filled(text) == text, "run python docs/fill_agreement.py"


def test_one_revision_is_pinned_wherever_it_is_named():
    requirements = (ROOT / "requirements" / "tritonbench.txt").read_text()
    assert f"git+https://github.com/meta-pytorch/tritonbench@{do_bench.REVISION}\n" in requirements
    named = re.findall(r"`([0-9a-f]{12})`", (ROOT / "docs" / "tritonbench.md").read_text())
    assert set(named) == {do_bench.REVISION[:12]}


@pytest.mark.gpu
@pytest.mark.skipif(not INSTALLED, reason="TritonBench is not installed")
def test_engines_without_pauses_agree_on_a_gpu():
    device = torch.device("cuda")
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    timer = Timer(device)
    medians = {engine: [] for engine in ("cuda_events_sustained", "tritonbench")}
    for _ in range(3):
        for engine, found in medians.items():
            found += timer.sample(lambda: x @ x, BlockPlan(host_ahead=True, engine=engine, max_seconds=0.2))
    ours, theirs = (torch.tensor(found).median().item() for found in medians.values())
    assert theirs == pytest.approx(ours, rel=0.05)
