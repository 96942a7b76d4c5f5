"""`harness profile`: the command for Nsight Compute, its CSV read, and what is said where it can't run."""

from __future__ import annotations

import csv
import json
import os
import sys

import pytest
import torch
from tiny_cases import tiny_case
from typer.testing import CliRunner

from harness import profile_target, profiling
from harness.cli import app
from harness.config import BackendConfig, CheckConfig
from harness.errors import UserError
from harness.profiling import METRICS, metrics_for, profile, ptxas_lines, read_ncu

PTXAS = ["ptxas info    : 0 bytes gmem",
         "ptxas info    : Compiling entry function '_forward' for 'sm_90a'",
         "ptxas info    : Function properties for _forward",
         "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads",
         "ptxas info    : Used 168 registers, used 1 barriers"]


def raw(*kernels, value="1,000.5"):
    """What Nsight Compute writes with ``--csv --page raw``: messages, a header, units, a row a kernel."""
    columns = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
               "Grid Size", "Device", "CC", *METRICS.values()]
    rows = [columns, [""] * 11 + ["%"] * len(METRICS)]
    rows += [[str(number), "7", "python3.12", "box", kernel, "1", "7", "(384, 1, 1)", "(132, 1, 1)", "0", "9.0",
              *[value] * len(METRICS)] for number, kernel in enumerate(kernels)]
    return "==PROF== Connected to process 7\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def test_kernels_go_to_the_direction_whose_marker_came_last():
    marker = "at::cuda::<unnamed>::spin_kernel(long)"
    rows = list(read_ncu(raw(marker, "_forward", marker, "_delta", "_backward"), METRICS, ["fwd", "bwd"]))
    assert [(row["direction"], row["launch"], row["kernel"]) for row in rows] == [
        ("fwd", "1", "_forward"), ("bwd", "1", "_delta"), ("bwd", "2", "_backward")]
    assert (rows[0]["grid"], rows[0]["block"]) == ("(132,1,1)", "(384,1,1)")
    assert "box" not in str(rows)  # no host's name in a result


def test_values_are_in_the_columns_units_and_what_a_device_lacks_is_empty():
    row, = read_ncu(raw("spin_kernel", "_forward", value="2,000,000"), METRICS, ["bwd"])
    assert (row["duration_us"], row["l2_mb"], row["tensor_pipe_pct"]) == ("2000", "2", "2e+06")
    row, = read_ncu(raw("spin_kernel", "_forward", value="n/a"), METRICS, ["bwd"])
    assert {row[column] for column in METRICS} == {""}


def test_other_devices_are_not_asked_for_what_only_hopper_has():
    assert metrics_for(9) == METRICS
    assert not any("gmma" in name for name in metrics_for(10).values())
    assert set(metrics_for(10)) < set(METRICS)


def test_ptxas_lines_are_told_from_what_else_is_printed():
    printed = ["12:00:00 case fwd kernel first call", *PTXAS, "", "    not ptxas's", "12:00:01 check"]
    assert ptxas_lines("\n".join(printed)) == PTXAS


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """An ``ncu`` that writes ``log`` where it is told to, prints, and exits; returns what it was called with."""
    def install(log="", printed="", complaint="", code=0):
        (tmp_path / "log").write_text(log)
        script = tmp_path / "bin" / "ncu"
        script.parent.mkdir()
        script.write_text(f"""#!{sys.executable}
import json, os, shutil, sys
words = sys.argv[1:]
asked = dict(words=words, job=json.load(sys.stdin), cache=os.environ.get("TRITON_CACHE_DIR"))
json.dump(asked, open({str(tmp_path / "asked")!r}, "w"))
shutil.copy({str(tmp_path / "log")!r}, words[words.index("--log-file") + 1])
print({printed!r})
print({complaint!r}, file=sys.stderr)
sys.exit({code})
""")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(profiling, "_capability", lambda: 9)
        return lambda: json.loads((tmp_path / "asked").read_text())
    return install


def profiled(tmp_path, **values):
    jfa = BackendConfig(backend="jfa", name="jfa")
    return profile(tiny_case("tiny"), jfa, CheckConfig(), tmp_path / "out", **values)


def test_a_profile_is_written_beside_the_run(tmp_path, ncu):
    asked = ncu(raw("spin_kernel", "_forward", "spin_kernel", "_backward"), "\n".join(PTXAS))
    found = profiled(tmp_path, ptxas=True)
    assert found.csv_path == tmp_path / "out" / "profile-tiny-jfa.csv"
    with found.csv_path.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == profiling.COLUMNS
    assert [(row["case"], row["backend"], row["direction"]) for row in rows] == [("tiny", "jfa", "fwd"),
                                                                               ("tiny", "jfa", "bwd")]
    assert (tmp_path / "out" / "profile-tiny-jfa.ptxas.log").read_text().splitlines() == PTXAS
    words, job = asked()["words"], asked()["job"]
    assert words[words.index("--metrics") + 1] == ",".join(METRICS.values())
    assert words[-2:] == ["-m", "harness.profile_target"]
    assert (job["backend"], job["directions"], job["case"]["name"]) == ("jfa", ["fwd", "bwd"], "tiny")
    assert asked()["cache"]  # a fresh one, or nothing would be compiled


@pytest.mark.parametrize(("answer", "said"), [
    ({"log": "==ERROR== ERR_NVGPUCTRPERM - no permission\n", "code": 1}, "may not read the GPU's counters"),
    ({"log": "==ERROR== Failed to find metric sm__x\n", "code": 9}, "tiny, jfa: ==ERROR== Failed to find metric sm__x"),
    ({"complaint": "fwd: wrong: out: too far", "code": profile_target.NOT_OK}, "tiny, jfa: fwd: wrong: out: too far"),
    ({"log": "==WARNING== No kernels were profiled.\n"}, "no kernel of tiny, jfa: ==WARNING== No kernels")])
def test_what_ncu_could_not_do_is_said(tmp_path, ncu, answer, said):
    ncu(**answer)
    with pytest.raises(UserError, match=said):
        profiled(tmp_path)
    assert not (tmp_path / "out" / "profile-tiny-jfa.csv").exists()


def test_without_ncu_it_is_one_line_and_exit_status_2(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["profile", "self_u512", "--backend", "jfa"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ncu: Nsight Compute is not on the PATH")
    assert len(done.stderr.splitlines()) == 1


def test_the_target_profiles_nothing_but_marked_calls_of_what_is_ok(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append("marker"))
    job = {"backend": "fake_backends:FakeBackend", "options": {}, "device": "cpu", "directions": ["fwd", "bwd"],
           "case": tiny_case("tiny").to_json(), "check": CheckConfig().model_dump(mode="json")}
    monkeypatch.setattr(profile_target.json, "load", lambda file: job)
    assert profile_target.main() == 0
    assert calls == ["start", "marker", "marker", "stop"]
    job["options"] = {"faults": {"tiny": "wrong"}}
    assert profile_target.main() == profile_target.NOT_OK
    assert len(calls) == 4
    assert "bwd: wrong: dq: " in capsys.readouterr().err
    job["options"] = {"missing": True}
    assert profile_target.main() == profile_target.NOT_OK
    assert "fake is not installed" in capsys.readouterr().err
