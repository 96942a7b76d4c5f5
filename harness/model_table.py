"""Modelled figures for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from harness.model_records import ModelledRecord
from harness.summary import new_table
from harness.units import significant


def model_table(records: Sequence[ModelledRecord]) -> Table:
    """One line per row: time, throughput and what bounds it; its status and why where there is no figure."""
    machines = " / ".join(dict.fromkeys(record.machine for record in records))
    table = new_table(f"Modelled for {machines}, not measured: kernel scope", case="left", direction="left",
                      variant="left", impl="left", ms="right", **{"TFLOP/s": "right"}, MHz="right")
    table.add_column("bound by", no_wrap=True)
    for record in records:
        if record.predicted_ms is None:
            cells: list[str | Text] = [Text(record.status.value, style="red"), "", "", record.message]
        else:
            assert record.predicted_tflops is not None
            assert record.predicted_clock_mhz is not None
            cells = [f"{record.predicted_ms:.4g}", significant(record.predicted_tflops),
                     f"{record.predicted_clock_mhz:.0f}", record.bound_by]
        table.add_row(record.case, record.direction, record.backend, record.impl, *cells)
    return table
