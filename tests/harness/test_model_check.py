"""The one computation of the timing model's error, and the report of it."""

from dataclasses import replace

import fake_engine
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import MEASURED
from test_cli import harness
from test_plots import svg_text

from harness.model_check import FITTED, HELD, Matched, Point, Score, half, match, pairs, parts, score
from harness.model_records import load_modelled
from harness.model_report import check_frame, check_markdown, verdict_lines
from harness.records import COLUMNS, Record, append_records

ONE, OTHER = "00000000000a", "00000000000b"  # ids of cases


def point(measured, modelled, variant="jfa", case_id=OTHER, direction="fwd", run="run", case="long"):
    return Point(run, "NVIDIA H200", case_id, case, direction, variant, f"hopper/{variant}", measured, modelled, "HBM")


def test_the_error_is_modelled_over_measured():
    assert point(2.0, 2.5).error == pytest.approx(0.25)
    assert point(2.0, 1.5).error == pytest.approx(-0.25)


def test_a_score_has_median_and_worst_of_the_absolute_errors():
    points = [point(1.0, 1.05, "a"), point(1.0, 0.7, "b"), point(1.0, 1.1, "c"), point(1.0, 1.2, "d")]
    found = score(points)
    assert (found.rows, found.median, found.worst.name) == (4, pytest.approx(0.15), "long fwd b")
    assert score([]) == Score(0, None, None, 0, 0)


def test_only_pairs_of_one_run_case_and_direction_count_and_only_those_far_apart():
    slow = point(1.2, 1.2, "slow")
    others = [point(1.0, 1.0, "close by run", run="other"), point(1.0, 1.0, "other case", case_id=ONE),
              point(1.0, 1.0, "other way", direction="bwd"), point(1.1, 1.0, "near"), point(1.05, 1.0, "far")]
    assert [(a.variant, b.variant) for a, b in pairs([slow, *others])] == [("slow", "far")]


def test_a_pair_is_in_order_if_the_model_says_so_and_a_tie_is_not():
    a, b, c = point(1.0, 5.0, "a"), point(2.0, 6.0, "b"), point(3.0, 6.0, "c")
    found = score([a, b, c])
    assert (found.pairs, found.ordered) == (3, 2)  # b and c are modelled alike


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=8), st.floats(0.1, 10))
def test_a_model_off_by_one_factor_has_every_pair_in_order(times, factor):
    points = [point(measured, measured * factor, str(index)) for index, (measured, _) in enumerate(times)]
    found = score(points)
    assert found.ordered == found.pairs
    assert found.median == pytest.approx(abs(factor - 1), abs=1e-9)


def test_a_score_names_the_limits_that_are_not_kept():
    good = Score(10, 0.10, point(1.0, 1.25), 10, 9)
    assert good.beyond == []
    bad = Score(10, 0.101, point(1.0, 0.74), 100, 89)
    assert bad.beyond == ["median error 10.1%, limit 10%", "worst error -26.0% (long fwd jfa), limit 25%",
                          "order right in 89 of 100 pairs, limit 90%"]


def test_a_row_is_in_one_half_by_what_it_is_and_the_halves_are_about_as_large():
    # the rule is part of what was promised: another one would let fitted rows into the half that is held back
    assert [half(ONE, "fwd", impl) for impl in ("hopper/a", "hopper/b", "hopper/c")] == [FITTED, HELD, FITTED]
    rows = [half(f"{case:012x}", direction, "hopper/x") for case in range(200) for direction in ("fwd", "bwd")]
    assert 150 < rows.count(HELD) < 250


