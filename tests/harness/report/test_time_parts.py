import pandas as pd
import pytest
from report_runs import COMMITTED
from sample_records import gem_like

from harness.records import read_records, to_frame
from harness.report.time_parts import draw_time_parts, time_parts


@pytest.fixture(scope="module")
def records():
    frame = to_frame(gem_like())
    expanded = (frame["backend"] == "fa4") & (frame["mode"] == "broadcast_q")
    return frame.assign(impl=frame["impl"].where(~expanded, "varlen/expanded"))


def test_the_parts_add_up_to_the_operation(records):
    found = time_parts(records)
    assert len(found) == 16 * 2 * 2
    total = found["kernel_ms"] + found["moving_q_ms"] + found["rest_ms"]
    pd.testing.assert_series_equal(total, found["operation_ms"], check_names=False)
    row = records[(records["backend"] == "jfa") & (records["direction"] == "bwd") & (records["case"] == "self_u512")]
    part = found[(found["backend"] == "jfa") & (found["direction"] == "bwd") & (found["case"] == "self_u512")].iloc[0]
    by_scope = row.set_index("scope")["latency_ms"]
    assert (part["kernel_ms"], part["operation_ms"]) == (by_scope["kernel"], by_scope["operation"])


def test_only_a_backend_that_copies_a_shared_q_is_charged_for_it(records):
    found = time_parts(records)
    charged = found[found["moving_q_ms"] > 0]
    assert set(zip(charged["backend"], charged["case"], strict=True)) == {
        ("fa4", "broadcast_q32_u1024"), ("fa4", "broadcast_q192_u2048")}
    slow = records.assign(latency_ms=records["latency_ms"].where(records["scope"] == "kernel", 100.0))
    one = time_parts(slow)
    one = one[(one["backend"] == "fa4") & (one["case"] == "broadcast_q32_u1024") & (one["direction"] == "fwd")].iloc[0]
    row = records[(records["case"] == "broadcast_q32_u1024")].iloc[0]
    moved = (1152 * 32 + row["max_seqlen_q"]) * 4 * 128 * 2  # bf16 rows of all copies, and of the dense Q
    assert one["moving_q_ms"] == pytest.approx(moved / 4.3e12 * 1e3)


def test_the_modelled_part_never_exceeds_the_difference(records):
    longest = records.groupby(["case_id", "backend", "direction"])["latency_ms"].transform("max")
    same = records.assign(latency_ms=longest)
    found = time_parts(same)
    assert found["moving_q_ms"].max() == 0
    assert found["rest_ms"].abs().max() < 1e-12


def test_rows_without_a_time_in_both_scopes_are_left_out(records):
    assert isinstance(draw_time_parts(records[records["scope"] == "kernel"]), str)
    lost = records[~((records["backend"] == "jfa") & (records["scope"] == "operation"))]
    assert set(time_parts(lost)["backend"]) == {"fa4"}


def test_draws_a_bar_for_each_backend_and_case_of_the_committed_run():
    records = read_records(COMMITTED)
    figure = draw_time_parts(records)
    found = time_parts(records)
    labels = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(labels) == len(found)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Forward", "Backward"]
