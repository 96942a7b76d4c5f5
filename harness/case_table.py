"""What a config would run: its cases with token counts, FLOPs, bytes and the floor, without running anything."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich.table import Table

from harness import flops
from harness.cases import Case
from harness.length_histogram import sparkline
from harness.rows import window_label
from harness.summary import new_table
from harness.units import scaled, significant


def describe_cases(cases: Sequence[Case], ceilings: flops.Ceilings) -> pd.DataFrame:
    """One row per case; names and units as in the records, ``_fwd`` and ``_bwd`` for what differs by direction."""
    rows = []
    for case in cases:
        row: dict[str, object] = {
            "case": case.name, "case_id": case.case_id, "mode": case.mode, "batch": case.batch,
            "num_heads_q": case.num_heads_q, "num_heads_kv": case.num_heads_kv, "head_dim": case.head_dim,
            "dtype": case.dtype, "causal": case.mask.right == 0, "window": window_label(case),
            "hazard": case.hazard, "distribution": case.distribution, "total_q": case.total_q, "total_k": case.total_k,
            "max_seqlen_q": case.max_seqlen_q, "max_seqlen_k": case.max_seqlen_k, "density": case.density}
        for name in ("fwd", "bwd"):
            work, moved = flops.attention_flops(case, name), flops.attention_bytes(case, name)
            row |= {f"flops_{name}": work, f"bytes_{name}": moved,
                    f"floor_ms_{name}": flops.floor_ms(work, moved, ceilings)}
        rows.append(row)
    return pd.DataFrame(rows)


def cases_table(cases: Sequence[Case], described: pd.DataFrame, title: str) -> Table:
    """`describe_cases` of ``cases`` for the terminal; key lengths are drawn from 0 to the longest."""
    table = new_table(title, case="left", id="left", mode="left", mask="left")
    table.add_column("key lengths", no_wrap=True)
    for heading in ("longest", "batch", "heads", "D", "q tokens", "k tokens", "density", "FLOPs fwd", "bwd",
                    "bytes fwd", "bwd", "floor ms fwd", "bwd"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, row in zip(cases, described.to_dict("records"), strict=True):
        heads = str(row["num_heads_q"])
        if row["num_heads_kv"] != row["num_heads_q"]:
            heads += f"/{row['num_heads_kv']}"
        table.add_row(
            str(row["case"]), str(row["case_id"]), str(row["mode"]),
            str(row["window"]) or ("causal" if row["causal"] else "full"), sparkline(case.lengths_k),
            f"{row['max_seqlen_k']:,}", str(row["batch"]), heads, str(row["head_dim"]), f"{row['total_q']:,}",
            f"{row['total_k']:,}",
            "-" if pd.isna(row["density"]) else f"{row['density']:.2f}",
            *(scaled(row[f"flops_{name}"], "FLOP") for name in ("fwd", "bwd")),
            *(scaled(row[f"bytes_{name}"], "B") for name in ("fwd", "bwd")),
            *(significant(row[f"floor_ms_{name}"]) for name in ("fwd", "bwd")))
    return table
