"""A small block as generative recommenders stack it: attention over user histories, then pooling by shared queries.

`GemBlock` takes the attention to use as an argument, so that one model trains with any of `attentions`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from kernels import JaggedLayout, jagged_flash_attention

# (q, k, v, lengths, causal, shared_q) -> out, packed rows [total, heads, head_dim]; a shared q is [Sq, heads, head_dim]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, JaggedLayout, bool, bool], torch.Tensor]


def jagged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: JaggedLayout, causal: bool,
           shared_q: bool) -> torch.Tensor:
    """This project's kernels: one launch a call, the dense q read as it is."""
    out = jagged_flash_attention(q, k, v, cu_seqlens_q=None if shared_q else lengths, cu_seqlens_k=lengths,
                                 causal=causal)
    assert isinstance(out, torch.Tensor)
    return out


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: JaggedLayout, causal: bool,
         shared_q: bool) -> torch.Tensor:
    """Torch's `scaled_dot_product_attention`, one call a sequence."""
    sizes = lengths.lengths.tolist()
    queries = [q] * len(sizes) if shared_q else q.split(sizes)
    outs = []
    for one_q, one_k, one_v in zip(queries, k.split(sizes), v.split(sizes), strict=True):
        heads_first = (x.transpose(0, 1)[None] for x in (one_q, one_k, one_v))
        out = functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def fa4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: JaggedLayout, causal: bool,
        shared_q: bool) -> torch.Tensor:
    """FlashAttention-4; it has no shared q, so that q is repeated for every sequence."""
    from flash_attn.cute import flash_attn_varlen_func

    queries = JaggedLayout.uniform(lengths.batch, len(q), q.device) if shared_q else lengths
    return flash_attn_varlen_func(
        q.repeat(lengths.batch, 1, 1) if shared_q else q, k, v, cu_seqlens_q=queries.cu_seqlens,
        cu_seqlens_k=lengths.cu_seqlens, max_seqlen_q=queries.max_seqlen, max_seqlen_k=lengths.max_seqlen,
        causal=causal)[0]


attentions: dict[str, Attention] = {"jfa": jagged, "sdpa": sdpa, "fa4": fa4}


class GemBlock(nn.Module):
    """Event ids of a batch of users, packed end to end -> one logit a user.

    Causal self-attention over each history and an MLP, each with a residual; then ``pool_rows`` learned queries, the
    same for every user, read the history, and what they found decides. Parameters are fp32; attention runs in bf16.
    """

    def __init__(self, events: int, heads: int = 4, head_dim: int = 128, pool_rows: int = 32,
                 attention: Attention = jagged):
        super().__init__()
        width = heads * head_dim
        self.shape, self.attention = (heads, head_dim), attention
        self.embedding = nn.Embedding(events, width)
        self.mix_norm, self.mlp_norm, self.pool_norm = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.pool_queries = nn.Parameter(torch.randn(pool_rows, heads, head_dim))
        self.pool_kv = nn.Linear(width, 2 * width)
        self.head = nn.Linear(pool_rows * width, 1)

    def forward(self, events: torch.Tensor, lengths: JaggedLayout) -> torch.Tensor:
        """Logits fp32 ``[B]`` of event ids int64 ``[total]``."""
        x = self.embedding(events)
        q, k, v = self._heads(self.qkv(self.mix_norm(x)), 3)
        x = x + self.mixed(self.attention(q, k, v, lengths, True, False).flatten(1).float())
        x = x + self.mlp(self.mlp_norm(x))
        k, v = self._heads(self.pool_kv(self.pool_norm(x)), 2)
        pooled = self.attention(self.pool_queries.bfloat16(), k, v, lengths, False, True)
        return self.head(pooled.view(lengths.batch, -1).float())[:, 0]

    def _heads(self, x: torch.Tensor, parts: int) -> list[torch.Tensor]:
        return [part.unflatten(-1, self.shape).contiguous() for part in x.bfloat16().chunk(parts, dim=-1)]
