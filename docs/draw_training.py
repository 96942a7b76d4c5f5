"""Draws docs/images/gem_block.png: the committed losses of examples/train_gem_block.py, by attention and device.

    python docs/draw_training.py [OUT.png]
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.train_gem_block import draw as draw_losses  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "gem_block.png"
LOSSES = ROOT / "results" / "baselines" / "nvidia-h200" / "gem_block.csv"


def draw(out: Path) -> None:
    """Write the picture."""
    losses: dict[str, list[float]] = defaultdict(list)
    speeds: dict[str, float] = {}
    with LOSSES.open(newline="") as file:
        for row in csv.DictReader(file):
            name = f"{row['attention']} on {row['device']}"
            losses[name].append(float(row["loss"]))
            speeds[name] = float(row["tokens_per_s"])
    draw_losses(out, {name: (each, speeds[name]) for name, each in losses.items()}, "the devices named")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
