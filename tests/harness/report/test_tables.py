import pytest
from report_runs import COMMITTED, write_run
from sample_records import gem_like, smoke_like

from harness.headline import mean_speedups
from harness.report import tables
from harness.report.run_data import read_run
from harness.report.show import Note, Picture, Table


@pytest.fixture(scope="module")
def run():
    return read_run(COMMITTED)


@pytest.fixture
def made_up(tmp_path):
    return read_run(write_run(tmp_path / "run"))


def test_environment_names_device_versions_and_every_backend(made_up):
    cells = dict(tables.environment(made_up).rows.itertuples(index=False, name=None))
    assert cells["device"] == "Example GPU"
    assert cells["backend fa4"] == "4.0.0b99"
    assert {f"backend {name}" for name in made_up.records["backend"]} <= set(cells)
    assert cells["measured ceilings"] == "690.0 TFLOP/s (matmul), 4.3 TB/s (copy)"
    assert cells["reasons for a lowered clock"] == "none seen"


def test_headline_has_a_line_for_every_mean_ours_first(run):
    means = mean_speedups(run.records)
    rows = tables.headline(run).rows
    assert len(rows) == len(means)
    assert set(rows["backend"][:4]) == {"jfa"}
    ours = next(each for each in means if each.backend == "jfa")
    assert rows.iloc[0]["mean"] == f"{ours.mean:.2f}x"
    assert ours.slowest_case in rows.iloc[0]["slowest case"]


def test_the_headline_sentence_says_on_what_and_over_which_version(run):
    text = tables.headline_sentence(run).text
    assert text.startswith("Measured on NVIDIA H200: ")
    version = run.records.loc[run.records["backend"] == "fa4", "backend_version"].iloc[0]
    assert version
    assert f"FlashAttention-4 {version}, geometric mean" in text
    assert text.count("forward **") == text.count("backward **") == 2


def test_a_run_without_fa4_says_so(tmp_path):
    run = read_run(write_run(tmp_path / "run", smoke_like(), "smoke"))
    assert "no speed-up" in tables.headline(run).text
    assert "no speed-up" in tables.headline_sentence(run).text


def test_throughput_shows_times_or_statuses(made_up):
    rows = tables.throughput(made_up, "bwd").rows.set_index("case")
    assert rows.loc["lognormal_8192", "padded"] == "oom"
    assert float(rows.loc["self_u512", "jfa"]) > 0
    assert len(rows) == 16
    assert isinstance(tables.throughput(read_run(made_up.path, []), "fwd", "no such"), Note)


def test_shapes_has_each_case_once(run):
    rows = tables.shapes(run).rows
    assert list(rows["case"]) == list(dict.fromkeys(run.records["case"]))
    assert rows.set_index("case").loc["self_u1024_gqa", "heads"] == "8/2"


def test_everything_without_a_time_is_named_with_its_reason(made_up):
    counts = tables.statuses(made_up).rows.set_index("backend")
    assert counts.loc["flex", "hang"] == "4"
    text = tables.without_a_time(made_up).text
    for said in ("no result after 300 s", "CUDA out of memory", "no broadcast-Q"):
        assert said in text


def test_rows_never_run_are_named(run):
    wanted = {(case_id, each["name"]) for case_id in run.cases for each in run.facts["config"]["backends"]}
    lacking = wanted - set(zip(run.records["case_id"], run.records["backend"], strict=True))
    text = tables.without_a_time(run).text
    assert ("not in this file" in text) == bool(lacking)
    assert all(f"`{run.cases[case_id].name}`" in text for case_id, _ in lacking)


def test_a_message_cannot_pass_for_markup():
    records = [record for record in gem_like() if record.case == "self_u256"]
    bad = records[0].model_copy(update={"status": "crash", "message": "<b>_x_</b>"})
    assert "\\<b\\>\\_x\\_\\</b\\>" in tables._plain(bad.message)
    html = Table(tables.pd.DataFrame({"a": ["<b>"]})).html()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_a_picture_that_is_not_drawn_shows_why():
    assert Picture("no row was timed", "x")._repr_mimebundle_()["text/markdown"] == "Not drawn: no row was timed."

