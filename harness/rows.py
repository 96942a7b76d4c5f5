"""`Row`: what is known so far of one (case, backend, direction, scope), and the `Record` that it becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from harness import flops
from harness.cases import Case
from harness.environment import Checkout, DeviceEnvironment
from harness.records import Record, Sample, Status
from harness.statistics import ratio_interval, summarize
from harness.telemetry import Telemetry, merge

RIVAL = "fa4"  # label of the backend that speed-ups are over


@dataclass(frozen=True)
class Block:
    """Samples taken in one go, in ms, with the NVML readings around them."""

    latencies_ms: tuple[float, ...]
    telemetry: Telemetry


@dataclass
class Row:
    """One (direction, scope) of a backend on a case. Filled in by checking, then by timing."""

    direction: str
    scope: str
    status: Status | None = None
    message: str = ""
    impl: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    error_share: float | None = None
    compile_s: float | None = None
    peak_memory_mib: float | None = None
    blocks: list[Block] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """``(direction, scope)``."""
        return (self.direction, self.scope)

    @property
    def latencies_ms(self) -> list[float]:
        """Samples of all blocks."""
        return [latency for block in self.blocks for latency in block.latencies_ms]

    def fail(self, status: Status, message: str) -> None:
        """The row can't be measured; what was sampled no longer counts."""
        self.status, self.message = status, message or status.value
        self.blocks.clear()

    def note(self, text: str) -> None:
        """Adds a remark to the message."""
        self.message = "; ".join(filter(None, (self.message, text)))

    def update(self, event: Mapping[str, Any]) -> None:
        """Takes in what a worker found when it checked the row."""
        self.status, self.message, self.impl = Status(event["status"]), event["message"], event["impl"]
        # Results of another dtype may be finite where their fp32 errors aren't; the message says what is wrong.
        self.errors = {name: error for name, error in event["errors"].items() if math.isfinite(error)}
        share = event["share"]
        self.error_share = share if share is not None and math.isfinite(share) else None
        self.compile_s, self.peak_memory_mib = event["compile_s"], event["peak_memory_mib"]


@dataclass(frozen=True)
class RunFacts:
    """What all records of a run share."""

    run_id: str
    config_hash: str
    cache: str
    checkout: Checkout
    ceilings: flops.Ceilings | None


@dataclass(frozen=True)
class BackendFacts:
    """What all records of a backend share."""

    label: str
    version: str
    environment: DeviceEnvironment


def make_record(run: RunFacts, backend: BackendFacts, case: Case, row: Row,
                rival_ms: Sequence[float] | None = None) -> Record:
    """The record of a finished row. ``rival_ms``: samples of `RIVAL` on the same row, if it has any."""
    status = row.status or Status.CRASH
    of_case = case_values(case, row.direction)
    floor_ms = flops.floor_ms(of_case["flops"], of_case["bytes"], run.ceilings) if run.ceilings else None
    environment = backend.environment
    measured: dict[str, Any] = {f"error_{name}": error for name, error in row.errors.items()}
    if status is Status.OK:
        measured |= _timed_values(row, of_case["flops"], floor_ms, rival_ms)
    return Record(
        run_id=run.run_id, date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        backend=backend.label, impl=row.impl, backend_version=backend.version, direction=row.direction,
        scope=row.scope, status=status, message=row.message or ("" if status is Status.OK else status.value),
        cache=run.cache,
        ceiling_tflops=run.ceilings.matmul_tflops if run.ceilings else None,
        ceiling_tbps=run.ceilings.copy_tbps if run.ceilings else None, floor_ms=floor_ms,
        error_share=row.error_share, compile_s=row.compile_s, peak_memory_mib=row.peak_memory_mib,
        device_type=environment.device_type, gpu=environment.gpu, driver=environment.driver, cuda=environment.cuda,
        torch=environment.torch, triton=environment.triton, python=environment.python, commit=run.checkout.commit,
        dirty=run.checkout.dirty, config_hash=run.config_hash, **of_case, **measured)


def case_values(case: Case, direction: str) -> dict[str, Any]:
    """The columns that follow from the case and the direction alone."""
    n_flops = flops.attention_flops(case, direction)
    tile, padded = flops.tile_flops(case, direction), flops.padded_flops(case, direction)
    return {
        "case_id": case.case_id, "case": case.name, "mode": case.mode, "batch": case.batch,
        "num_heads_q": case.num_heads_q, "num_heads_kv": case.num_heads_kv, "head_dim": case.head_dim,
        "dtype": case.dtype, "causal": case.mask.right == 0, "window": window_label(case), "hazard": case.hazard,
        "distribution": case.distribution, "density": case.density, "total_q": case.total_q, "total_k": case.total_k,
        "max_seqlen_q": case.max_seqlen_q, "max_seqlen_k": case.max_seqlen_k, "seed": case.seed, "flops": n_flops,
        "bytes": flops.attention_bytes(case, direction), "tile_flops": tile,
        "tile_efficiency": n_flops / tile if tile else None, "padding_waste": 1 - n_flops / padded if padded else None}


def _timed_values(row: Row, n_flops: int, floor_ms: float | None, rival_ms: Sequence[float] | None) -> dict[str, Any]:
    summary = summarize(row.latencies_ms)
    latency = summary.median
    telemetry = merge(block.telemetry for block in row.blocks)
    values: dict[str, Any] = {
        "latency_ms": latency.value, "latency_ms_p20": summary.p20, "latency_ms_p80": summary.p80,
        "latency_ms_ci_low": latency.low, "latency_ms_ci_high": latency.high, "n_samples": summary.n,
        "tflops": n_flops / latency.value / 1e9, "floor_share": None if floor_ms is None else floor_ms / latency.value,
        "sm_clock_mhz": telemetry.sm_clock_mhz, "power_w": telemetry.power_w,
        "temperature_c": telemetry.temperature_c, "throttle": telemetry.throttle}
    if rival_ms:
        ratio = ratio_interval(rival_ms, row.latencies_ms)
        values |= {"speedup_vs_fa4": ratio.value, "speedup_vs_fa4_ci_low": ratio.low,
                   "speedup_vs_fa4_ci_high": ratio.high}
    return values


def make_samples(run_id: str, label: str, case: Case, row: Row) -> list[Sample]:
    """The raw samples of a row."""
    return [Sample(run_id, case.case_id, label, row.direction, row.scope, number, index, latency,
                   block.telemetry.sm_clock_mhz, block.telemetry.power_w, block.telemetry.temperature_c,
                   block.telemetry.throttle)
            for number, block in enumerate(row.blocks) for index, latency in enumerate(block.latencies_ms)]


def window_label(case: Case) -> str:
    """``left:right`` with ``*`` for no bound; empty where the mask is full or only causal."""
    left, right = case.mask.left, case.mask.right
    if left is None and right in (None, 0):
        return ""
    return ":".join("*" if bound is None else str(bound) for bound in (left, right))
