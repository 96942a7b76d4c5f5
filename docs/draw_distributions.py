"""Draws docs/images/distributions.png: a histogram of every length distribution, from the examples in its document.

    python docs/draw_distributions.py [OUT.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from harness.distributions import Base, Distribution, make_lengths

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "images" / "distributions.png"
BATCH = 4096
COLUMNS = 3
COLOUR = "#0072B2"
LONG_TAILED = ("wide", "lognormal", "zipf")


def examples(document: Path = DOCS / "distributions.md") -> list[Base]:
    """The distributions that the document's YAML blocks give as examples, in order; those that need a file left out."""
    blocks = [part.split("```")[0] for part in document.read_text(encoding="utf-8").split("```yaml\n")[1:]]
    values = [YAML(typ="safe", pure=True).load(block)["lengths"] for block in blocks]
    return [TypeAdapter(Distribution).validate_python(each) for each in values if each["kind"] not in ("trace", "list")]


def draw(out: Path) -> None:
    """Write the picture."""
    distributions = examples()
    rows = -(-len(distributions) // COLUMNS)
    figure = Figure(figsize=(11, 2.5 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS)
    for axis, distribution in zip(axes.flat, distributions, strict=False):
        draw_one(axis, distribution)
    for axis in axes.flat[len(distributions):]:
        axis.set_visible(False)
    figure.suptitle(f"Lengths of {BATCH} sequences, seed 0; density is their mean over their maximum", fontsize=11)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, metadata={"Software": None})


def draw_one(axis: Axes, distribution: Base) -> None:
    """A histogram of the lengths; length by place for an ordered batch."""
    lengths = make_lengths(distribution, BATCH, seed=0, role="q")
    if distribution.kind == "skew":
        axis.plot(lengths, ".", color=COLOUR, markersize=1)
        axis.set_xlabel("place in the batch", fontsize=8)
        axis.set_ylabel("length", fontsize=8)
    else:
        high = int(lengths.max()) + 1
        if distribution.kind in LONG_TAILED:
            axis.set_xscale("log")
            edges = np.unique(np.geomspace(1, high, 41).round())
        else:
            edges = np.linspace(0, high, min(60, high) + 1)
        axis.hist(lengths, bins=edges, color=COLOUR)
        axis.set_xlabel("length" + (" (log scale)" if distribution.kind in LONG_TAILED else ""), fontsize=8)
        axis.set_ylabel("sequences", fontsize=8)
    axis.set_title(distribution.kind, fontsize=9, fontweight="bold", loc="left", y=1.1)
    axis.text(0, 1.03, f"{distribution.label}; density {lengths.mean() / lengths.max():.2f}", fontsize=8,
              transform=axis.transAxes)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
