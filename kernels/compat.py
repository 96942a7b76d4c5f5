"""`flash_attn_varlen_func` with FlashAttention-4's signature: swap the import to run these kernels instead.

    from kernels.compat import flash_attn_varlen_func  # instead of flash_attn.cute

The signature is that of flash-attn-4 4.0.0b36. Hints to its scheduler have no effect here; an argument that changes the
result and that these kernels don't know is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.api import jagged_flash_attention
from kernels.jagged_layout import JaggedLayout


def flash_attn_varlen_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qv: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None, cu_seqlens_k: torch.Tensor | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, min_seqlen_k: int | None = None,
        seqused_q: torch.Tensor | None = None, seqused_k: torch.Tensor | None = None,
        gather_kv_indices: torch.Tensor | None = None, page_table: torch.Tensor | None = None,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None), learnable_sink: torch.Tensor | None = None,
        softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
        score_mod: Callable[..., Any] | None = None, score_mod_bwd: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None, block_sparse_tensors: Any = None,
        aux_tensors: list[Any] | None = None, aux_scalars: tuple[Any, ...] | None = None, return_lse: bool = False,
        scheduler_metadata: Any = None, seqlen_k_per_split: int | None = None,
        disable_scheduler_metadata: bool = False, gather_bwd_recompute_p: bool = False,
        gather_bwd_token_chunk: int | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``(out, lse)`` of `kernels.jagged_flash_attention`, from FlashAttention-4's arguments.

    Args:
        q: ``[total_q, heads, head_dim]`` with ``cu_seqlens_q``; without it ``[batch, Sq, heads, head_dim]``.
        k: ``[total_k, heads_kv, head_dim]`` with ``cu_seqlens_k``; without it ``[batch, Sk, heads_kv, head_dim]``.
        v: As ``k``: its head dimension can't differ from k's.
        cu_seqlens_q: int32 ``[batch + 1]`` on q's device, contiguous. ``cu_seqlens_k`` likewise.
        max_seqlen_q: At least the longest query sequence, a Python int; None takes ``total_q``, which is correct, and
            slower. ``max_seqlen_k`` likewise.
        softmax_scale: Factor of the scores; ``head_dim ** -0.5`` if None.
        causal: Aligned at the sequences' ends, as ``window_size`` is. Both bounds negative are no window.
        deterministic: True takes the portable backward, which adds in a fixed order; the others needn't.
        return_lse: The LSE comes back also where no gradient is wanted. It is not differentiable here.
        min_seqlen_k: Without effect, as are ``pack_gqa``, ``scheduler_metadata`` and ``disable_scheduler_metadata``.

    Returns:
        ``out`` in q's shape and dtype, and ``lse`` in fp32, ``[heads, total_q]``, or ``[batch, heads, Sq]`` of a 4-D
        q; None instead of ``lse`` where neither ``return_lse`` nor an input asks for it.

    Raises:
        NotImplementedError: An argument that these kernels don't know, by name; or as `jagged_flash_attention`.
        TypeError, ValueError: As `jagged_flash_attention`.
    """
    _refuse(qv=qv, seqused_q=seqused_q, seqused_k=seqused_k, gather_kv_indices=gather_kv_indices,
            page_table=page_table, learnable_sink=learnable_sink, softcap=softcap or None, score_mod=score_mod,
            score_mod_bwd=score_mod_bwd, mask_mod=mask_mod, block_sparse_tensors=block_sparse_tensors,
            aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None, seqlen_k_per_split=seqlen_k_per_split,
            num_splits=None if num_splits == 1 else num_splits, gather_bwd_recompute_p=gather_bwd_recompute_p or None,
            gather_bwd_token_chunk=gather_bwd_token_chunk)
    rows_q, bounds_q, longest_q = _packed("q", q, cu_seqlens_q, max_seqlen_q)
    rows_k, bounds_k, longest_k = _packed("k", k, cu_seqlens_k, max_seqlen_k)
    rows_v = v if cu_seqlens_k is not None else v.flatten(0, 1)
    left, right = window_size
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    out, lse = jagged_flash_attention(
        rows_q, rows_k, rows_v, cu_seqlens_q=bounds_q, cu_seqlens_k=bounds_k, max_seqlen_q=longest_q,
        max_seqlen_k=longest_k, softmax_scale=softmax_scale, causal=causal, window_size=(left, right),
        return_lse=True, impl=("auto", "portable") if deterministic else "auto")
    if not (return_lse or q.requires_grad or k.requires_grad or v.requires_grad):
        return out.view(q.shape), None
    return out.view(q.shape), lse if q.ndim == 3 else lse.unflatten(1, q.shape[:2]).transpose(0, 1)


def _refuse(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name}: the jagged kernels have no such argument; leave it at its default")


def _packed(name: str, x: torch.Tensor, cu_seqlens: torch.Tensor | None,
            max_seqlen: int | None) -> tuple[torch.Tensor, torch.Tensor | JaggedLayout, int | None]:
    """``x`` as packed rows, their offsets, and an upper bound of the lengths."""
    if cu_seqlens is not None:
        return x, cu_seqlens, x.shape[0] if max_seqlen is None else max_seqlen
    if x.ndim != 4:
        raise ValueError(f"{name}: expected shape [batch, rows, heads, head_dim], as there is no "
                         f"cu_seqlens_{'q' if name == 'q' else 'k'}, got {list(x.shape)}")
    batch, rows = x.shape[:2]
    if torch.compiler.is_compiling():  # a trace makes tensors, but no layouts
        return x.flatten(0, 1), torch.arange(batch + 1, dtype=torch.int32, device=x.device) * rows, rows
    return x.flatten(0, 1), JaggedLayout.uniform(batch, rows, x.device), None
