"""The one FLOP count, and what else a case costs at least: bytes that must move, whole tiles, padding, the floor.

Forward: ``4 * H * D`` per visible (query, key) pair: two products of ``D`` multiply-adds. Backward: 2.5 times that,
five products instead of two. Pairs that the mask hides and padding don't count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.cases import Case
from kernels.mask import Mask

ELEMENT_BYTES = {"bf16": 2, "fp16": 2}
LSE_BYTES = 4


@dataclass(frozen=True)
class Ceilings:
    """What a device reaches on large plain work: matmul TFLOP/s in bf16, and copy TB/s (read plus written)."""

    matmul_tflops: float
    copy_tbps: float


def attention_flops(case: Case, direction: str) -> int:
    """FLOPs of the visible pairs, ``direction`` being ``fwd`` or ``bwd`` (the backward alone)."""
    return _flops(case, case.visible_pairs, direction)


def tile_flops(case: Case, direction: str, block_m: int = 128, block_n: int = 128) -> int:
    """FLOPs of all ``block_m x block_n`` tiles, whole, that hold at least one visible pair."""
    pairs = visible_tiles(case.mask, case.lengths_q, case.lengths_k, block_m, block_n).sum() * block_m * block_n
    return _flops(case, int(pairs), direction)


def padded_flops(case: Case, direction: str) -> int:
    """FLOPs of the same batch padded to its longest queries and keys, under the same mask."""
    longest = case.mask.visible_pairs(np.array([case.max_seqlen_q]), np.array([case.max_seqlen_k]))
    return _flops(case, case.batch * int(longest.sum()), direction)


def attention_bytes(case: Case, direction: str) -> int:
    """Bytes that must move: each input read once, each output written once.

    Forward reads q, k, v and writes out, lse. Backward reads q, k, v, out, dout, lse and writes dq, dk, dv. A dense
    (broadcast) q is stored once, and so is its dq.
    """
    element = ELEMENT_BYTES[case.dtype]
    query_rows = case.max_seqlen_q if case.broadcast_q else case.total_q
    query = query_rows * case.num_heads_q * case.head_dim * element
    out = case.total_q * case.num_heads_q * case.head_dim * element
    key = case.total_k * case.num_heads_kv * case.head_dim * element
    lse = case.total_q * case.num_heads_q * LSE_BYTES
    if _is_backward(direction):
        return 2 * query + 4 * key + 2 * out + lse
    return query + 2 * key + out + lse


def floor_ms(flops: int, n_bytes: int, ceilings: Ceilings) -> float:
    """The least time in ms in which a device with these ceilings could do it: the slower of computing and moving."""
    return 1e3 * max(flops / (ceilings.matmul_tflops * 1e12), n_bytes / (ceilings.copy_tbps * 1e12))


def visible_tiles(mask: Mask, lengths_q: np.ndarray, lengths_k: np.ndarray, block_m: int, block_n: int) -> np.ndarray:
    """Number of ``block_m x block_n`` tiles of each sequence that hold a visible pair, int64 ``[B]``."""
    lengths_q, lengths_k = np.asarray(lengths_q, dtype=np.int64), np.asarray(lengths_k, dtype=np.int64)
    rows = -(-lengths_q // block_m)  # tiles of queries, [B]
    if mask.is_full:
        return rows * -(-lengths_k // block_n)
    sequence = np.repeat(np.arange(len(rows)), rows)
    first = (np.arange(len(sequence)) - (np.cumsum(rows) - rows)[sequence]) * block_m
    last = np.minimum(first + block_m, lengths_q[sequence]) - 1
    # Bounds rise with the query, and rows in between leave no gap: a tile row sees [low of first, high of last).
    low, _ = mask.key_bounds(first, lengths_q[sequence], lengths_k[sequence])
    _, high = mask.key_bounds(last, lengths_q[sequence], lengths_k[sequence])
    tiles = np.where(high > low, -(-high // block_n) - low // block_n, 0)
    return np.bincount(sequence, weights=tiles, minlength=len(rows)).astype(np.int64)


def _flops(case: Case, pairs: int, direction: str) -> int:
    forward = 4 * case.num_heads_q * case.head_dim * pairs
    return forward * 5 // 2 if _is_backward(direction) else forward


def _is_backward(direction: str) -> bool:
    if direction not in ("fwd", "bwd"):
        raise ValueError(f"direction: must be fwd or bwd, got {direction!r}")
    return direction == "bwd"
