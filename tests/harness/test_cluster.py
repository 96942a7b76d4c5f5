from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_cases import tiny_config

from harness.cases import expand
from harness.cluster import ClusterOptions, run_on_cluster
from harness.config import load_config
from harness.errors import UserError
from harness.job_parts import deal
from harness.merge import merge_runs
from harness.records import Status, load_records, load_samples
from harness.run_files import RunFiles
from harness.runner import Listener, RunOptions, run

CASES = 8


@pytest.fixture(scope="module")
def config_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config([{"backend": "fake_backends:FakeBackend", "name": "fake",
                           "options": {"faults": {"case5": "kills its run once"}}}],
                         [f"case{index}" for index in range(CASES)])
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(config.model_dump_json(exclude_none=True))  # JSON is YAML
    assert load_config(path).config_hash == config.config_hash
    return path


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_killed_job_goes_on_and_every_row_is_there_once(config_path: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    notes, out = Notes(), tmp_path / "out"
    result = run_on_cluster(config_path, RunOptions(out_dir=out, device="cpu"), ClusterOptions("local", 2), notes)
    assert (tmp_path / "killed").exists()
    assert not result.interrupted
    assert notes.texts[0] == "2 jobs submitted to local"
    assert notes.texts[1].startswith("job 00001 failed: ")
    assert notes.texts[2:] == ["1 jobs submitted to local, again"]
    expected = [(f"case{index}", direction, scope) for index in range(CASES) for direction in ("fwd", "bwd")
                for scope in ("kernel", "operation")]
    records = load_records(result.csv_path)
    assert [(record.case, record.direction, record.scope) for record in records] == expected
    assert {record.status for record in records} == {Status.OK}
    assert len(load_samples(result.samples_path)) == sum(record.n_samples or 0 for record in records)
    assert len(json.loads(result.run_json_path.read_text())["cases"]) == CASES
    part = run_on_cluster(config_path, RunOptions(out_dir=out, device="cpu", resume=True, case_ids=("case1", "case2")),
                          ClusterOptions("local", 2))
    assert part.records == tuple(records)  # nothing twice, nothing lost
    with pytest.raises(UserError, match="--jobs: the run has 2 jobs, not 3; resume with --jobs 2"):
        run_on_cluster(config_path, RunOptions(out_dir=out, device="cpu", resume=True), ClusterOptions("local", 3))


def test_resuming_other_cases_leaves_each_with_its_job(tmp_path: Path) -> None:
    config = tiny_config(["sdpa_loop"], [f"case{index}" for index in range(5)])
    cases = expand(config)
    files = RunFiles(tmp_path, "tiny")

    def shares(chosen: list[int], jobs: int = 2, resume: bool = True) -> list[list[str]]:
        return [[case.name for case in part]
                for part in deal(files, config, [cases[index] for index in chosen], jobs, resume).values()]

    assert shares([1, 2, 3], resume=False) == [["case1", "case3"], ["case2"]]
    assert shares([2, 3]) == [["case3"], ["case2"]]
    assert shares([3]) == [["case3"], []]
    assert shares([0, 1, 2, 3, 4]) == [["case0", "case1", "case3"], ["case2", "case4"]]
    assert shares([4]) == [[], ["case4"]]
    with pytest.raises(UserError, match="holds a run already; go on with it by --resume"):
        shares([1], resume=False)
    other = tiny_config(["sdpa_loop"], ["case0"])
    with pytest.raises(UserError, match=r"config_hash: the run is of .*; resume with the config as it was"):
        deal(files, other, expand(other), 2, True)
    (tmp_path / "jobs" / "dealt.json").write_text("{")
    with pytest.raises(UserError, match=r"dealt.json: can't be read as the cases of jobs"):
        shares([1])


def test_there_must_be_something_to_resume(config_path: Path, tmp_path: Path) -> None:
    for out, expected in ((tmp_path / "nowhere", "no such directory"), (tmp_path, "no such file")):
        with pytest.raises(UserError, match=f"{expected}, so there is no run"):
            run_on_cluster(config_path, RunOptions(out_dir=out, device="cpu", resume=True), ClusterOptions("local", 2))
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "jobs").exists()


def test_a_job_that_fails_says_why(config_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    out = tmp_path / "out"
    (out / "jobs" / "00000").mkdir(parents=True)
    (out / "jobs" / "00000" / "tiny.csv").write_text("")
    notes = Notes()
    with pytest.raises(UserError, match="none of its 1 runs began"):
        run_on_cluster(config_path, RunOptions(out_dir=out, device="cpu", case_ids=("case0",)),
                       ClusterOptions("local", 1, retries=0), notes)
    assert "tiny.csv: holds a run already" in notes.texts[1]


def test_ctrl_c_before_a_job_began_is_an_interruption(config_path: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("submitit.local.local.LocalJob.exception", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        run_on_cluster(config_path, RunOptions(out_dir=tmp_path, device="cpu"), ClusterOptions("local", 1))


def test_merging_refuses_what_does_not_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = tiny_config([{"backend": "fake_backends:FakeBackend", "name": "fake"}], ["a", "b"],
                         directions=("fwd",), scopes=("kernel",))
    run(config, RunOptions(out_dir=tmp_path / "one", device="cpu", case_ids=("a",)))
    cases, into = expand(config), RunFiles(tmp_path / "all", "tiny")
    into.out_dir.mkdir()
    with pytest.raises(UserError, match="two of its runs have the row"):
        merge_runs([tmp_path / "one", tmp_path / "one"], into, config, cases)
    with pytest.raises(UserError, match="none of its 1 runs began"):
        merge_runs([tmp_path / "nowhere"], into, config, cases)
    other = tmp_path / "other"
    other.mkdir()
    facts = json.loads((tmp_path / "one" / "tiny.run.json").read_text())
    (other / "tiny.run.json").write_text(json.dumps({**facts, "device": {**facts["device"], "gpu": "another"}}))
    with pytest.raises(UserError, match=r"gpu: the runs are of .*another.*; merge each apart"):
        merge_runs([tmp_path / "one", other], into, config, cases)
    (other / "tiny.run.json").write_text("{")
    with pytest.raises(UserError, match=r"tiny.run.json: can't be read as the facts of a run"):
        merge_runs([other], into, config, cases)
    (other / "tiny.run.json").write_text(json.dumps({**facts, "config_hash": "other"}))
    with pytest.raises(UserError, match="config_hash: the run is of other"):
        merge_runs([other], into, config, cases)
    assert not into.csv_path.exists()
    assert [record.case for record in merge_runs([tmp_path / "one"], into, config, cases)] == ["a"]
