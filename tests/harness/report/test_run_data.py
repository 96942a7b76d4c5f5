import json

import pytest
from report_runs import COMMITTED, small_config, write_facts, write_run
from sample_records import gem_like

from harness.cases import expand
from harness.errors import UserError
from harness.records import append_records
from harness.report.run_data import not_run, read_run


def test_reads_records_alone(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    assert len(run.records) == len(gem_like())
    assert (run.facts, dict(run.cases), run.ablations) == (None, {}, ())
    assert run.name == "gem-20260102T030405Z"
    assert not_run(run).empty


def test_reads_the_facts_and_ablations_beside_them(tmp_path):
    path = write_run(tmp_path / "run")
    config = small_config()
    write_facts(path, config)
    for name in ("ablation_fwd.csv", "ablation_bwd.csv", "ablation_fwd.samples.csv"):
        (path.parent / name).touch()
    run = read_run(path)
    assert list(run.cases) == [case.case_id for case in expand(config)]
    assert [found.name for found in run.ablations] == ["ablation_bwd.csv", "ablation_fwd.csv"]
    assert read_run(path, []).ablations == ()


def test_says_which_rows_the_config_asks_for_and_the_file_lacks(tmp_path):
    config = small_config(causal=[False, True])
    first, second = expand(config)
    records = [record.model_copy(update={"case_id": first.case_id, "case": first.name}) for record in gem_like()
               if record.case == "self_u512" and record.backend == "jfa"]
    path = write_run(tmp_path / "run", records)
    write_facts(path, config)
    assert not_run(read_run(path)).to_numpy().tolist() == [
        [first.name, "fa4", 4], [second.name, "jfa", 4], [second.name, "fa4", 4]]


def test_the_committed_run_has_facts_for_all_its_cases():
    run = read_run(COMMITTED)
    assert set(run.records["case_id"]) <= set(run.cases)


def test_a_file_without_rows_and_altered_facts_are_errors(tmp_path):
    empty = tmp_path / "empty.csv"
    append_records(empty, [])
    with pytest.raises(UserError, match=r"empty\.csv: holds a header and no rows"):
        read_run(empty)
    path = write_run(tmp_path / "run")
    write_facts(path, small_config())
    facts = json.loads(path.with_suffix(".run.json").read_text())
    facts["cases"][0]["lengths_q"][0] += 1
    path.with_suffix(".run.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"gem\.run\.json: case 'self'"):
        read_run(path)
