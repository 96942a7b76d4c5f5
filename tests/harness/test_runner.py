from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_cases import tiny_config

from harness.cases import Case, expand
from harness.config import BenchConfig
from harness.environment import DeviceEnvironment
from harness.errors import UserError
from harness.fleet import Fleet
from harness.records import Record, Status, load_records, load_samples
from harness.runner import (
    Listener,
    RunOptions,
    RunResult,
    choose_backends,
    choose_cases,
    choose_devices,
    run,
)

FAULTS = {"good": "", "wrong": "wrong", "hang": "hang", "exit": "exit", "oom": "oom", "declined": "declined"}
FAKE = {"backend": "fake_backends:FakeBackend"}
RIVAL = {"backend": "fake_backends:FakeRival", "name": "fa4"}


def faults_config() -> BenchConfig:
    backends = [RIVAL, {**FAKE, "name": "faulty", "options": {"faults": FAULTS}},
                {**FAKE, "name": "missing", "options": {"missing": True}}]
    return tiny_config(backends, list(FAULTS), timeout_s=6.0)


class Log(Listener):
    """Notes what it hears; interrupts after as many cases as told."""

    def __init__(self, interrupt_after: int = -1) -> None:
        self.lines: list[Any] = []
        self.left = interrupt_after
        self.result: RunResult | None = None

    def started(self, run_id: str, out_dir: Path, cases: Sequence[Case], n_rows: int) -> None:
        self.lines.append(("started", len(cases), n_rows))

    def note(self, text: str) -> None:
        self.lines.append(("note", text))

    def case_started(self, case: Case) -> None:
        self.lines.append(("case", case.name))

    def prepared(self, case: Case, backend: str, statuses: Mapping[tuple[str, str], Status]) -> None:
        self.lines.append(("prepared", case.name, backend, statuses["bwd", "kernel"].value))

    def block_timed(self, case: Case, backend: str, direction: str, scope: str, n_samples: int) -> None:
        self.lines.append(("block", case.name, backend, direction, scope, n_samples))

    def case_finished(self, case: Case, records: Sequence[Record]) -> None:
        self.lines.append(("finished", case.name, len(records)))
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def finished(self, result: RunResult) -> None:
        self.result = result


