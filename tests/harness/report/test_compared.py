import pytest
from report_runs import COMMITTED

from harness.errors import UserError
from harness.records import SPEEDUP_COLUMNS, Record, append_records, append_samples, load_records, load_samples
from harness.report import compared
from harness.report.show import Note

FASTER = 1.25


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The committed run's first cases, and a made-up later run in which jfa's forward kernel is faster."""
    folder = tmp_path_factory.mktemp("runs")
    records, samples = load_records(COMMITTED), load_samples(COMMITTED.with_suffix(".samples.csv"))
    ids = list(dict.fromkeys(record.case_id for record in records))[:3]
    paths = []
    for name, factor in (("before", 1.0), ("after", FASTER)):
        def changed(key, factor=factor):
            return 1 / factor if key[1:] == ("jfa", "fwd", "kernel") else 1.0

        kept = [record for record in records if record.case_id in ids and record.backend in ("jfa", "fa4")]
        path = folder / name / "gem.csv"
        path.parent.mkdir()
        append_records(path, [_scaled(record, changed(record.key)) for record in kept])
        keys = {record.key for record in kept}
        append_samples(path.with_suffix(".samples.csv"), [
            type(sample)(**vars(sample) | {"latency_ms": sample.latency_ms * changed(key)}) for sample in samples
            if (key := (sample.case_id, sample.backend, sample.direction, sample.scope)) in keys])
        paths.append(path)
    return paths


def _scaled(record, factor):
    times = {name: getattr(record, name) * factor for name in Record.model_fields if name.startswith("latency_ms")}
    rates = {name: value / factor for name in ("tflops", "floor_share", *SPEEDUP_COLUMNS)
             if (value := getattr(record, name)) is not None}
    return Record(**record.model_dump() | times | rates)


def test_what_became_faster_is_found_and_nothing_else(runs):
    comparison = compared.compare_runs(*runs)
    table = compared.changed_rows(comparison).rows
    assert len(table) == 3
    assert table["row"].str.endswith("fwd jfa").all()
    assert table["after / before (speed)"].astype(float).tolist() == pytest.approx([FASTER] * 3, rel=1e-3)
    text = compared.verdict(comparison).text
    assert text.startswith("Measured on NVIDIA H200. Of 24 rows")
    assert "**3** are faster after, **0** slower, and 21 can't be told apart" in text
    assert "measured at two times" in compared.what_differs(comparison).text


def test_means_and_the_forest_are_of_the_same_rows(runs):
    comparison = compared.compare_speedups(*runs)
    table = compared.means(comparison).rows
    assert list(table["backend, direction"]) == ["jfa fwd", "jfa fwd operation", "jfa bwd", "jfa bwd operation"]
    figure = compared.forest(comparison).drawn
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(comparison.rows) + 4
    assert "speed-up over FA4" in figure.texts[0].get_text()


def test_runs_without_a_speedup_say_so_instead(runs):
    comparison = compared.compare_speedups(*runs, backend="flex")
    assert "has no backend 'flex'" in compared.verdict(comparison).text
    assert isinstance(compared.forest(comparison).drawn, str)


def test_a_run_against_itself_shows_no_difference(runs):
    comparison = compared.compare_runs(runs[0], runs[0])
    assert isinstance(compared.changed_rows(comparison), Note)
    assert "**0** are faster after, **0** slower" in compared.verdict(comparison).text


def test_runs_that_share_no_case_are_an_error(runs, tmp_path):
    other = tmp_path / "gem.csv"
    records = [record.model_copy(update={"case_id": "0" * 12}) for record in load_records(runs[0])[:1]]
    samples = [sample for sample in load_samples(runs[0].with_suffix(".samples.csv"))
               if (sample.backend, sample.direction, sample.scope) == records[0].key[1:]
               and sample.case_id == load_records(runs[0])[0].case_id]
    append_records(other, records)
    append_samples(other.with_suffix(".samples.csv"), [type(sample)(**vars(sample) | {"case_id": "0" * 12})
                                                       for sample in samples])
    with pytest.raises(UserError, match="no case in common"):
        compared.compare_runs(runs[0], other)
