"""How the lengths of a case are spread, drawn with block characters for a terminal."""

from __future__ import annotations

import numpy as np

from harness.cases import Case

EIGHTHS = " ▁▂▃▄▅▆▇█"
SPARK_BINS, ROWS, WIDTH = 12, 12, 40


def sparkline(lengths: np.ndarray) -> str:
    """The histogram from 0 to the longest length in `SPARK_BINS` characters; any bin that isn't empty shows."""
    counts, _ = np.histogram(lengths, SPARK_BINS, (0, max(int(np.max(lengths, initial=0)), 1)))
    top = max(int(counts.max()), 1)
    return "".join(EIGHTHS[-(-int(count) * 8 // top)] for count in counts)


def histogram_lines(case: Case) -> list[str]:
    """A line per range of lengths with its bar and count; queries and keys where they differ."""
    sides = {"queries and keys": case.lengths_k}
    if case.broadcast_q:
        sides = {f"keys (the dense query block has {case.max_seqlen_q} rows)": case.lengths_k}
    elif case.mode != "self":
        sides = {"queries": case.lengths_q, "keys": case.lengths_k}
    lines = []
    for title, lengths in sides.items():
        lines += [f"{case.name}: lengths of {title}; {len(lengths):,} sequences, {int(lengths.sum()):,} tokens, "
                  f"mean {lengths.mean():.1f}, median {np.median(lengths):g}, {int((lengths == 0).sum()):,} empty"]
        lines += _bars(lengths)
    return lines


def _bars(lengths: np.ndarray) -> list[str]:
    longest = int(lengths.max(initial=0))
    edges = np.unique(np.ceil(np.linspace(0, longest + 1, min(ROWS, longest + 1) + 1)).astype(np.int64))
    counts, _ = np.histogram(lengths, edges)
    top, label = max(int(counts.max()), 1), len(f"{longest:,}")
    lines = []
    for low, high, count in zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), counts.tolist(), strict=True):
        bar = "█" * -(-count * WIDTH // top)
        lines.append(f"  {low:>{label},} to {high:>{label},}  {bar:<{WIDTH}} {count:,}".rstrip())
    return lines
