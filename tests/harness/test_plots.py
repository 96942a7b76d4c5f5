import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
from matplotlib.image import imread
from sample_records import gem_like, smoke_like

from harness import plot_parts
from harness.plots import PLOTS, draw_plots
from harness.records import to_frame


@pytest.fixture(scope="module")
def gem():
    return to_frame(gem_like())


def svg_text(path):
    """Texts of an SVG, which matplotlib leaves as comments beside their outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(path, parser)
    return [node.text.strip() for node in tree.iter() if node.tag is ElementTree.Comment]


def test_draws_every_plot_as_png_and_svg(gem, tmp_path):
    plots = draw_plots(gem, tmp_path / "new" / "plots")
    assert [plot.name for plot in plots] == list(PLOTS) == ["tflops", "speedup", "floor_share", "padding_waste"]
    for plot in plots:
        assert not plot.skipped
        assert [path.name for path in plot.paths] == [f"{plot.name}.png", f"{plot.name}.svg"]
        height, width, _ = imread(plot.paths[0]).shape
        assert width > 1000
        assert height > 800
        texts = svg_text(plot.paths[1])
        assert any("2026" in text for text in texts), "the caption says when"
    texts = svg_text(tmp_path / "new" / "plots" / "tflops.svg")
    for wanted in ("Forward", "Backward", "TFLOP/s", "jfa", "fa4", "padded", *gem["case"].unique()):
        assert wanted in texts
    assert [texts.count(status) for status in ("wrong", "hang", "oom", "crash", "unsup.")] == [2, 2, 2, 2, 4]
    caption = " ".join(texts)
    assert all(part in caption for part in ("Example GPU", "driver 555.55", "CUDA 13.0", "torch 2.99.0",
                                            "fbtriton 3.99.0", "FA4 4.0.0b99", "kernel scope"))


def test_a_caption_names_a_rival_of_another_version_by_its_version(gem):
    older = gem[gem["backend"] == "fa4"].assign(backend="fa4@4.0.0b15", backend_version="4.0.0b15")
    caption = plot_parts.caption(pd.concat([gem, older]))
    assert [caption.count(words) for words in ("FA4 4.0.0b99", "FA4 4.0.0b15", "fa4@")] == [1, 1, 0]


def test_svg_is_the_same_for_the_same_records(gem, tmp_path):
    rows = gem[gem["case"].isin(["self_u256", "lognormal_8192"])]
    first, second = draw_plots(rows, tmp_path / "a"), draw_plots(rows, tmp_path / "b")
    for one, other in zip(first, second, strict=True):
        assert one.paths[1].read_bytes() == other.paths[1].read_bytes()


def test_cpu_run_is_drawn_in_gflops_and_without_a_speedup(tmp_path):
    plots = {plot.name: plot for plot in draw_plots(to_frame(smoke_like()), tmp_path)}
    assert plots["speedup"].paths == ()
    assert "fa4" in plots["speedup"].skipped
    assert not (tmp_path / "speedup.png").exists()
    texts = svg_text(plots["tflops"].paths[1])
    assert "GFLOP/s" in texts
    assert texts.count("untimed") == 8


def test_names_are_no_formulas(gem, tmp_path):
    rows = gem[gem["case"] == "self_u256"].assign(case="$\\frac{$", gpu="a $2 GPU for $3")
    for plot in draw_plots(rows, tmp_path):
        texts = svg_text(plot.paths[1])
        assert "$\\frac{$" in texts or plot.name == "floor_share"
        assert not any("mathdefault" in text for text in texts)
    assert "a $2 GPU for $3" in " ".join(svg_text(tmp_path / "tflops.svg"))


def test_many_backends_get_room(gem, tmp_path):
    rows = gem[(gem["case"] == "self_u256") & gem["backend"].isin(["jfa", "fa4"])]
    variants = [rows[rows["backend"] == "jfa"].assign(backend=f"variant_{index}") for index in range(30)]
    few, many = (draw_plots(table, tmp_path / name)[0].paths[0]
                 for name, table in (("few", rows), ("many", pd.concat([rows, *variants]))))
    assert imread(many).shape[0] > imread(few).shape[0] + 160  # pixels an inch


@pytest.mark.filterwarnings("error")
def test_cases_without_work_are_drawn(gem, tmp_path):
    rows = gem[gem["case"] == "self_u256"].assign(
        flops=0, tflops=0.0, floor_share=0.0, tile_flops=0, tile_efficiency=float("nan"), padding_waste=float("nan"))
    plots = {plot.name: plot.skipped for plot in draw_plots(rows, tmp_path)}
    assert plots == {"tflops": "", "speedup": "", "floor_share": "no row has a share of a floor",
                     "padding_waste": "no case has work to waste"}


def test_scope_falls_back_to_operation_only_when_not_asked_for(gem, tmp_path):
    rows = gem[(gem["scope"] == "operation") & (gem["case"] == "self_u256")]
    assert all(not plot.skipped for plot in draw_plots(rows, tmp_path / "default"))
    assert "operation scope" in " ".join(svg_text(tmp_path / "default" / "tflops.svg"))
    assert {plot.skipped for plot in draw_plots(rows, tmp_path / "asked", scope="kernel")} == {"no row of kernel scope"}


def test_run_in_which_everything_failed_still_draws_its_cases(gem, tmp_path):
    rows = gem[gem["status"].isin(["unsupported", "wrong", "hang", "oom", "crash"])]
    plots = {plot.name: plot.skipped for plot in draw_plots(rows, tmp_path)}
    assert plots.pop("padding_waste") == ""
    assert all(plots.values())


def test_one_direction_and_one_case_are_enough(gem, tmp_path):
    rows = gem[(gem["case"] == "dense_4x4096") & (gem["direction"] == "bwd")]
    assert all(not plot.skipped for plot in draw_plots(rows, tmp_path))
    texts = svg_text(tmp_path / "speedup.svg")
    assert "Backward" in texts
    assert "Forward" not in texts


def test_each_backend_keeps_its_own_colour_and_marker():
    labels = [*reversed(plot_parts.STYLES), *(f"jfa-no-{i}" for i in range(12))]
    styles = plot_parts.backend_styles(labels)
    assert list(styles)[:2] == ["jfa", "fa4"]
    assert len({(style.colour, style.marker) for style in styles.values()}) == len(labels)
    assert len({style.marker for style in plot_parts.STYLES.values()}) == len(plot_parts.STYLES)
    assert plot_parts.backend_styles(["padded", "fa4"])["fa4"] == styles["fa4"]


def test_a_speed_up_far_below_is_a_figure_at_the_edge(gem, tmp_path):
    slow = gem.copy()
    worst = slow[(slow["backend"] == "padded") & (slow["status"] == "ok")].index[0]
    slow.loc[worst, ["speedup_vs_fa4", "speedup_vs_fa4_ci_low", "speedup_vs_fa4_ci_high"]] = [0.0072, 0.0071, 0.0073]
    draw_plots(slow, tmp_path)
    texts = svg_text(tmp_path / "speedup.svg")
    assert "← 0.0072×" in texts
    assert not any(text.startswith("←") for text in svg_text(draw_plots(gem, tmp_path / "without")[1].paths[1]))
