"""Runs that are killed, by SIGKILL and at any moment, and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tiny_cases import tiny_config

from harness.environment import ROOT
from harness.records import SPEEDUP_COLUMNS, TIMED_COLUMNS, Record, load_records, load_samples
from harness.run_files import RunFiles, open_earlier
from harness.runner import RunOptions, run

KILLS = int(os.environ.get("TEST_KILLS", "3"))  # the more, the longer
VARIES = {"run_id", "date", "commit", "dirty", *TIMED_COLUMNS, *SPEEDUP_COLUMNS, "compile_s", "n_samples", "floor_ms",
          "floor_share", "ceiling_tflops", "ceiling_tbps", "peak_memory_mib", "sm_clock_mhz", "power_w"}


def timeless(record: Record) -> dict[str, object]:
    return {name: value for name, value in record.model_dump().items() if name not in VARIES}


def test_killed_at_random_moments_it_ends_as_an_undisturbed_run_does(tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(tiny_config([{"backend": "fake_backends:FakeBackend", "name": name} for name in ("one", "two")],
                                  [f"case{index}" for index in range(3 * KILLS)]).model_dump_json(exclude_none=True))
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])

    def start(out: str) -> subprocess.Popen[bytes]:
        resume = ["--resume"] if (tmp_path / out / "tiny.run.json").exists() else []
        command = [sys.executable, "-m", "harness", "run", str(config), "--out", str(tmp_path / out), "--device", "cpu",
                   "--no-plots", *resume]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)

    undisturbed = start("undisturbed")
    assert undisturbed.wait() == 0
    assert undisturbed.stdout is not None
    random_moment = random.Random(0)
    csv, killed = tmp_path / "killed" / "tiny.csv", 0
    while killed < KILLS:
        process = start("killed")
        rows = csv.stat().st_size if csv.exists() else 0
        while process.poll() is None and (not csv.exists() or csv.stat().st_size == rows):  # until a case is recorded
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is not None:
            break  # it was done before
        try:
            process.wait(random_moment.uniform(0, 0.6))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)  # not its workers: they end by themselves
            process.wait()
            killed += 1
    assert killed >= min(KILLS, 3)
    last = start("killed")
    output = last.communicate()[0].decode()
    assert last.returncode == 0, output
    expected = load_records(tmp_path / "undisturbed" / "tiny.csv")
    records = load_records(csv)
    assert len(records) == len(expected)
    by_key = {record.key: timeless(record) for record in expected}
    assert {(name, value, by_key[record.key][name]) for record in records for name, value in timeless(record).items()
            if value != by_key[record.key][name]} == set()
    samples = load_samples(csv.with_suffix(".samples.csv"))
    assert len(samples) == sum(record.n_samples or 0 for record in records)


def test_ctrl_c_of_a_launcher_is_a_line_without_a_traceback(tmp_path: Path) -> None:
    slow = {"case0": "hang", "case1": "hang"}  # its jobs never end by themselves
    config = tmp_path / "tiny.yaml"
    fake = {"backend": "fake_backends:FakeBackend", "name": "one", "options": {"faults": slow}}
    config.write_text(tiny_config([fake], list(slow)).model_dump_json(exclude_none=True))
    paths, out = os.pathsep.join([str(ROOT), str(Path(__file__).parent)]), tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", str(config), "--out", str(out), "--device", "cpu", "--launcher",
         "local", "--jobs", "2"], env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and len(list(out.glob("jobs/*/tiny.run.json"))) < 2:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the launcher, submitit's processes and the jobs
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 130, output + errors
    assert "Traceback" not in output + errors
    assert errors.startswith("interrupted")
    assert errors.count("\n") == 1


def test_a_file_cut_at_any_byte_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tiny_config([{"backend": "fake_backends:FakeBackend", "name": "fake"}], ["one", "two"],
                         directions=("fwd",), scopes=("kernel",))
    run(config, RunOptions(out_dir=tmp_path, device="cpu"))
    files = RunFiles(tmp_path, "tiny")
    whole, samples = files.csv_path.read_bytes(), files.samples_path.read_bytes()
    lines = [len(b"".join(whole.splitlines(keepends=True)[:count])) for count in (1, 2, 3)]
    for cut in range(len(whole) + 1):
        files.csv_path.write_bytes(whole[:cut])
        files.samples_path.write_bytes(samples)
        earlier = open_earlier(files, config)
        assert len(earlier.records) == sum(cut >= end for end in lines[1:])
        assert len(earlier.dropped) == (cut not in (0, *lines)), cut
        assert load_records(files.csv_path) == list(earlier.records)
