"""`Case`: one attention shape with its actual lengths, and the expansion of a config into cases."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import numpy as np

from kernels.mask import Mask

MODES = ("self", "cross", "short_kv", "broadcast_q")
HAZARDS = ("none", "stride0", "noncontiguous", "nonfinite_neighbours")


@dataclass(frozen=True, eq=False)
class Case:
    """One row of a sweep: what to compute, not with what or how often.

    ``lengths_q`` and ``lengths_k`` are int64 ``[B]``. With ``mode == "broadcast_q"`` every ``lengths_q[b]`` is the
    dense Q's length, and Q itself is stored once. ``hazard`` names how inputs are spoilt (see `harness.inputs`).
    ``distribution`` is a short label for people; ``density`` in the records comes from the lengths.
    """

    name: str
    mode: str
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    dtype: str
    mask: Mask
    lengths_q: np.ndarray = field(repr=False)
    lengths_k: np.ndarray = field(repr=False)
    distribution: str = ""
    hazard: str = "none"
    seed: int = 0

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.lengths_k)

    @property
    def broadcast_q(self) -> bool:
        """One dense Q for all sequences."""
        return self.mode == "broadcast_q"

    @property
    def case_id(self) -> str:
        """12 hex digits: a hash of the shape, mask, hazard, seed and actual lengths (not of the name)."""
        shape = [self.mode, self.num_heads_q, self.num_heads_kv, self.head_dim, self.dtype, self.mask.left,
                 self.mask.right, self.hazard, self.seed]
        digest = hashlib.sha256(json.dumps(shape).encode())
        digest.update(np.ascontiguousarray(self.lengths_q, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(self.lengths_k, dtype="<i8").tobytes())
        return digest.hexdigest()[:12]
