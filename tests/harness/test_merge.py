"""Runs of one config, merged: what is said of backends that only one of them had. Rows: see `test_cluster`."""

from __future__ import annotations

import json

import pytest

from harness.cases import expand
from harness.config import load_config
from harness.errors import UserError
from harness.merge import merge_runs
from harness.run_files import RunFiles

BASELINE = "results/baselines/nvidia-h200/gem.run.json"


@pytest.fixture
def facts(pytestconfig):
    return json.loads((pytestconfig.rootpath / BASELINE).read_text())


def part(folder, facts, names, **device):
    folder.mkdir(parents=True)
    chosen = [each for each in facts["backends"] if each["name"] in names]
    text = json.dumps(facts | {"backends": chosen, "device": facts["device"] | device})
    (folder / "gem.run.json").write_text(text)
    return folder


def test_backends_of_all_runs_are_named_in_the_order_of_the_config(tmp_path, facts, pytestconfig):
    config = load_config(pytestconfig.rootpath / "configs/gem.yaml")
    parts = [part(tmp_path / "a", facts, {"fa4", "jfa"}), part(tmp_path / "b", facts, {"cudnn", "jfa_triton"})]
    into = RunFiles(tmp_path, "gem")
    assert merge_runs(parts, into, config, expand(config)) == []
    merged = json.loads(into.json_path.read_text())
    assert [each["name"] for each in merged["backends"]] == ["jfa", "jfa_triton", "fa4", "cudnn"]
    assert merged["run_id"] == facts["run_id"]


def test_runs_of_unlike_devices_are_refused(tmp_path, facts, pytestconfig):
    config = load_config(pytestconfig.rootpath / "configs/gem.yaml")
    parts = [part(tmp_path / "a", facts, {"jfa"}), part(tmp_path / "b", facts, {"fa4"}, torch="2.10.0")]
    with pytest.raises(UserError, match="torch: the runs are of"):
        merge_runs(parts, RunFiles(tmp_path, "gem"), config, expand(config))