def test_scores_of_halves_are_of_their_rows():
    points = [point(1.0, 1.5, str(index), direction=way) for index in range(8) for way in ("fwd", "bwd")]
    found = parts(points)
    for name in (FITTED, HELD):
        mine = [each for each in points if each.half == name]
        assert found[name].rows == len(mine) > 0
        assert found[f"{name}, fwd"].rows == sum(each.direction == "fwd" for each in mine)
    assert found["all"].rows == 16
    assert verdict_lines(found)[0] == "held half: beyond the limits: median error 50.0%, limit 10%"
    assert verdict_lines(parts([each for each in points if each.half == FITTED])) == [
        "held half: no row, so nothing is said of the limits"]
    held = next(each for each in points if each.half == HELD)
    assert verdict_lines(parts([replace(held, modelled_ms=1.09)])) == ["held half: within the limits"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """``(config, its modelled file, a made-up run that measured some of its rows)``."""
    folder = tmp_path_factory.mktemp("check")
    config = folder / "tiny.yaml"
    config.write_text(fake_engine.CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        fake_engine.install(patch)
        harness("model", config, "--out", folder / "out", "--no-plots")
    modelled = folder / "out" / "tiny.modelled.csv"
    twins = {(row.case, row.direction, row.backend): row for row in load_modelled(modelled)}
    rows = [measured(twins["short", "fwd", "jfa"], 0.2), measured(twins["short", "fwd", "jfa"], 0.3, backend="twin"),
            measured(twins["short", "bwd", "jfa"], 0.4), measured(twins["short", "fwd", "jfa_unsorted"], 0.16),
            measured(twins["long", "fwd", "jfa"], 0.36), measured(twins["long", "bwd", "jfa"], 0.8, impl="hopper/old"),
            measured(twins["long", "bwd", "jfa"], 0.9, scope="operation"),
            measured(twins["long", "bwd", "jfa"], 0.9, backend="fa4", impl="varlen"),
            measured(twins["long", "fwd", "jfa"], 1.0, case_id=ONE, case="another")]
    append_records(folder / "tiny.csv", rows)
    return config, modelled, folder / "tiny.csv"


def measured(twin, latency, **changes):
    """A made-up record of the row that a modelled one is of."""
    values = {name: getattr(twin, name) for name in COLUMNS}
    values |= dict(zip(MEASURED[:7], (latency, latency, latency, latency, latency, 30, twin.flops / latency / 1e9),
                       strict=True))
    return Record.model_validate(values | {"run_id": "tiny-1", "gpu": "NVIDIA H200", "device_type": "cuda",
                                           "commit": "0123456789ab", "status": "ok", "message": ""} | changes)


def test_rows_match_by_lengths_direction_and_variant(files):
    from harness.records import load_records

    found = match(load_records(files[2]), load_modelled(files[1]))
    assert [(each.case, each.direction, each.variant, each.measured_ms, each.modelled_ms) for each in found.points] == [
        ("short", "fwd", "jfa", 0.25, 0.16),  # the median of two that ran the same variant
        ("short", "bwd", "jfa", 0.4, 0.32), ("short", "fwd", "jfa_unsorted", 0.16, 0.2),
        ("long", "fwd", "jfa", 0.36, 0.36)]
    assert found.not_modelled == ("long bwd jfa (hopper/old)",)
    assert [each.split(" (")[0] for each in found.not_measured] == ["long bwd jfa", "long fwd jfa_unsorted"]
    assert found.other_cases == 1


def test_the_command_writes_table_and_markdown_and_ends_with_1_beyond_a_limit(files, tmp_path):
    said = harness("model", files[1], "--against", files[2], "--out", tmp_path / "o", code=1)
    assert said == ""
    rows = pd.read_csv(tmp_path / "o" / "model_check.csv")
    assert rows[["case", "direction", "variant", "measured_ms", "modelled_ms", "error"]].to_numpy().tolist() == [
        ["short", "fwd", "jfa", 0.25, 0.16, -0.36], ["short", "bwd", "jfa", 0.4, 0.32, -0.2],
        ["short", "fwd", "jfa_unsorted", 0.16, 0.2, 0.25], ["long", "fwd", "jfa", 0.36, 0.36, 0.0]]
    assert set(rows["measured_gpu"]) == {"NVIDIA H200"}
    assert set(rows["measured_commit"]) == {"0123456789ab"}
    assert rows["half"].tolist() == [half(*row) for row in rows[["case_id", "direction", "impl"]].to_numpy()]
    text = (tmp_path / "o" / "model_check.md").read_text()
    assert "| all | 4 | 22.5% | -36.0% (short fwd jfa) | 0 of 1 pairs |" in text
    assert "Measured, but not modelled: long bwd jfa (hopper/old)." in text
    assert "Measured: tiny-1 on NVIDIA H200, kernels of 0123456789ab." in text
    texts = svg_text(tmp_path / "o" / "plots" / "modelled_against_measured.svg")
    assert "Modelled against measured: error of the modelled times" in texts
    assert "modelled, held half" in texts


def test_within_the_limits_the_exit_status_is_0(files, tmp_path):
    rows = [measured(row, row.predicted_ms * 1.05) for row in load_modelled(files[1]) if row.predicted_ms]
    append_records(tmp_path / "close.csv", rows)
    said = harness("model", files[1], "--against", tmp_path / "close.csv", "--out", tmp_path / "o", "--no-plots")
    assert "4.8%" in said
    assert "beyond" not in said


@pytest.mark.parametrize(("changes", "wanted"), [
    ({"gpu": "NVIDIA B200"}, "gpu: measured on NVIDIA B200, modelled for h200; only measurements of a H200"),
    ({"case_id": ONE}, "no ok row of kernel scope has the lengths and the variant of a modelled one"),
    ({"impl": "hopper/another"}, "no ok row of kernel scope has the lengths and the variant")])
def test_what_can_not_be_held_against_them_is_one_line(files, tmp_path, changes, wanted):
    append_records(tmp_path / "other.csv", [measured(load_modelled(files[1])[0], 0.2, **changes)])
    said = harness("model", files[1], "--against", tmp_path / "other.csv", "--out", tmp_path / "o", code=2)
    assert wanted in said
    assert said.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_the_report_has_a_row_for_each_point():
    points = (point(1.0, 1.2), point(2.0, 1.0, "other", case_id=ONE, direction="bwd"))
    frame = check_frame(points)
    assert frame["error"].tolist() == [0.2, -0.5]
    text = check_markdown(Matched(points, (), ()), "h200, made up")
    assert "| long | bwd | other | held | 2 | 1 | -50.0% | HBM |" in text
    assert "not modelled" not in text


@pytest.mark.parametrize("changes", [{"gpu": "NVIDIA B200"}, None])
def test_a_bad_measurement_is_found_before_anything_is_modelled(files, tmp_path, monkeypatch, changes):
    fake_engine.install(monkeypatch)
    monkeypatch.setattr("harness.model.predict", None)
    if changes is not None:
        append_records(tmp_path / "other.csv", [measured(load_modelled(files[1])[0], 0.2, **changes)])
    said = harness("model", files[0], "--against", tmp_path / "other.csv", "--out", tmp_path / "o", code=2)
    assert ("gpu: measured on NVIDIA B200" if changes else "no such records CSV") in said
    assert not (tmp_path / "o").exists()
