import math

import pytest
from sample_records import GEM_LIKE, gem_like
from scipy.stats import gmean

from harness.ablation import ablate, ablation_cells, ablation_markdown
from harness.errors import UserError
from harness.records import to_frame


@pytest.fixture
def records():
    """The full kernel, two variants and a rival; one variant has no time on one case."""
    frame = to_frame(gem_like({"jfa": 1.6, "jfa-no-zigzag": 1.5, "jfa-one-buffer": 1.2, "fa4": 1.0}, GEM_LIKE[:3]))
    frame.loc[frame["backend"] == "jfa-one-buffer", "latency_ms"] = 0.5
    lost = (frame["backend"] == "jfa-one-buffer") & (frame["case"] == "self_u512")
    frame.loc[lost, "status"] = "crash"
    frame.loc[lost, [name for name in frame if name.startswith("latency_ms")]] = math.nan
    return frame


def test_ratio_is_the_variants_latency_over_the_full_kernels(records):
    ratios = ablate(records, rivals=("fa4",))
    assert set(ratios["variant"]) == {"jfa-no-zigzag", "jfa-one-buffer"}
    assert len(ratios) == 2 * 2 * 3
    kernel = records[records["scope"] == "kernel"].set_index(["backend", "direction", "case"])["latency_ms"]
    for row in ratios.itertuples():
        if row.status == "ok":
            expected = kernel[row.variant, row.direction, row.case] / kernel["jfa", row.direction, row.case]
            assert row.ratio == pytest.approx(expected)
        else:
            assert math.isnan(row.ratio)


def test_cells_show_means_noise_and_failures(records):
    ratios = ablate(records, rivals=("fa4",))
    headings, rows = ablation_cells(ratios, "fwd")
    assert headings == ["variant", "geometric mean", "self_u256", "self_u512", "self_u1024"]
    zigzag, buffer = rows
    known = ratios[(ratios["variant"] == "jfa-one-buffer") & (ratios["direction"] == "fwd")]["ratio"].dropna()
    assert buffer[:2] == ["jfa-one-buffer", f"{gmean(known):.3f} (2 of 3)"]
    assert buffer[3] == "crash"
    overlap = ratios[(ratios["variant"] == "jfa-no-zigzag") & (ratios["direction"] == "fwd")]
    assert [cell.endswith("~") for cell in zigzag[2:]] == [not clear for clear in overlap["clear"]]


def test_a_failure_of_the_full_kernel_is_not_the_variants(records):
    lost = (records["backend"] == "jfa") & (records["case"] == "self_u256")
    records.loc[lost, "status"] = "hang"
    records.loc[lost, [name for name in records if name.startswith("latency_ms")]] = math.nan
    _, rows = ablation_cells(ablate(records, rivals=("fa4",)), "fwd")
    assert [row[2] for row in rows] == ["jfa hang", "jfa hang"]
    assert rows[1][3] == "crash"


def test_intervals_decide_what_is_noise(records):
    records.loc[records["backend"] == "jfa-no-zigzag", ["latency_ms_ci_low", "latency_ms_ci_high"]] = [1e-9, 1e9]
    ratios = ablate(records, rivals=("fa4",))
    assert not ratios.loc[ratios["variant"] == "jfa-no-zigzag", "clear"].any()


def test_markdown_is_a_table_per_direction(records):
    lines = ablation_markdown(ablate(records, rivals=("fa4",)), "jfa").splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) == 2 * (2 + 2)
    assert {line.count("|") for line in tables} == {6}
    assert "fwd, kernel scope" in lines[0]


def test_nothing_to_compare_is_said(records):
    with pytest.raises(UserError, match=r"no kernel row of the full kernel 'solo'.*jfa-no-zigzag"):
        ablate(records, full="solo")
    with pytest.raises(UserError, match="no variant of 'jfa'"):
        ablate(records[records["backend"].isin(["jfa", "fa4"])], rivals=("fa4",))
