"""`harness profile`: a fixed, small set of Nsight Compute's metrics of each kernel of a case, as CSV."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends import registry
from harness.cases import Case
from harness.config import BackendConfig, CheckConfig
from harness.environment import ROOT
from harness.errors import UserError
from harness.profile_target import MARKER, NOT_OK

TIMEOUT_S = 600.0
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "wait", "math_pipe_throttle", "membar", "gmma")
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS: Mapping[str, str] = {  # column, with its unit -> Nsight Compute's name
    "duration_us": "gpu__time_duration.sum",
    "tensor_pipe_pct": "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "exp2_pipe_pct": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "fma_pipe_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "alu_pipe_pct": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_mb": "lts__t_bytes.sum",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_read_mb": "dram__bytes_read.sum",
    "dram_write_mb": "dram__bytes_write.sum",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    **{f"stall_{name}": _STALL.format(name) for name in STALLS},
}
SCALES = {"_us": 1e-3, "_mb": 1e-6}  # of base units, ns and bytes
NOT_HOPPER = {  # where there is no wgmma
    "tensor_pipe_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "stall_gmma": ""}
COLUMNS = ("case", "case_id", "backend", "direction", "launch", "kernel", "grid", "block", *METRICS)


@dataclass(frozen=True)
class Profile:
    """Rows by `COLUMNS` (values as text; empty for a metric that the device doesn't have), and the files written."""

    rows: tuple[dict[str, str], ...]
    csv_path: Path
    ptxas_path: Path | None


def profile(case: Case, backend: BackendConfig, check: CheckConfig, out_dir: Path,
            directions: Sequence[str] = ("fwd", "bwd"), ptxas: bool = False) -> Profile:
    """Check a case, then run it once a direction under Nsight Compute; writes ``profile-<case>-<backend>.csv``.

    Kernels see flushed caches and unlocked clocks. ``ptxas`` compiles Triton kernels anew and keeps what ptxas says of
    each as ``.ptxas.log`` beside the CSV. Raises `UserError` where ncu is missing, may not read the counters, or the
    backend can't run the case.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise UserError("ncu: Nsight Compute is not on the PATH; it comes with the CUDA toolkit, often as "
                        "/usr/local/cuda/bin/ncu")
    metrics = metrics_for(_capability())
    out_dir.mkdir(parents=True, exist_ok=True)
    stem = out_dir / f"profile-{case.name}-{backend.name}"
    job = {"backend": backend.backend, "options": backend.options, "device": "cuda", "case": case.to_json(),
           "directions": list(directions), "check": check.model_dump(mode="json")}
    environment = {**os.environ, **registry.create(backend.backend, backend.options).environment("cuda"),
                   "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    with tempfile.TemporaryDirectory() as temporary:
        if ptxas:
            environment |= {"TRITON_CACHE_DIR": temporary, "TRITON_DUMP_PTXAS_LOG": "1"}
        log = Path(temporary) / "ncu.csv"
        command = [ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw",
                   "--print-units", "base", "--log-file", str(log), "--metrics", ",".join(metrics.values()),
                   sys.executable, "-m", "harness.profile_target"]
        printed = _run(command, json.dumps(job), environment)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    _raise_for(printed, text, f"{case.name}, {backend.name}")
    rows = tuple({"case": case.name, "case_id": case.case_id, "backend": backend.name, **row}
                 for row in read_ncu(text, metrics, directions))
    if not rows:
        raise UserError(f"ncu: it profiled no kernel of {case.name}, {backend.name}: {_last(text)}")
    csv_path = stem.with_name(stem.name + ".csv")
    with csv_path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    ptxas_path = None
    if ptxas:
        ptxas_path = stem.with_name(stem.name + ".ptxas.log")
        ptxas_path.write_text("".join(line + "\n" for line in ptxas_lines(printed.stdout)), encoding="utf-8")
    return Profile(rows, csv_path, ptxas_path)


def metrics_for(capability: int) -> dict[str, str]:
    """`METRICS` of a device of that major compute capability. Those of Hopper have been tried, others not."""
    chosen = METRICS if capability == 9 else {**METRICS, **NOT_HOPPER}
    return {column: name for column, name in chosen.items() if name}


def read_ncu(text: str, metrics: Mapping[str, str], directions: Sequence[str]) -> Iterator[dict[str, str]]:
    """Rows of Nsight Compute's raw CSV by `COLUMNS`, but for case and backend; `MARKER` kernels part directions."""
    lines = [line for line in text.splitlines() if line.startswith('"')]  # others are its messages
    begun = launch = 0
    for row in list(csv.DictReader(lines))[1:]:  # the first holds units
        if MARKER in row["Kernel Name"]:
            begun, launch = begun + 1, 0
            continue
        launch += 1
        yield {"direction": directions[begun - 1], "launch": str(launch), "kernel": row["Kernel Name"],
               "grid": row["Grid Size"].replace(" ", ""), "block": row["Block Size"].replace(" ", ""),
               **{column: _value(row.get(name, ""), column) for column, name in metrics.items()}}


def ptxas_lines(text: str) -> list[str]:
    """What ptxas said, of all that a process printed: its own lines, and the indented ones that go on from them."""
    kept: list[str] = []
    within = False
    for line in text.splitlines():
        within = line.startswith("ptxas ") or (within and line.startswith("    "))
        if within:
            kept.append(line)
    return kept


def _value(text: str, column: str) -> str:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return ""  # n/a
    return f"{number * next((scale for end, scale in SCALES.items() if column.endswith(end)), 1.0):.6g}"


def _capability() -> int:
    import torch

    if not torch.cuda.is_available():
        raise UserError("profile: needs an NVIDIA GPU; `harness xray` reads compiled kernels without one")
    return torch.cuda.get_device_capability()[0]


def _run(command: Sequence[str], job: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=job, env=dict(environment), text=True, capture_output=True, cwd=ROOT,
                              timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"ncu: no end after {TIMEOUT_S:g} s; killed") from None


def _raise_for(printed: subprocess.CompletedProcess[Any], log: str, what: str) -> None:
    if "ERR_NVGPUCTRPERM" in log + printed.stdout + printed.stderr:
        raise UserError("ncu: this user may not read the GPU's counters (ERR_NVGPUCTRPERM); an administrator can "
                        "allow it, see NVIDIA's page of that name")
    if printed.returncode == NOT_OK or "==ERROR==" in log or printed.returncode:
        reason = _last(printed.stderr) if printed.returncode == NOT_OK else _last(log) or _last(printed.stderr)
        raise UserError(f"profile: {what}: {reason}")


def _last(text: str) -> str:
    """The last line that tells of an error, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith('"')]
    return ([line for line in lines if "ERROR" in line or "rror:" in line] or lines or ["it said nothing"])[-1]
