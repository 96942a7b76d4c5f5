"""Made-up records with the shape of real ones: what the tests of tables and plots draw. No figure is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from harness.records import Record

# name, mode, batch, heads, head_dim, causal, mean length, longest, share of the floor that FA4 reaches
GEM_LIKE = (
    ("self_u256", "self", 1152, 4, 128, False, 128, 256, 0.28),
    ("self_u512", "self", 1152, 4, 128, False, 256, 512, 0.31),
    ("self_u1024", "self", 1152, 4, 128, False, 512, 1024, 0.51),
    ("self_u1024_causal", "self", 1152, 4, 128, True, 512, 1024, 0.31),
    ("self_u2048", "self", 1152, 4, 128, False, 1024, 2048, 0.64),
    ("self_all1024", "self", 1152, 4, 128, False, 1024, 1024, 0.67),
    ("self_u3686_4096", "self", 512, 4, 128, False, 3891, 4096, 0.83),
    ("short_kv256_q512", "short_kv", 1152, 4, 128, False, 256, 256, 0.31),
    ("short_kv256_q2048", "short_kv", 1152, 4, 128, False, 256, 256, 0.31),
    ("cross_u512_u1024", "cross", 1152, 4, 128, False, 512, 1024, 0.45),
    ("broadcast_q32_u1024", "broadcast_q", 1152, 4, 128, False, 512, 1024, 0.57),
    ("broadcast_q192_u2048", "broadcast_q", 1152, 4, 128, False, 1024, 2048, 0.38),
    ("self_u1024_d64", "self", 1152, 8, 64, False, 512, 1024, 0.35),
    ("self_u1024_gqa", "self", 1152, 8, 128, False, 512, 1024, 0.45),
    ("lognormal_8192", "self", 4096, 4, 128, False, 110, 8192, 0.26),
    ("dense_4x4096", "self", 4, 16, 128, False, 4096, 4096, 0.93),
)
GPU_BACKENDS = {"jfa": 1.62, "jfa_triton": 0.83, "fa4": 1.0, "cudnn": 0.92, "fa2": 0.7, "flex": 0.61, "padded": 0.33}
CEILING_TFLOPS, CEILING_TBPS = 690.0, 4.3
EXCUSES = {
    ("cudnn", "broadcast_q"): ("unsupported", "no broadcast-Q: ragged Q only"),
    ("flex", "broadcast_q"): ("unsupported", "no broadcast-Q: the block mask needs a packed Q"),
    ("padded", "lognormal_8192"): ("oom", "CUDA out of memory: tried to allocate 256.00 GiB"),
    ("flex", "lognormal_8192"): ("hang", "no result after 300 s"),
    ("fa2", "self_u1024_gqa"): ("wrong", "dk: error 3.1e-02 above the tolerance 4.0e-03"),
    ("flex", "self_u3686_4096"): ("crash", "CUDA error: an illegal memory access was encountered"),
}


MEASURED = ("latency_ms", "latency_ms_p20", "latency_ms_p80", "latency_ms_ci_low", "latency_ms_ci_high", "n_samples",
            "tflops", "floor_share", "speedup_vs_fa4", "speedup_vs_fa4_ci_low", "speedup_vs_fa4_ci_high")


def gem_like(backends: Mapping[str, float] = GPU_BACKENDS, cases: Sequence[tuple] = GEM_LIKE) -> list[Record]:
    """Sixteen cases on seven backends, both directions and scopes, with every kind of failure somewhere."""
    random = np.random.default_rng(7)
    records = []
    for name, mode, batch, heads, head_dim, causal, mean, longest, share in cases:
        rows_q = 32 if "q32" in name else 192 if "q192" in name else 1024 if "q2048" in name else mean
        pairs = batch * rows_q * mean * (1 if mean == longest else 1.33) * (0.5 if causal else 1)
        for backend, factor in backends.items():
            for direction in ("fwd", "bwd"):
                flops = int(4 * heads * head_dim * pairs * (1 if direction == "fwd" else 2.5))
                moved = int(2 * heads * head_dim * batch * (rows_q + mean) * (2 if direction == "fwd" else 4))
                floor = max(flops / CEILING_TFLOPS, moved / CEILING_TBPS) / 1e9
                for scope in ("kernel", "operation"):
                    status, message = EXCUSES.get((backend, mode)) or EXCUSES.get((backend, name)) or ("ok", "")
                    theirs = floor / share * (1.0 if scope == "kernel" else 1.04)
                    latency = max(theirs / factor ** (1.3 - 1.1 * share) * random.uniform(0.95, 1.05), floor / 0.94)
                    latency = theirs if backend == "fa4" else latency
                    row = {
                        "run_id": "gem-20260102T030405Z", "date": "2026-01-02T03:04:05Z",
                        "case_id": hashlib.sha256(name.encode()).hexdigest()[:12], "case": name, "mode": mode,
                        "batch": batch, "num_heads_q": heads, "num_heads_kv": heads, "head_dim": head_dim,
                        "dtype": "bf16", "causal": causal, "window": "", "hazard": "none",
                        "distribution": f"uniform(1, {longest})", "density": mean / longest, "total_q": batch * rows_q,
                        "total_k": batch * mean, "max_seqlen_q": longest, "max_seqlen_k": longest, "backend": backend,
                        "impl": f"{backend}/default", "backend_version": "4.0.0b99" if backend == "fa4" else "0.1.0",
                        "direction": direction, "scope": scope, "status": status, "message": message, "cache": "cold",
                        "flops": flops, "bytes": moved, "ceiling_tflops": CEILING_TFLOPS, "ceiling_tbps": CEILING_TBPS,
                        "floor_ms": floor, "tile_flops": int(flops * (mean + 90) / mean),
                        "tile_efficiency": mean / (mean + 90), "padding_waste": 1 - (mean / longest) ** 1.6,
                        "device_type": "cuda", "gpu": "Example GPU", "driver": "555.55", "cuda": "13.0",
                        "torch": "2.99.0", "triton": "fbtriton 3.99.0", "python": "3.12.0", "commit": "0123456789ab",
                        "dirty": False, "config_hash": "c0ffee", "seed": 0,
                    }
                    if status == "ok":
                        faster = theirs / latency if "fa4" in backends else None
                        row |= dict(zip(MEASURED, (
                            latency, latency * 0.99, latency * 1.02, latency * 0.97, latency * 1.03, 30,
                            flops / latency / 1e9, floor / latency, faster, faster and faster * 0.96,
                            faster and faster * 1.04), strict=True))
                    records.append(Record(**row))
    return records


def smoke_like() -> list[Record]:
    """A CPU run: two timed backends and one that is untimed; slow, and no FA4."""
    cases = [(name, mode, 4, 2, 64, causal, mean, longest, 0.2) for name, mode, causal, mean, longest in (
        ("self_u64", "self", False, 32, 64), ("self_u64_causal", "self", True, 32, 64),
        ("short_kv", "short_kv", False, 16, 16), ("broadcast", "broadcast_q", False, 40, 96))]
    changes: dict[str, object] = {"gpu": "Example CPU", "driver": "", "cuda": "", "device_type": "cpu",
                                  "ceiling_tflops": 0.2, "ceiling_tbps": 0.01, "run_id": "smoke-20260102T030405Z"}
    untimed = dict.fromkeys(MEASURED) | {"n_samples": 0, "status": "untimed",
                                         "message": "Triton's interpreter: checked, its time means nothing"}
    slower = CEILING_TFLOPS / 0.2
    records = []
    for record in gem_like({"sdpa_loop": 0.8, "padded": 1.1, "jfa_triton": 1.0}, cases):
        times = {name: value * slower for name in ("floor_ms", *MEASURED[:5])
                 if (value := getattr(record, name)) is not None} | {"tflops": record.tflops and record.tflops / slower}
        unlike = untimed if record.backend == "jfa_triton" else {}
        records.append(Record(**record.model_dump() | changes | times | unlike))
    return records
