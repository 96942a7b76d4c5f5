"""`JaggedProblem`: one attention call, validated, as every kernel implementation receives it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask


@dataclass(frozen=True, eq=False)
class JaggedProblem:
    """Shapes, bounds and mask of one jagged attention; no tensor data but the offsets.

    Packed tensors are ``q, out, dout, dq [total_q, num_heads_q, head_dim]``, ``k, v, dk, dv [total_k, num_heads_kv,
    head_dim]``, ``lse [num_heads_q, total_q]`` fp32 (natural log; -inf for a query that sees no key, whose output
    is 0). Query head ``h`` reads KV head ``h // (num_heads_q // num_heads_kv)``.

    With ``broadcast_q``, ``q`` and ``dq`` are dense ``[Sq, num_heads_q, head_dim]``, shared by all sequences;
    ``layout_q`` then describes ``out``, ``dout`` and ``lse``: ``B`` sequences of ``Sq`` rows each, sequence ``b`` at
    rows ``b * Sq``. ``dq`` is summed over the batch.
    """

    layout_q: JaggedLayout
    layout_k: JaggedLayout
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    dtype: torch.dtype
    softmax_scale: float
    mask: Mask = field(default_factory=Mask)
    broadcast_q: bool = False

    @property
    def batch(self) -> int:
        """Number of sequences, ``B``."""
        return self.layout_k.batch

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads_q // self.num_heads_kv

    @property
    def window_bounds(self) -> tuple[int, int]:
        """The mask's ``(left, right)`` as arguments of a kernel: 0 for no bound, and never so large that a position
        plus a bound overflows int32."""
        longest = self.layout_q.max_seqlen + self.layout_k.max_seqlen
        left, right = (0 if bound is None else min(bound, longest) for bound in (self.mask.left, self.mask.right))
        return left, right

    @property
    def q_shape(self) -> tuple[int, int, int]:
        """Shape of ``q`` and ``dq``."""
        rows = self.layout_q.max_seqlen if self.broadcast_q else self.layout_q.total
        return (rows, self.num_heads_q, self.head_dim)

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Shape of ``out`` and ``dout``."""
        return (self.layout_q.total, self.num_heads_q, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """Shape of ``k``, ``v``, ``dk`` and ``dv``."""
        return (self.layout_k.total, self.num_heads_kv, self.head_dim)
