"""Draws docs/images/tile_schedule.png: a small batch cut into tiles, and the three ways of dealing them to workers.

    python docs/draw_schedule.py [OUT.png]

The tiles and who gets them come from `kernels.tile_schedule`, with the shape and the workers named below.
"""

from __future__ import annotations

import heapq
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kernels.jagged_layout import JaggedLayout
from kernels.tile_schedule import TileShape, deal, tile_records

PICTURE = Path(__file__).resolve().parent / "images" / "tile_schedule.png"
LENGTHS = (300, 80, 560, 40, 200, 430, 120, 60)
SHAPE = TileShape(rows=128, block=64)
WORKERS = 4
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
TITLES = {"none": "none: as they come", "sorted": "sorted: most work first",
          "zigzag": "zigzag: every other round back", "dynamic": "dynamic: next to who is free"}


def draw(out: Path) -> None:
    """Write the picture."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.get_layout_engine().set(wspace=0.05, hspace=0.06)
    grid = figure.add_gridspec(2, 12, height_ratios=(1.25, 1))
    for place, draw_one in enumerate((_draw_batch, _draw_padded, _draw_tiles)):
        draw_one(figure.add_subplot(grid[0, 4 * place:4 * place + 4]))
    last = [_draw_deal(figure.add_subplot(grid[1, 3 * place:3 * place + 3]), name)
            for place, name in enumerate(TITLES)]
    for axis in figure.axes[3:]:
        axis.set_xlim(0, max(last) + 3.5)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, metadata={"Software": None})


def _tiles(order: str) -> tuple[np.ndarray, np.ndarray]:
    """``(sequence, steps)`` of each tile in the order of the list."""
    layout = JaggedLayout.from_lengths(LENGTHS)
    records = tile_records(layout, layout, SHAPE, order)
    sequence = np.searchsorted(layout.offsets[1:], records[:, 0], side="right")
    return sequence, -(-records[:, 5] // SHAPE.block)


def _draw_padded(axis: Axes) -> None:
    longest = max(LENGTHS)
    for place, length in enumerate(LENGTHS):
        axis.add_patch(Rectangle((0, place + 0.1), longest, 0.8, facecolor="#eeeeee", edgecolor="#bbbbbb",
                                 hatch="////"))
        axis.add_patch(Rectangle((0, place + 0.1), length, 0.8, facecolor=COLOURS[place]))
    axis.set(xlim=(0, longest), ylim=(len(LENGTHS), 0), xlabel="rows")
    axis.set_yticks([])
    waste = 1 - sum(LENGTHS) / (longest * len(LENGTHS))
    _title(axis, f"padded: {waste:.0%} of the rows are nothing")


def _draw_batch(axis: Axes) -> None:
    start = 0
    total = sum(LENGTHS)
    for place, length in enumerate(LENGTHS):
        axis.add_patch(Rectangle((start, 0.42), length, 0.3, facecolor=COLOURS[place], edgecolor="white"))
        axis.text(start + length / 2, 0.76, str(length), ha="center", fontsize=7.5, rotation=45)
        start += length
    for place, bound in enumerate(np.cumsum((0, *LENGTHS)).tolist()):
        low = 0.26 if place % 2 else 0.36  # neighbours at two heights, as some are close
        axis.plot([bound, bound], [low, 0.41], color="#444444", linewidth=0.8)
        axis.text(bound, low - 0.01, str(bound), ha="center", va="top", fontsize=7, color="#444444")
    axis.text(0, 0.08, "cu_seqlens_q, int32 [B + 1]", fontsize=8, color="#444444", family="monospace")
    axis.set(xlim=(-20, total + 20), ylim=(-0.05, 1))
    axis.axis("off")
    _title(axis, "packed: eight sequences end to end")


def _draw_tiles(axis: Axes) -> None:
    sequence, steps = _tiles("none")
    for place, (owner, count) in enumerate(zip(sequence.tolist(), steps.tolist(), strict=True)):
        for step in range(count):
            axis.add_patch(Rectangle((step, place + 0.08), 0.92, 0.84, facecolor=COLOURS[owner]))
    axis.set(xlim=(0, int(steps.max()) + 0.5), ylim=(len(sequence), 0), xlabel=f"steps of {SHAPE.block} keys")
    axis.set_ylabel(f"tiles of {SHAPE.rows} query rows", fontsize=8)
    axis.set_yticks([])
    _title(axis, "tiles: each walks its own sequence's keys")


def _draw_deal(axis: Axes, order: str) -> int:
    """The workers' turns on a line each; returns the steps of the longest."""
    sequence, steps = _tiles("sorted" if order == "dynamic" else order)
    longest = 0
    for worker, items in enumerate(_drawn(steps) if order == "dynamic" else deal(len(steps), WORKERS, order)):
        at = 0
        for item in items:
            axis.add_patch(Rectangle((at, worker + 0.12), steps[item], 0.76, facecolor=COLOURS[sequence[item]],
                                     edgecolor="white"))
            at += int(steps[item])
        axis.text(at + 0.3, worker + 0.5, str(at), va="center", fontsize=8)
        longest = max(longest, at)
    axis.axvline(longest, color="#222222", linewidth=1, linestyle="--")
    axis.set(ylim=(WORKERS, 0), xlabel="steps")
    axis.set_yticks([worker + 0.5 for worker in range(WORKERS)], range(WORKERS))
    axis.set_ylabel("worker", fontsize=8)
    axis.tick_params(axis="y", length=0)
    ideal = int(steps.sum()) / WORKERS
    _title(axis, f"{TITLES[order]}\nends at {longest} (all the same: {ideal:.1f})")
    return longest


def _drawn(steps: np.ndarray) -> list[list[int]]:
    """Each worker's items where the next one goes to the worker that is free first."""
    free_at, taken = [(0, worker) for worker in range(WORKERS)], [[] for _ in range(WORKERS)]
    for item, count in enumerate(steps.tolist()):
        done, worker = free_at[0]
        taken[worker].append(item)
        heapq.heapreplace(free_at, (done + count, worker))
    return taken


def _title(axis: Axes, text: str) -> None:
    axis.set_title(text, fontsize=9, fontweight="bold", loc="left")
    axis.tick_params(labelsize=8)
    axis.xaxis.label.set_size(8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
