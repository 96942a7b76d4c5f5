"""The report's tables: environment, headline, throughput, padding, statuses; text cells, ready to be shown."""

from __future__ import annotations

import pandas as pd

from harness.headline import MeanSpeedup, mean_speedups
from harness.plot_parts import values
from harness.report.run_data import RunData, not_run
from harness.report.show import Note, Table
from harness.summary import failures, remarks
from harness.units import significant

OURS, RIVAL = "jfa", "fa4"
NAMES = {"fwd": "forward", "bwd": "backward"}
_PLACE = (("device", "gpu"), ("NVIDIA driver", "driver"), ("CUDA of torch", "cuda"), ("torch", "torch"),
          ("Triton", "triton"), ("Python", "python"))


def environment(run: RunData) -> Table:
    """On what, when and with which versions the run was measured."""
    rows = run.records
    dates = sorted(rows["date"])
    dirty = {True: " with changes", False: ""}
    commits = dict.fromkeys(f"{commit or 'unknown'}{dirty.get(changed, '')}"
                            for commit, changed in zip(rows["commit"], rows["dirty"], strict=True))
    lines = [("run", run.name), ("written", f"{dates[0]} to {dates[-1]}"), ("commit", ", ".join(commits))]
    lines += [(label, values(rows, column)) for label, column in _PLACE if values(rows, column)]
    lines += [(f"backend {name}", values(found, "backend_version") or "version unknown")
              for name, found in rows.groupby("backend", sort=False)]
    for label, column in (("SM clock", "sm_clock_mhz"), ("power", "power_w"), ("GPU temperature", "temperature_c")):
        if rows[column].notna().any():
            unit = {"sm_clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}[column]
            lines.append((label, f"{rows[column].min():.0f} to {rows[column].max():.0f} {unit} over the rows"))
    reasons = sorted({reason for cell in rows["throttle"] if cell for reason in cell.split("+")})
    lines.append(("reasons for a lowered clock", ", ".join(reasons) or "none seen"))
    if rows["ceiling_tflops"].notna().any():
        lines.append(("measured ceilings", f"{values(rows, 'ceiling_tflops')} TFLOP/s (matmul), "
                                           f"{values(rows, 'ceiling_tbps')} TB/s (copy)"))
    lines.append(("cache", " / ".join(cell for cell in values(rows, "cache").split(" / ") if cell)))
    return Table(pd.DataFrame(lines, columns=["", "value"]), labels=2)


def headline(run: RunData) -> Table | Note:
    """Geometric means of the speed-up over FA4 with their 95 % intervals; extremes with their cases."""
    means = mean_speedups(run.records)
    if not means:
        return Note("No backend has times on a case that FA4 has times on, so there is no speed-up to report.")
    return Table(pd.DataFrame([
        (each.backend, NAMES[each.direction], each.scope, f"{each.mean:.2f}x", f"{each.low:.2f} to {each.high:.2f}",
         f"{each.slowest:.2f}x ({each.slowest_case})", f"{each.fastest:.2f}x ({each.fastest_case})", str(each.cases))
        for each in _ours_first(means)],
        columns=["backend", "direction", "scope", "mean", "95 %", "slowest case", "fastest case", "cases"]), labels=3)


def headline_sentence(run: RunData) -> Note:
    """The headline of ``jfa`` in words, labelled with what it was measured on."""
    ours = {(each.scope, each.direction): each for each in mean_speedups(run.records) if each.backend == OURS}
    if not ours:
        return Note(f"`{OURS}` has no speed-up over `{RIVAL}` in this run.")
    place, version = values(run.records, "gpu") or "an unnamed device", _version(run.records, RIVAL)
    parts = []
    for scope in ("kernel", "operation"):
        said = [f"{NAMES[direction]} **{ours[scope, direction].mean:.2f}x** "
                f"[{ours[scope, direction].low:.2f}, {ours[scope, direction].high:.2f}]"
                for direction in NAMES if (scope, direction) in ours]
        if said:
            parts.append(f"in {scope} scope {', '.join(said)}")
    return Note(f"Measured on {place}: the speed of JFA over FlashAttention-4 {version}, geometric mean over cases "
                f"with its 95 % interval: {'; '.join(parts)}. The interval says how well this run knows the mean "
                "over these cases, not how it varies between cases, cards or days.")


def _version(records: pd.DataFrame, backend: str) -> str:
    return values(records[records["backend"] == backend], "backend_version")


def _ours_first(means: list[MeanSpeedup]) -> list[MeanSpeedup]:
    return sorted(means, key=lambda each: each.backend != OURS)


def throughput(run: RunData, direction: str, scope: str = "kernel") -> Table | Note:
    """TFLOP/s of useful work, a line per case and a column per backend; a status where there is no time."""
    rows = run.records[(run.records["direction"] == direction) & (run.records["scope"] == scope)]
    if rows.empty:
        return Note(f"No row of {scope} scope, {NAMES[direction]}.")
    backends = list(dict.fromkeys(rows["backend"]))
    lines = []
    for _, found in rows.groupby("case_id", sort=False):
        by_backend = found.set_index("backend")
        lines.append((found["case"].iloc[0], *(_throughput_cell(by_backend, name) for name in backends)))
    return Table(pd.DataFrame(lines, columns=["case", *backends]))


def _throughput_cell(by_backend: pd.DataFrame, name: str) -> str:
    if name not in by_backend.index:
        return ""
    row = by_backend.loc[name]
    return significant(row["tflops"]) if row["status"] == "ok" else str(row["status"])


def shapes(run: RunData) -> Table:
    """What was computed: a line per case, from the records alone."""
    lines = []
    for _, found in run.records.groupby("case_id", sort=False):
        row = found.iloc[0]
        heads = str(row["num_heads_q"])
        if row["num_heads_kv"] != row["num_heads_q"]:
            heads += f"/{row['num_heads_kv']}"
        mask = row["window"] or ("causal" if row["causal"] else "full")
        density = "" if pd.isna(row["density"]) else f"{row['density']:.2f}"
        forward = found[found["direction"] == "fwd"]
        shown = (forward if len(forward) else found).iloc[0]
        lines.append((row["case"], row["mode"], mask, str(row["batch"]), heads, str(row["head_dim"]),
                      row["distribution"], density, f"{row['total_q']:,}", f"{row['total_k']:,}",
                      _share(shown["tile_efficiency"]), _share(shown["padding_waste"])))
    return Table(pd.DataFrame(lines, columns=[
        "case", "mode", "mask", "batch", "heads", "D", "lengths", "density", "q tokens", "k tokens", "tile efficiency",
        "padding waste"]), labels=3)


def _share(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.1%}"


def statuses(run: RunData) -> Table:
    """How many rows of each backend came to which status."""
    counts = run.records.groupby(["backend", "status"], sort=False).size().unstack(fill_value=0)
    lines = [(name, *(str(count) if count else "" for count in row)) for name, row in
             zip(counts.index, counts.to_numpy(), strict=True)]
    return Table(pd.DataFrame(lines, columns=["backend", *counts.columns]))


def without_a_time(run: RunData) -> Note:
    """Every row that failed, with its reason; every row that the run never came to; remarks on timed ones."""
    parts = []
    for title, lines in (("Rows without a time", failures(run.records)),
                         ("Remarks on timed rows", remarks(run.records))):
        if lines:
            parts += [f"**{title}**", "", *(f"- {_plain(line)}" for line in lines), ""]
    missing = not_run(run)
    if len(missing):
        parts += ["**Asked for by the config, not in this file** (the run ended before them or left them out)", ""]
        for backend, found in missing.groupby("backend", sort=False):
            parts.append(f"- {backend}: " + ", ".join(
                f"`{row.case}` ({row.rows} rows)" for row in found.itertuples(index=False)))
    return Note("\n".join(parts) if parts else "Every row that the config asks for has a time.")


def _plain(text: str) -> str:
    """A message as text: Markdown's signs in it stand for themselves."""
    return "".join(f"\\{sign}" if sign in r"\`*_{}[]<>#|$~" else sign for sign in text)
