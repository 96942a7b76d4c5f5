import re

import matplotlib
import pytest
from report_runs import COMMITTED, write_run
from sample_records import GEM_LIKE, gem_like, smoke_like

from harness import plot_parts
from harness.errors import UserError
from harness.records import read_records, to_frame
from harness.report.ablations import ablation_directions, ablation_table, draw_ablation, read_ablation
from harness.report.published import COLUMNS, LABEL, PUBLISHED, draw_published, published_table, read_published
from harness.report.roofline import draw_roofline
from harness.report.trends import draw_trends


@pytest.fixture(autouse=True)
def _plain_style():
    with matplotlib.rc_context(rc=plot_parts.RC):
        yield


def texts(figure):
    return [text.get_text() for text in figure.texts] + [text.get_text() for axes in figure.axes for text in axes.texts]


def points(axes):
    return sum(len(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "None")


def test_roofline_has_every_timed_case_under_its_number():
    records = read_records(COMMITTED)
    figure = draw_roofline(records)
    timed = records[(records["status"] == "ok") & (records["scope"] == "kernel")]
    for axes, direction in zip(figure.axes, ("fwd", "bwd"), strict=True):
        assert points(axes) == (timed["direction"] == direction).sum()
        numbers = [int(number) for text in axes.texts if re.fullmatch(r"[\d,]+", text.get_text())
                   for number in text.get_text().split(",")]
        assert sorted(numbers) == list(range(1, timed["case_id"].nunique() + 1))
    listed = [text for text in texts(figure) if re.match(r"\d+  ", text)]
    assert [text.split()[1] for text in listed] == list(dict.fromkeys(timed["case"]))


def test_roofline_needs_measured_ceilings():
    records = to_frame(gem_like()).assign(ceiling_tbps=float("nan"))
    assert draw_roofline(records) == "no timed row of kernel scope has measured ceilings"


def test_trends_show_each_case_once_a_panel_and_direction():
    records = read_records(COMMITTED)
    ours = records[(records["backend"] == "jfa") & (records["scope"] == "kernel") & records["speedup_vs_fa4"].notna()]
    figure = draw_trends(records)
    assert [points(axes) for axes in figure.axes] == [len(ours)] * 3
    assert draw_trends(to_frame(smoke_like())) == "jfa has no speed-up over fa4 in kernel scope"


@pytest.fixture
def ablation(tmp_path):
    backends = {"jfa": 1.6, "jfa_no_zigzag": 1.5, "jfa_one_buffer": 1.2, "fa4": 1.0}
    return write_run(tmp_path / "run", gem_like(backends, GEM_LIKE[:3]), "ablation_fwd")


def test_an_ablation_has_a_row_per_variant_and_no_rival(ablation):
    figure = draw_ablation(ablation)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["jfa_no_zigzag", "jfa_one_buffer"]
    assert [points(axes) for axes in figure.axes] == [6, 6]
    assert ablation_directions(ablation) == ["fwd", "bwd"]
    table = ablation_table(ablation, "fwd").rows
    assert list(table["variant"]) == ["jfa_no_zigzag", "jfa_one_buffer"]


def test_variants_are_held_against_the_defaults_where_there_are_such(tmp_path):
    backends = {"jfa": 1.7, "jfa_default": 1.6, "jfa_one_buffer": 1.2, "fa4": 1.0}
    path = write_run(tmp_path / "run", gem_like(backends, GEM_LIKE[:3]), "ablation_bwd")
    _, ratios, full = read_ablation(path)
    assert full == "jfa_default"
    assert set(ratios["variant"]) == {"jfa", "jfa_one_buffer"}


def test_a_run_that_is_no_ablation_is_an_error(tmp_path):
    path = write_run(tmp_path / "run", gem_like({"jfa": 1.6, "fa4": 1.0}, GEM_LIKE[:2]))
    with pytest.raises(UserError, match=r"gem\.csv: no variant of 'jfa'"):
        draw_ablation(path)


def test_published_figures_are_marked_as_not_ours():
    rows = read_published()
    figure = draw_published(rows)
    drawn = rows[(rows["gpu"] == "B200") & rows["tflops"].notna()]
    assert sum(map(points, figure.axes)) == len(drawn)
    assert LABEL in figure.texts[0].get_text()
    for axes in figure.axes:
        assert any(text.get_text().replace("\n", " ") == LABEL.upper() for text in axes.texts)
    assert not any("Measured on" in text for text in texts(figure))
    html = published_table(rows).html()
    assert all(source in html for source in rows["source"])


def test_every_source_and_column_of_the_published_figures_is_documented():
    text = (PUBLISHED.parent / "README.md").read_text()
    assert all(f"\n| {source} |" in text for source in read_published()["source"])
    assert all(f"`{column}`" in text for column in COLUMNS)


def test_published_rows_need_a_source_and_known_columns(tmp_path):
    text = PUBLISHED.read_text()
    header, first, *_ = text.splitlines()
    path = tmp_path / "published.csv"
    path.write_text(f"{header}\n{first}\n{first[first.index(','):]}\n")
    with pytest.raises(UserError, match="line 3: source: every figure needs one"):
        read_published(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="columns: expected source, date"):
        read_published(path)
    with pytest.raises(UserError, match="can't be read"):
        read_published(tmp_path / "none.csv")
