"""Candidate tiles of each kernel, by tensor-core generation and head dimension.

Chosen from offline compiles (ptxas 12.9) for sm_80, sm_90 and sm_100: as many as possible that spill nothing, none
that spills more than 140 bytes a thread on a plain problem. GQA (dkdv) and broadcast-Q (dq) nest one more loop, and
some tiles then spill up to 600; tuning passes those over. Warp groups (sm_90, sm_100) read operands from shared
memory; warps before them, and on consumer GPUs after them, hold operands in registers, which leaves room for 32-key
tiles only in dkdv at D > 64. Compiling takes one to two seconds a tile, so there are at most six.
"""

from __future__ import annotations

import torch
import triton

from kernels.portable.options import TileOptions
from kernels.problem import JaggedProblem

# (kernel, has warp-group tensor cores, D > 64) -> BLOCK_M, BLOCK_N, num_warps, num_stages
_CANDIDATES: dict[tuple[str, bool, bool], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", True, True): (
        (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3)),
    ("forward", True, False): ((128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 3)),
    ("forward", False, True): ((128, 64, 8, 3), (128, 32, 8, 3), (64, 64, 8, 2), (64, 32, 4, 2)),
    ("forward", False, False): ((128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 3)),
    ("dkdv", True, True): ((64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dkdv", True, False): ((64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dkdv", False, True): ((64, 32, 8, 2), (64, 32, 4, 3), (32, 32, 4, 2)),
    ("dkdv", False, False): ((64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
    ("dq", True, True): ((128, 128, 8, 1), (128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 2), (64, 32, 4, 3)),
    ("dq", True, False): ((128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
    ("dq", False, True): ((128, 64, 8, 2), (128, 32, 8, 2), (32, 32, 4, 2)),
    ("dq", False, False): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
}


def candidates(kernel: str, problem: JaggedProblem) -> list[TileOptions]:
    """Tiles worth timing for ``forward``, ``dkdv`` or ``dq``, without those far longer than the longest sequence."""
    major, _ = torch.cuda.get_device_capability(problem.layout_k.device)
    return select(kernel, major, problem.head_dim, problem.layout_q.max_seqlen, problem.layout_k.max_seqlen)


def select(kernel: str, major: int, head_dim: int, max_seqlen_q: int, max_seqlen_k: int) -> list[TileOptions]:
    """`candidates` for a compute capability's major version."""
    longest_m = max(64, triton.next_power_of_2(max_seqlen_q))
    longest_n = max(64, triton.next_power_of_2(max_seqlen_k))
    tiles = [TileOptions(*tile) for tile in _CANDIDATES[kernel, major in (9, 10), head_dim > 64]]
    return [tile for tile in tiles if longest_m >= tile.BLOCK_M and longest_n >= tile.BLOCK_N]
