"""The report's pictures, each from a run's files alone, with a text that says what it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from harness import plot_parts as parts
from harness.plots import draw_plot
from harness.report.ablations import draw_ablation
from harness.report.balance import draw_balance
from harness.report.published import draw_published, read_published
from harness.report.roofline import draw_roofline
from harness.report.run_data import RunData
from harness.report.show import Picture
from harness.report.time_parts import draw_time_parts
from harness.report.trends import draw_trends

RUN_PLOTS = {
    "tflops": "TFLOP/s of each backend on each case, forward and backward",
    "speedup": "Speed-up of each backend over FA4 on each case, forward and backward",
    "floor_share": "Share of the floor that each backend reaches, against the mean key length",
    "padding_waste": "Share of the FLOPs that padding and whole tiles would waste, for each case",
}


def run_plot(run: RunData, name: str, scope: str = "kernel") -> Picture:
    """One of the plots that `harness run` writes beside its CSV; ``name`` is a key of `RUN_PLOTS`."""
    return _picture(lambda: draw_plot(name, run.records, scope), f"{RUN_PLOTS[name]} ({scope} scope)")


def trends(run: RunData) -> Picture:
    """Speed-up of ``jfa`` over FA4 against mean length, density and batch."""
    return _picture(lambda: draw_trends(run.records), "Speed-up over FA4 against mean key length, density and batch")


def roofline(run: RunData) -> Picture:
    """Every timed case under the device's measured roof."""
    return _picture(lambda: draw_roofline(run.records), "Roofline: TFLOP/s against FLOP per byte, with every case")


def time_parts(run: RunData) -> Picture:
    """Kernel, moving a shared Q, and the rest of each operation."""
    return _picture(lambda: draw_time_parts(run.records), "Parts of the time of each operation, for jfa and fa4")


def balance(run: RunData) -> Picture:
    """Histograms of the workers' work under each way of dealing tiles (modelled)."""
    return _picture(lambda: draw_balance(run), "Work of each worker under the four schedules (modelled)")


def ablation(path: Path) -> Picture:
    """What each switch is worth in one ablation run."""
    return _picture(lambda: draw_ablation(path), f"Latency of each variant over the full kernel's: {path.stem}")


def published() -> Picture:
    """B200 figures of others, marked as such."""
    return _picture(lambda: draw_published(read_published()), "TFLOP/s on a B200: published, not measured here")


def _picture(draw: Callable[[], Figure | str], text: str) -> Picture:
    with matplotlib.rc_context(rc=parts.RC):
        return Picture(draw(), text)
