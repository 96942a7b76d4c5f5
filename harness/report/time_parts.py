"""Where the time of an operation goes: the kernel, moving a shared Q, and all else that a training step pays."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from harness import plot_parts as parts
from harness.flops import ELEMENT_BYTES
from harness.units import significant

EXPANDED = "expanded"  # a part of `impl` where Q is copied for every sequence
PARTS = ("kernel_ms", "moving_q_ms", "rest_ms")
COLOURS = {"moving_q_ms": "#F0C419", "rest_ms": "#CFCFCF"}  # a kernel has its backend's
LABELS = {"moving_q_ms": "expanding Q, summing its dQ (modelled: bytes / copy rate)",
          "rest_ms": "the rest (difference): schedule, offsets, autograd, launches"}


def time_parts(records: pd.DataFrame, backends: tuple[str, ...] = ("jfa", "fa4")) -> pd.DataFrame:
    """One row per (case, direction, backend) with times in both scopes; all times in ms.

    ``operation_ms = kernel_ms + moving_q_ms + rest_ms``. ``kernel_ms`` and ``operation_ms`` are measured medians.
    ``moving_q_ms`` is modelled, and only for a backend that copies a shared Q for every sequence: the bytes of that
    copy (forward), or of reading the gradients of all copies (backward), over the copy rate measured in the run, and no
    more than the difference of the two scopes. ``rest_ms`` is what remains of the difference; below 0 where the
    operation's median came out below the kernel's.
    """
    timed = records[(records["status"] == "ok") & records["backend"].isin(backends)]
    keys = ["case_id", "case", "direction", "backend"]
    kernel = timed[timed["scope"] == "kernel"][[*keys, "latency_ms"]]
    operation = timed[timed["scope"] == "operation"]
    both = operation.merge(kernel, on=keys, suffixes=("", "_kernel"))
    difference = both["latency_ms"] - both["latency_ms_kernel"]
    if both.empty:
        return pd.DataFrame(columns=[*keys, *PARTS, "operation_ms"])
    element = both["dtype"].map(ELEMENT_BYTES)
    row_bytes = both["num_heads_q"] * both["head_dim"] * element
    moved = (both["total_q"] + both["max_seqlen_q"]) * row_bytes  # one side is all copies, the other the dense Q
    copies = (both["mode"] == "broadcast_q") & both["impl"].str.split("/").map(lambda names: EXPANDED in names)
    modelled = (moved / both["ceiling_tbps"] / 1e9).where(copies & both["ceiling_tbps"].notna(), 0.0)
    modelled = modelled.clip(upper=difference.clip(lower=0.0))
    return pd.DataFrame({
        **{key: both[key] for key in keys}, "kernel_ms": both["latency_ms_kernel"], "moving_q_ms": modelled,
        "rest_ms": difference - modelled, "operation_ms": both["latency_ms"]})


def draw_time_parts(records: pd.DataFrame, backends: tuple[str, ...] = ("jfa", "fa4")) -> Figure | str:
    """Bars of each operation's parts, a bar per backend and case; a figure, or why there is none.

    The bars of a case and direction are scaled to its longest operation, so that shares and speeds both show.
    """
    found = time_parts(records, backends)
    if found.empty:
        return "no backend has times in both kernel and operation scope"
    measured = records[(records["status"] == "ok") & records["backend"].isin(backends)]
    names = parts.directions(found)
    cases = list(dict.fromkeys(zip(found["case_id"], found["case"], strict=True)))
    places = {case_id: float(index) for index, (case_id, _) in enumerate(cases)}
    styles = parts.backend_styles([name for name in backends if (found["backend"] == name).any()])
    figure, drawn = parts.panels(
        styles, names, title="Where an operation's time goes (100 % is the case's slower backend)", legend=False,
        text=f"{parts.caption(measured)} To the right of each bar: the operation's median in "
             "ms. The modelled part is the least that it could take.",
        panel=(4.0, parts.ROW_IN * 1.15 * len(cases)), left=parts.label_width(label for _, label in cases), gutter=0.95,
        legend_lines=2)
    height = 0.84 / len(styles)
    for axes, direction in zip(drawn, names, strict=True):
        here = found[found["direction"] == direction]
        longest = here.groupby("case_id")["operation_ms"].max()
        for rank, (backend, style) in enumerate(styles.items()):
            mine = here[here["backend"] == backend]
            y = mine["case_id"].map(places) - 0.42 + height * (rank + 0.5)
            scale = 1 / mine["case_id"].map(longest)
            left = pd.Series(0.0, index=mine.index)
            for part in PARTS:
                width = mine[part].clip(lower=0.0) * scale
                axes.barh(y, width, left=left, height=height * 0.9, color=COLOURS.get(part, style.colour), zorder=2)
                left += width
            for at, end, total in zip(y, left, mine["operation_ms"], strict=True):
                axes.annotate(f"{backend} {significant(total)}", (end, at), xytext=(4, 0), textcoords="offset points",
                              va="center", fontsize=7.5, color=style.colour, annotation_clip=False)
        axes.set_yticks(range(len(cases)), [label for _, label in cases])
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="x")
    looks = {f"{name}: kernel (measured, kernel scope)": style.colour for name, style in styles.items()}
    looks |= {LABELS[part]: COLOURS[part] for part in PARTS if part in LABELS}
    parts.add_legend(figure, [Line2D([], [], linestyle="none", marker="s", markersize=8, color=colour, label=label)
                              for label, colour in looks.items()], columns=2)
    return figure
