"""Load balance: how much work each worker of a persistent launch gets under each way of dealing the tiles.

Modelled from the lengths alone, with the tile list that the kernels use (`kernels.tile_schedule`). Work is counted in
steps, a step being one block of keys against one tile of queries: it is no time, and knows nothing of caches.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness import plot_parts as parts
from harness.cases import Case
from harness.report.run_data import RunData
from harness.report.show import Table
from kernels.hopper.options import SCHEDULES, VARIANTS
from kernels.jagged_layout import JaggedLayout
from kernels.tile_schedule import TileShape, deal, tile_records

COLOURS = {"none": "#7F7F7F", "sorted": "#56B4E9", "zigzag": "#D55E00", "dynamic": "#009E73"}
MULTIPROCESSORS = 132  # of an H200, where a run doesn't say


@dataclass(frozen=True)
class Launch:
    """How a forward is launched: its tiles, and the workers that take them."""

    variant: str
    shape: TileShape
    workers: int


def launch_of(impl: str, multiprocessors: int) -> Launch:
    """The launch of a Hopper forward by its name in the records, such as ``hopper/solo64-stale/zigzag``.

    Any other name gives one worker to each multiprocessor and tiles of 128 x 128.
    """
    family, *words = impl.split("/")
    variant = words[0].removesuffix("-stale") if words else ""
    if family == "hopper" and variant in VARIANTS:
        options = VARIANTS[variant]
        return Launch(variant, TileShape(options.block_m, options.block_n),
                      multiprocessors * options.ctas_per_sm * options.streams)
    return Launch("128 x 128 tiles", TileShape(128, 128), multiprocessors)


def item_work(case: Case, shape: TileShape, order: str) -> np.ndarray:
    """Steps of each item of a forward in the order of the list, int64 ``[tiles * num_heads_q]``."""
    layout_q, layout_k = JaggedLayout.from_lengths(case.lengths_q), JaggedLayout.from_lengths(case.lengths_k)
    records = tile_records(layout_q, layout_k, shape, order, case.mask, case.broadcast_q).astype(np.int64)
    len_q, row, len_k = records[:, 1], records[:, 2], records[:, 5]
    low, _ = case.mask.key_bounds(row, len_q, len_k)
    _, high = case.mask.key_bounds(np.minimum(row + shape.rows, len_q) - 1, len_q, len_k)
    steps = np.maximum(-(-high // shape.block) - low // shape.block, 1)  # a tile that sees nothing is still a turn
    return np.repeat(steps, case.num_heads_q)


def worker_work(case: Case, launch: Launch, schedule: str) -> np.ndarray:
    """Steps that each worker gets, int64 ``[workers]``; ``schedule`` is one of `kernels.hopper.options.SCHEDULES`.

    ``dynamic`` hands the next item of the sorted list to the worker that is free first, if time were steps.
    """
    order = "sorted" if schedule == "dynamic" else schedule
    work = item_work(case, launch.shape, order)
    if schedule == "dynamic":
        return _drawn(work, launch.workers)
    return np.array([int(work[items].sum()) for items in deal(len(work), launch.workers, schedule)], dtype=np.int64)


def _drawn(work: np.ndarray, workers: int) -> np.ndarray:
    free_at = [(0, worker) for worker in range(workers)]
    for steps in work.tolist():
        done, worker = free_at[0]
        heapq.heapreplace(free_at, (done + steps, worker))
    total = np.zeros(workers, dtype=np.int64)
    for done, worker in free_at:
        total[worker] = done
    return total


def longest_over_mean(work: np.ndarray) -> float:
    """The most that a worker gets over what it would get if all got the same; 1 is perfect."""
    return float(work.max() / work.mean()) if work.sum() else 1.0


def case_launches(run: RunData) -> dict[str, Launch]:
    """The launch of each case's forward by ``jfa`` (by its record), for the cases whose lengths are known."""
    device = (run.facts or {}).get("device", {})
    multiprocessors = int(device.get("multiprocessors") or MULTIPROCESSORS)
    ours = run.records[(run.records["backend"] == "jfa") & (run.records["direction"] == "fwd")]
    impls: Mapping[str, str] = dict(zip(ours["case_id"], ours["impl"], strict=True))
    measured = set(run.records["case_id"])
    return {case_id: launch_of(impls.get(case_id, ""), multiprocessors)
            for case_id in run.cases if case_id in measured}


