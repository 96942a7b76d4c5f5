"""Candidate tiles of each kernel, by tensor-core generation and head dimension.

Few, as a tile takes one to three seconds to compile. Chosen from offline compiles (ptxas 12.9) for sm_80, sm_90 and
sm_100, and on sm_90 from what tuning picked among twice as many on an H200. On a plain problem few spill, and then
little, but for dkdv on sm_100 (at most 490 bytes a thread); GQA (dkdv) and broadcast-Q (dq) nest one more loop, and
some tiles then spill up to 600, which tuning passes over. Warp groups read operands from shared memory; warps before
them, and on consumer GPUs after them, hold operands in registers, which leaves room for 32-key tiles only in dkdv at
D > 64. There sm_100 takes no more than 64 keys: accumulators of 128 exceed its 512 columns of tensor memory.
"""

from __future__ import annotations

import torch

from kernels.portable.options import TileOptions
from kernels.problem import JaggedProblem

# (kernel, tensor cores, D > 64) -> BLOCK_M, BLOCK_N, num_warps, num_stages
_CANDIDATES: dict[tuple[str, str, bool], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", "mma", False): ((128, 128, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3)),
    ("forward", "mma", True): ((128, 64, 8, 3), (64, 64, 8, 2), (64, 32, 4, 2)),
    ("forward", "wgmma", False): ((128, 64, 8, 3), (64, 128, 4, 2), (64, 64, 4, 3)),
    ("forward", "wgmma", True): ((128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3)),
    ("forward", "tcgen05", False): ((128, 64, 8, 3), (64, 128, 4, 2), (64, 64, 4, 3)),
    ("forward", "tcgen05", True): ((128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3)),
    ("dkdv", "mma", False): ((64, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dkdv", "mma", True): ((64, 32, 8, 2), (64, 32, 4, 3), (32, 32, 4, 2)),
    ("dkdv", "wgmma", False): ((64, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dkdv", "wgmma", True): ((64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dkdv", "tcgen05", False): ((64, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dkdv", "tcgen05", True): ((64, 64, 8, 1), (64, 64, 8, 2), (32, 64, 8, 2)),
    ("dq", "mma", False): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
    ("dq", "mma", True): ((128, 64, 8, 2), (128, 32, 8, 2), (32, 32, 4, 2)),
    ("dq", "wgmma", False): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
    ("dq", "wgmma", True): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
    ("dq", "tcgen05", False): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
    ("dq", "tcgen05", True): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
}
_TENSOR_CORES = {9: "wgmma", 10: "tcgen05"}  # by major compute capability; warps' own mma elsewhere
_SHORT, _MEDIUM = 128, 1024


def length_class(max_seqlen: int) -> str:
    """``short`` (at most 128), ``medium`` (at most 1024) or ``long``: lengths of one class share a tile."""
    return "short" if max_seqlen <= _SHORT else "medium" if max_seqlen <= _MEDIUM else "long"


def candidates(kernel: str, problem: JaggedProblem) -> list[TileOptions]:
    """Tiles worth timing for ``forward``, ``dkdv`` or ``dq``; for short sequences without 128-wide ones."""
    major, _ = torch.cuda.get_device_capability(problem.layout_k.device)
    return select(kernel, major, problem.head_dim, problem.layout_q.max_seqlen, problem.layout_k.max_seqlen)


def select(kernel: str, major: int, head_dim: int, max_seqlen_q: int, max_seqlen_k: int) -> list[TileOptions]:
    """`candidates` for a compute capability's major version."""
    widest_m, widest_n = (64 if length_class(length) == "short" else 128 for length in (max_seqlen_q, max_seqlen_k))
    tiles = [TileOptions(*tile) for tile in _CANDIDATES[kernel, _TENSOR_CORES.get(major, "mma"), head_dim > 64]]
    return [tile for tile in tiles if widest_m >= tile.BLOCK_M and widest_n >= tile.BLOCK_N]
