"""Cases and configs small enough to compute in milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.cases import Case
from harness.config import BenchConfig
from kernels.mask import Mask


def tiny_case(name: str = "tiny", lengths_q: tuple[int, ...] = (5, 0, 70, 1), lengths_k: tuple[int, ...] | None = None,
              **values: Any) -> Case:
    """Two query heads over one KV head, D = 16, bf16."""
    values = {"mode": "self", "num_heads_q": 2, "num_heads_kv": 1, "head_dim": 16, "dtype": "bf16", "mask": Mask(),
              **values}
    return Case(name=name, lengths_q=np.asarray(lengths_q), lengths_k=np.asarray(lengths_k or lengths_q), **values)


def tiny_config(backends: list[Any], case_names: list[str], **values: Any) -> BenchConfig:
    """One case a name, of its own lengths each, on a CPU in no time."""
    cases = [{"name": name, "mode": "self", "num_heads_q": 1, "head_dim": 8, "seed": index,
              "lengths": {"kind": "uniform", "max": 12}, "batch": 3} for index, name in enumerate(case_names)]
    values = {"timing": {"warmup": 1, "min_samples": 30, "max_samples": 30, "max_seconds": 0.1}, **values}
    return BenchConfig.model_validate({"name": "tiny", "backends": backends, "cases": cases, **values})
