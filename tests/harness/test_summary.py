import io

import pytest
from rich.console import Console
from sample_records import gem_like, smoke_like
from scipy.stats import gmean

from harness.headline import mean_speedups
from harness.records import to_frame
from harness.summary import failures, print_summary
from harness.units import duration, scaled, significant, throughput_unit

GEM = gem_like()


def summary(records, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_summary(console, to_frame(records))
    return console.file.getvalue()


def lines_of(text, *words):
    return [line.split() for line in text.splitlines() if all(word in line.split() for word in words)]


def test_every_case_and_backend_has_its_figures():
    text = summary(GEM)
    assert "…" not in text, "nothing is cut, even on a narrow terminal"
    by_key = {(r.case, r.backend, r.direction): r for r in GEM if r.scope == "kernel"}
    forward, backward = (by_key["self_u256", "jfa", name] for name in ("fwd", "bwd"))
    (row,) = lines_of(text, "self_u256", "jfa")
    assert row == ["self_u256", "jfa", significant(forward.tflops), f"{forward.speedup_vs_fa4:.2f}x",
                   f"{forward.floor_share:.0%}", significant(backward.tflops), f"{backward.speedup_vs_fa4:.2f}x",
                   f"{backward.floor_share:.0%}"]


def test_means_are_geometric_over_the_cases_with_a_time():
    ratios = [r.speedup_vs_fa4 for r in GEM
              if (r.backend, r.direction, r.scope) == ("cudnn", "bwd", "operation") and r.speedup_vs_fa4]
    text = summary(GEM)
    row = lines_of(text[text.index("Geometric mean"):], "cudnn")[0]
    assert len(ratios) == 14
    assert row[-2:] == [f"{gmean(ratios):.2f}x", "(14)"]


def test_the_headline_is_said_in_words_with_intervals():
    found = [each for each in mean_speedups(to_frame(GEM)) if (each.backend, each.scope) == ("jfa", "kernel")]
    said = ", ".join(f"{each.direction} {each.mean:.2f}x [{each.low:.2f}, {each.high:.2f}] over 16 cases"
                     for each in found)
    assert f"\njfa over fa4, kernel scope: {said}\n" in summary(GEM)
    assert "jfa over fa4" not in summary(smoke_like())


def test_failures_are_listed_with_their_reasons():
    text = summary(GEM)
    assert "padded: oom: CUDA out of memory: tried to allocate 256.00 GiB [fwd/bwd: lognormal_8192]" in text
    where = "[fwd/bwd: broadcast_q32_u1024, broadcast_q192_u2048]"
    assert f"cudnn: unsupported: no broadcast-Q: ragged Q only {where}" in text
    assert text.rstrip().splitlines()[-1].startswith("448 rows: 416 ok")


def test_many_cases_with_one_reason_are_one_line():
    (line,) = failures(to_frame(smoke_like()).assign(case=lambda frame: frame["case"] + "_" + frame["case_id"]).pipe(
        lambda frame: frame[frame["status"] == "untimed"]))
    assert line.count("untimed") == 1
    assert "[fwd/bwd: " in line


def test_cpu_run_has_no_speedup_and_readable_units():
    text = summary(smoke_like())
    assert "GFLOP/s" in text
    assert "Geometric mean" not in text
    assert len(lines_of(text, "jfa_triton", "untimed")) == 4


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.012345, "0.0123"), (1.2345, "1.23"), (9.999, "10.0"),
                                             (123.456, "123"), (12345.6, "12346")])
def test_significant_digits(value, text):
    assert significant(value) == text


def test_units_for_people():
    assert throughput_unit(94.0) == (1.0, "TFLOP/s")
    assert throughput_unit(0.02) == (1e3, "GFLOP/s")
    assert throughput_unit(2e-5) == (1e6, "MFLOP/s")
    assert [scaled(0, "B"), scaled(999, "B"), scaled(1.24e9, "B")] == ["0 B", "999 B", "1.24 GB"]
    assert [duration(s) for s in (0.4, 59.4, 60, 3725)] == ["0 s", "59 s", "1 min 0 s", "1 h 2 min"]
