import numpy as np

from harness.cases import expand
from harness.config import BenchConfig
from harness.length_histogram import EIGHTHS, SPARK_BINS, histogram_lines, sparkline


def case(**block):
    values = {"name": "x", "num_heads_q": 2, "head_dim": 64} | block
    return expand(BenchConfig.model_validate({"name": "h", "backends": ["jfa"], "cases": [values]}))[0]


def counts(lines):
    return [int(line.split()[-1].replace(",", "")) for line in lines if line.startswith("  ")]


def test_a_sparkline_rises_with_the_counts_and_shows_every_bin_that_holds_one():
    lengths = np.repeat(np.arange(12) * 10 + 5, [1, 100, 50, 0, 0, 0, 0, 0, 0, 0, 0, 25])
    line = sparkline(lengths)
    assert len(line) == SPARK_BINS
    heights = [EIGHTHS.index(character) for character in line]
    assert heights[0] == 1
    assert max(heights) == 8
    assert 0 in heights
    assert sparkline(np.array([0, 0])) == "█" + " " * 11


def test_every_sequence_is_in_one_bar():
    self_case = case(mode="self", batch=500, lengths={"kind": "lognormal", "mu": 4.0, "sigma": 1.2, "max": 4096})
    lines = histogram_lines(self_case)
    assert sum(counts(lines)) == 500
    assert f"{int(self_case.lengths_k.max()):,}" in lines[-1]
    assert "500 sequences" in lines[0]
    assert f"{self_case.total_k:,} tokens" in lines[0]


def test_queries_and_keys_apart_where_they_differ():
    short = case(mode="short_kv", batch=9, lengths_q={"kind": "constant", "value": 64},
                 lengths_k={"kind": "list", "values": [1, 0, 3, 3, 2, 0, 1, 1, 1]})
    titles = [line for line in histogram_lines(short) if not line.startswith("  ")]
    assert [title.split("; ")[0] for title in titles] == ["x: lengths of queries", "x: lengths of keys"]
    assert titles[1].endswith("2 empty")
    assert counts(histogram_lines(short))[-4:] == [2, 4, 1, 2]  # lengths 0, 1, 2, 3
    broadcast = case(mode="broadcast_q", batch=3, len_q=32, lengths_k={"kind": "constant", "value": 4})
    assert "dense query block has 32 rows" in histogram_lines(broadcast)[0]


def test_a_batch_of_empty_sequences_has_one_bar():
    empty = case(mode="self", batch=3, lengths={"kind": "constant", "value": 0})
    assert counts(histogram_lines(empty)) == [3]