def balance(run: RunData) -> pd.DataFrame:
    """One row per case: ``case, variant, workers``, and under each schedule's name its longest over its mean."""
    rows = [{"case": run.cases[case_id].name, "variant": launch.variant, "workers": launch.workers,
             **{name: longest_over_mean(worker_work(run.cases[case_id], launch, name)) for name in SCHEDULES}}
            for case_id, launch in case_launches(run).items()]
    return pd.DataFrame(rows, columns=["case", "variant", "workers", *SCHEDULES])


def balance_table(run: RunData) -> Table:
    """`balance` for a person."""
    found = balance(run)
    return Table(found.assign(**{name: found[name].map("{:.3f}".format) for name in SCHEDULES}).astype(str), labels=2)


def draw_balance(run: RunData, most: int = 3) -> Figure | str:
    """Histograms of the workers' work under each schedule, for the cases where it matters most.

    ``most`` is the number of cases. Returns why there is no figure where the run's lengths aren't known.
    """
    launches = case_launches(run)
    if not launches:
        return f"the lengths aren't known: {run.path.with_suffix('.run.json').name} isn't beside the CSV"
    work = {case_id: {name: worker_work(run.cases[case_id], launch, name) for name in SCHEDULES}
            for case_id, launch in launches.items()}
    gain = {case_id: longest_over_mean(found["none"]) / longest_over_mean(found["zigzag"])
            for case_id, found in work.items()}
    chosen = sorted(gain, key=lambda case_id: -gain[case_id])[:most]
    figure, drawn = parts.panels(
        parts.backend_styles(["jfa"]), [""] * len(chosen), legend=False, left=0.65, gutter=0.3, panel=(3.3, 3.4),
        title="Work of each worker of the forward, by the way its tiles are dealt (modelled)",
        text="Modelled from the lengths of the run and the kernels' tile list; work is counted in steps (a block of "
             "keys against a tile of queries), nothing here is a time. The launch ends with its last worker: the "
             "tick with a figure.")
    for axes, case_id in zip(drawn, chosen, strict=True):
        launch, case = launches[case_id], run.cases[case_id]
        relative = {name: found / max(found.mean(), 1e-9) for name, found in work[case_id].items()}
        low = min(float(found.min()) for found in relative.values())
        high = max(float(found.max()) for found in relative.values())
        margin = max(0.02, 0.06 * (high - low))
        edges = np.linspace(low - margin, high + margin, 41)
        for place, name in enumerate(SCHEDULES):
            counts, _ = np.histogram(relative[name], edges)
            base = len(SCHEDULES) - 1 - place
            axes.bar(edges[:-1], counts / counts.max() * 0.72, width=np.diff(edges), align="edge", bottom=base,
                     color=COLOURS[name], zorder=2)
            last = float(relative[name].max())
            axes.vlines(last, base, base + 0.72, color="black", linewidth=1.0, zorder=3)
            axes.annotate(f"{last:.2f}×", (last, base + 0.74), xytext=(0, 1), textcoords="offset points", ha="center",
                          fontsize=8, color="#222222")
        axes.axvline(1.0, color=parts.GREY, linewidth=0.8, zorder=1)
        axes.set_title(f"{case.name}\n{launch.variant}, {launch.workers} workers", loc="left", fontsize=9)
        axes.set_yticks([len(SCHEDULES) - 1 - place + 0.3 for place in range(len(SCHEDULES))], SCHEDULES)
        axes.set_ylim(-0.05, len(SCHEDULES))
        axes.tick_params(axis="y", length=0, labelleft=axes is drawn[0])
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("work over its mean", color=parts.GREY)
        axes.grid(axis="x")
    return figure
