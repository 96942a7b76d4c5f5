"""`jagged_flash_attention`: the public entry; checks its arguments and picks the kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernels import ops
from kernels.arguments import make_plans, make_problem
from kernels.autograd import jagged_attention
from kernels.jagged_layout import JaggedLayout


def jagged_flash_attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
        cu_seqlens_q: torch.Tensor | JaggedLayout | None, cu_seqlens_k: torch.Tensor | JaggedLayout,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int | None, int | None] = (None, None), return_lse: bool = False,
        schedule: str | None = None, impl: str | tuple[str, str] = "auto",
        options: Mapping[str, object] | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention within each sequence of a packed batch, differentiable with respect to q, k and v.

    Sequence ``b`` of ``B`` has queries ``q[cu_seqlens_q[b]:cu_seqlens_q[b + 1]]`` and keys and values
    ``k, v[cu_seqlens_k[b]:cu_seqlens_k[b + 1]]``; either may be empty. A query that sees no key gets output 0 and
    LSE -inf. Nothing here waits for the device; an implementation that plans on the host copies the offsets of a
    GPU tensor once, and not at all from a `JaggedLayout` that was built on the host.

    Args:
        q: ``[total_q, num_heads_q, head_dim]``; with ``cu_seqlens_q=None`` a dense ``[Sq, num_heads_q, head_dim]``
            that all sequences share (broadcast-Q; its gradient is summed over the batch).
        k: ``[total_k, num_heads_kv, head_dim]`` of q's dtype, on q's device. ``num_heads_q`` must be a multiple of
            ``num_heads_kv``: query head ``h`` reads KV head ``h // (num_heads_q // num_heads_kv)``.
        v: As ``k``. The shipped kernels take bf16 and fp16. Inputs that are not contiguous are copied.
        cu_seqlens_q: int32 ``[B + 1]`` on q's device, from 0 to ``total_q``; or a `JaggedLayout`, which keeps what
            the kernels derive from it, so that the layers of one batch should pass the same one; or None.
        cu_seqlens_k: int32 ``[B + 1]`` on q's device, from 0 to ``total_k``, or a `JaggedLayout`. Values on a GPU
            are trusted: checking them would wait for the device (`JaggedLayout.validate` does).
        max_seqlen_q: A Python int, at least the longest query sequence. Needed with a tensor; a `JaggedLayout` has
            its own, and the dense q its length.
        max_seqlen_k: The same for keys.
        softmax_scale: Factor of the scores, positive; ``head_dim ** -0.5`` if None.
        causal: Query ``i`` sees keys ``j <= i + len_k - len_q`` only (sequences are aligned at their ends).
        window_size: ``(left, right)``: only keys with ``-left <= j - (i + len_k - len_q) <= right``; None is no
            bound. ``causal`` replaces ``right`` by 0.
        return_lse: Also return the log-sum-exp of each query's scores.
        schedule: Order of the work tiles, a name of `kernels.tile_schedule`; None leaves it to the implementation.
            With ``impl="auto"`` so does one that falls back to kernels without that order; a named implementation
            must know it, in the backward too if a gradient can be asked for.
        impl: ``auto``, a name in `kernels.dispatch.IMPLEMENTATIONS`, or a pair of those, ``(forward, backward)``.
        options: ``{"fwd": ..., "bwd": ...}``, either or both: the switches of the implementation that ``impl`` names
            for that direction, as a mapping or as what its ``make_options`` returned. Under `torch.compile` they
            break the graph: without them the call is one operator of it (`kernels.ops`).

    Returns:
        ``out [total_q, num_heads_q, head_dim]`` in q's dtype; with ``return_lse`` also ``lse [num_heads_q, total_q]``
        in fp32 (natural logarithm, not differentiable). With broadcast-Q ``total_q`` is ``B * Sq``, and sequence
        ``b`` begins at row ``b * Sq``.

    Raises:
        TypeError, ValueError: An argument is wrong; the message names it, what was got and what was expected.
        NotImplementedError: No implementation, or not the named one, computes this here; the message says why. It
            comes from ``backward()`` if only the gradient is missing.

    Example:
        >>> lengths = JaggedLayout.from_lengths([3, 0, 5], device="cuda")
        >>> q = torch.randn(lengths.total, 8, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        >>> k, v = (torch.randn(lengths.total, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        >>> out = jagged_flash_attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=lengths, causal=True)
        >>> out.sum().backward()
    """
    if torch.compiler.is_compiling() and options is None:  # one node of the graph; it checks and plans when it runs
        out, lse = ops.traced_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale,
                                        causal, window_size, impl, schedule)
        return (out, lse) if return_lse else out
    problem = make_problem(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                           max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
                           window_size=window_size)
    forward, backward = make_plans(impl, schedule, options)
    out, lse = jagged_attention(problem, q, k, v, forward, backward)
    return (out, lse) if return_lse else out