@pytest.fixture(scope="module")
def faults_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Log]:
    """One run with every kind of failure: three workers, one of them started again twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        log = Log()
        out_dir = tmp_path_factory.mktemp("runs") / "faults"
        return run(faults_config(), RunOptions(out_dir=out_dir, device="cpu"), log), log


def row(result: RunResult, case: str, backend: str, direction: str = "bwd", scope: str = "kernel") -> Record:
    found = [record for record in result.records
             if (record.case, record.backend, record.direction, record.scope) == (case, backend, direction, scope)]
    assert len(found) == 1
    return found[0]


def test_every_row_is_there_and_on_disk(faults_run: tuple[RunResult, Log]) -> None:
    result, log = faults_run
    assert len(result.records) == 6 * 3 * 4
    assert load_records(result.csv_path) == list(result.records)
    assert not result.interrupted
    assert log.result == result
    assert log.lines[0] == ("started", 6, 72)
    assert ("finished", "declined", 12) in log.lines


@pytest.mark.parametrize(("case", "status", "message"), [
    ("wrong", "wrong", "dq: "), ("hang", "hang", "no answer for 6 s (first call bwd kernel); killed"),
    ("exit", "crash", "exited with code 3 (first call bwd kernel); its last words: RuntimeError: the last words"),
    ("oom", "oom", "CUDA out of memory"), ("declined", "unsupported", "no backward for this")])
def test_a_failure_costs_its_direction_and_nothing_else(faults_run: tuple[RunResult, Log], case: str, status: str,
                                                        message: str) -> None:
    result, _ = faults_run
    lost = row(result, case, "faulty")
    assert lost.status.value == status
    assert message in lost.message
    assert (lost.latency_ms, lost.n_samples) == (None, 0)
    for scope in ("kernel", "operation"):
        assert row(result, case, "faulty", "fwd", scope).status is Status.OK
        assert row(result, case, "fa4", "bwd", scope).status is Status.OK
    assert row(result, case, "missing").status is Status.IMPORT_ERROR


def test_the_next_case_runs_in_a_new_worker(faults_run: tuple[RunResult, Log]) -> None:
    result, _ = faults_run
    assert list(FAULTS).index("exit") == list(FAULTS).index("hang") + 1
    assert row(result, "exit", "faulty", "fwd").status is Status.OK
    assert row(result, "oom", "faulty", "fwd").status is Status.OK


def test_ok_rows_have_samples_errors_floors_and_a_speedup(faults_run: tuple[RunResult, Log]) -> None:
    result, _ = faults_run
    good = row(result, "good", "faulty")
    assert good.n_samples == 30
    assert good.impl == "twin"
    assert good.backend_version == "1.2.3"
    assert 0 < good.error_dq < 0.01
    assert 0 < good.floor_share < 1
    rival = row(result, "good", "fa4")
    assert rival.speedup_vs_fa4 == 1.0
    assert good.speedup_vs_fa4 == pytest.approx(rival.latency_ms / good.latency_ms, rel=1e-4)
    assert good.speedup_vs_fa4_ci_low <= good.speedup_vs_fa4 <= good.speedup_vs_fa4_ci_high
    assert row(result, "good", "faulty", "fwd").message == "a remark"
    samples = [sample for sample in load_samples(result.samples_path)
               if (sample.case_id, sample.backend, sample.direction, sample.scope)
               == (good.case_id, "faulty", "bwd", "kernel")]
    assert [sample.block for sample in samples] == [0] * 15 + [1] * 15


def test_blocks_are_interleaved_forth_and_back(faults_run: tuple[RunResult, Log]) -> None:
    blocks = [line[2:] for line in faults_run[1].lines if line[0] == "block" and line[1] == "good"]
    assert blocks[:4] == [("fa4", "fwd", "kernel", 15), ("faulty", "fwd", "kernel", 15),
                          ("faulty", "fwd", "kernel", 30), ("fa4", "fwd", "kernel", 30)]
    assert len(blocks) == 16


def test_facts_and_notes_of_the_run(faults_run: tuple[RunResult, Log]) -> None:
    result, log = faults_run
    assert ("note", "missing: import_error: fake is not installed: pip install fake") in log.lines
    facts = json.loads(result.run_json_path.read_text())
    assert facts["run_id"] == result.run_id
    assert facts["ceilings"]["matmul_tflops"] > 0
    assert result.records[0].ceiling_tflops == pytest.approx(facts["ceilings"]["matmul_tflops"], rel=1e-4)
    assert facts["backends"][2]["problem"].startswith("import_error: ")
    assert [case["name"] for case in facts["cases"]] == list(FAULTS)


def test_interrupted_cut_and_resumed_it_has_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tiny_config([{**FAKE, "name": "fake"}], ["one", "two", "three"])
    options = RunOptions(out_dir=tmp_path / "run", device="cpu")
    first = run(config, options, Log(interrupt_after=2))
    assert first.interrupted
    assert len(load_records(first.csv_path)) == 8
    with pytest.raises(UserError, match="holds a run already"):
        run(config, options)
    kept = first.csv_path.read_bytes()
    first.csv_path.write_bytes(kept[:-30])

    log = Log()
    second = run(config, RunOptions(out_dir=tmp_path / "run", device="cpu", resume=True), log)
    assert log.lines[0] == ("started", 2, 8)
    assert log.lines[1:3] == [("note", f"{first.csv_path}: its last line was cut short, and is dropped"),
                              ("note", f"{first.csv_path}: 1 (case, backend) pairs lack rows or samples, and are "
                                       "measured again")]
    assert [line[1] for line in log.lines if line[0] == "case"] == ["two", "three"]
    assert second.run_id == first.run_id
    assert len({record.key for record in second.records}) == 12
    assert load_records(second.csv_path) == list(second.records)
    assert second.csv_path.read_bytes().splitlines()[:5] == kept.splitlines()[:5]  # header and the first case

    third = run(config, RunOptions(out_dir=tmp_path / "run", device="cpu", resume=True), log)  # starts no worker
    assert third.records == second.records


def test_a_resumed_run_keeps_to_its_cases_and_a_full_disk_is_one_line(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tiny_config([{**FAKE, "name": "fake"}], ["one", "two"])
    options = RunOptions(out_dir=tmp_path / "run", device="cpu")

    class FullDisk(Log):
        ended = False

        def case_finished(self, case: Case, records: Sequence[Record]) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "run/tiny.csv")

        def aborted(self) -> None:
            self.ended = True

    log = FullDisk()
    with pytest.raises(UserError, match=r"run/tiny.csv: No space left on device; what is complete was kept"):
        run(config, options, log)
    assert log.ended
    resume = RunOptions(out_dir=tmp_path / "run", device="cpu", resume=True)
    others = tuple(expand(config, seed=7))
    with pytest.raises(UserError, match="cases: the run has no 'one' of these lengths"):
        run(config, replace(resume, cases=others))
    assert len(run(config, resume).records) == 8
    with pytest.raises(UserError, match="no such directory, so there is no run to resume"):
        run(config, replace(resume, out_dir=tmp_path / "misspelt"))
    assert not (tmp_path / "misspelt").exists()


def test_choices_name_what_is_allowed() -> None:
    config = tiny_config(["sdpa_loop", "padded"], ["one", "two"])
    cases = expand(config)
    assert choose_cases(cases, None) == cases
    assert choose_cases(cases, ["two", cases[0].case_id]) == cases
    assert choose_cases(cases, [cases[1].case_id]) == [cases[1]]
    with pytest.raises(UserError, match=r"no such case 'three'; allowed: one \(\w{12}\), two"):
        choose_cases(cases, ["three"])
    assert [backend.name for backend in choose_backends(config, ["padded"])] == ["padded"]
    with pytest.raises(UserError, match="no backend 'fa4'; allowed: sdpa_loop, padded"):
        choose_backends(config, ["fa4"])
    assert choose_devices("cpu, cpu") == ("cpu", "cpu")
    with pytest.raises(UserError, match="no 'cuda:99' here; allowed: cpu"):
        choose_devices("cuda:99")


def test_gpus_are_named_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert choose_devices(None, "all") == ("cuda:0", "cuda:1", "cuda:2")
    assert choose_devices(None, "2, 0,0") == ("cuda:2", "cuda:0", "cuda:0")
    for wrong in ("3", "", "cuda:0", "0,all"):
        with pytest.raises(UserError, match=r"^--gpus: there is no GPU '.*' here; allowed: all, .* of 0, 1, 2$"):
            choose_devices(None, wrong)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"^--gpus: got 'all', but there is no GPU here; allowed: --device cpu$"):
        choose_devices(None, "all")


def test_unknown_backends_and_options_stop_before_anything_is_started(tmp_path: Path) -> None:
    for backend, message in (({"backend": "fa5", "name": "fa5"}, "no such backend 'fa5'"),
                             ({"backend": "nowhere:Class", "name": "x"}, "'nowhere:Class' can't be imported"),
                             ({"backend": "padded", "options": {"speed": 1}},
                              r"backends\[0\]: backend padded: options.speed: no such option")):
        with pytest.raises(UserError, match=message):
            run(tiny_config([backend], ["one"]), RunOptions(out_dir=tmp_path / "run", device="cpu"))
        assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="--resume: needs --out"):
        run(tiny_config(["padded"], ["one"]), RunOptions(resume=True, device="cpu"))


@pytest.mark.parametrize(("backend", "name"), [("padded", "fa4"), ("fake_backends:FakeBackend", "fa4"),
                                               ("jfa_triton", "jfa")])
def test_no_backend_goes_under_the_name_of_another(backend: str, name: str) -> None:
    config = tiny_config(["sdpa_loop", {"backend": backend, "name": name}], ["one"])
    with pytest.raises(UserError, match=rf"backends\[1\]\.name: got '{name}', which is another backend than "
                                        rf"'{backend}'; allowed: a name that is no backend's"):
        choose_backends(config, None)
    assert [each.name for each in choose_backends(config, ["sdpa_loop"])] == ["sdpa_loop"]


def test_a_backend_that_says_it_is_the_rival_may_have_its_name() -> None:
    config = tiny_config([RIVAL, {"backend": "fa4", "name": "theirs"}], ["one"])
    assert [each.name for each in choose_backends(config, None)] == ["fa4", "theirs"]


def test_devices_share_the_cases_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tiny_config([FAKE, RIVAL], [f"case{index}" for index in range(6)])
    log = Log()
    result = run(config, RunOptions(out_dir=tmp_path / "two", device="cpu,cpu"), log)
    expected = [(f"case{index}", backend, direction, scope) for index in range(6) for backend in ("FakeBackend", "fa4")
                for direction in ("fwd", "bwd") for scope in ("kernel", "operation")]
    assert [(r.case, r.backend, r.direction, r.scope) for r in result.records] == expected
    assert load_records(result.csv_path) == list(result.records)
    assert {record.status for record in result.records} == {Status.OK}
    assert sum(record.n_samples for record in result.records) == len(load_samples(result.samples_path))
    for folder in ("logs", "logs/device1"):
        assert "check" in (result.out_dir / folder / "fa4.log").read_text()
    assert sorted(line[1] for line in log.lines if line[0] == "case") == [f"case{index}" for index in range(6)]


def test_devices_of_two_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    described = Fleet.environment.fget
    assert described is not None
    seen: list[Fleet] = []

    def of_two_models(fleet: Fleet) -> DeviceEnvironment:
        seen.extend([fleet] if fleet not in seen else [])
        return replace(described(fleet), gpu=f"H{seen.index(fleet) + 1}00")

    monkeypatch.setattr(Fleet, "environment", property(of_two_models))
    config = tiny_config([FAKE], ["one"])
    with pytest.raises(UserError, match="of one GPU model, these are H100 and H200; run each apart"):
        run(config, RunOptions(out_dir=tmp_path / "two", device="cpu,cpu"))
