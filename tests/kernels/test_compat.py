from __future__ import annotations

import inspect

import pytest
import torch
from fake_implementation import FakeImplementation, install

from kernels import JaggedLayout
from kernels.api import make_problem
from kernels.compat import flash_attn_varlen_func
from kernels.reference import attention_reference


@pytest.fixture
def fake(monkeypatch):
    implementation = FakeImplementation("portable")
    install(monkeypatch, implementation)
    return implementation


def tensors(rows_q, rows_k, heads_q=4, head_dim=8, **options):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(*rows_q, heads_q, head_dim, generator=generator).to(**options),
            *(torch.randn(*rows_k, 2, head_dim, generator=generator).to(**options) for _ in range(2)))


def cu(*offsets, device="cpu"):
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def test_packed_sequences(fake):
    q, k, v = tensors([8], [9])
    at = {"cu_seqlens_q": cu(0, 3, 8), "cu_seqlens_k": cu(0, 4, 9), "max_seqlen_q": 5, "max_seqlen_k": 5,
          "softmax_scale": 0.3, "causal": True, "window_size": (2, None)}
    out, lse = flash_attn_varlen_func(q, k, v, **at, return_lse=True)
    expected, expected_lse = attention_reference(make_problem(q, k, v, **at), q, k, v)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-6)


def test_a_missing_maximum_is_bounded_by_the_rows(fake, monkeypatch):
    seen = []
    forward = fake.forward
    monkeypatch.setattr(fake, "forward", lambda problem, *x, **y: seen.append(problem) or forward(problem, *x, **y))
    flash_attn_varlen_func(*tensors([8], [9]), cu_seqlens_q=cu(0, 3, 8), cu_seqlens_k=cu(0, 4, 9))
    assert (seen[0].layout_q.max_seqlen, seen[0].layout_k.max_seqlen) == (8, 9)


@pytest.mark.parametrize("packed_k", [False, True])
def test_batches_of_equal_lengths(fake, packed_k):
    q, k, v = tensors([2, 3], [2, 4])
    if packed_k:
        at = {"cu_seqlens_k": cu(0, 4, 8), "max_seqlen_k": 4}
        out, lse = flash_attn_varlen_func(q, k.flatten(0, 1), v.flatten(0, 1), return_lse=True, **at)
    else:
        out, lse = flash_attn_varlen_func(q, k, v, return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == (2, 4, 3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(out, expected)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2)) * 8**-0.5
    torch.testing.assert_close(lse, scores.logsumexp(-1))


def test_no_window_from_negative_bounds(fake):
    q, k, v = tensors([8], [8])
    at = {"cu_seqlens_q": cu(0, 8), "cu_seqlens_k": cu(0, 8)}
    torch.testing.assert_close(flash_attn_varlen_func(q, k, v, **at, window_size=(-1, -1))[0],
                               flash_attn_varlen_func(q, k, v, **at)[0])
    with pytest.raises(ValueError, match="window_size: left must be None or >= 0, got -1"):
        flash_attn_varlen_func(q, k, v, **at, window_size=(-1, 0))


def test_the_lse_comes_where_it_is_asked_for(fake):
    q, k, v = tensors([8], [8])
    at = {"cu_seqlens_q": cu(0, 8), "cu_seqlens_k": cu(0, 8)}
    assert flash_attn_varlen_func(q, k, v, **at)[1] is None
    assert flash_attn_varlen_func(q, k.requires_grad_(), v, **at)[1].shape == (4, 8)


def test_deterministic_takes_the_portable_backward(monkeypatch):
    fast, portable = FakeImplementation("fast"), FakeImplementation("portable")
    install(monkeypatch, fast, portable)
    q, k, v = tensors([8], [8])
    for deterministic in (False, True):
        out, _ = flash_attn_varlen_func(q.requires_grad_(), k, v, cu_seqlens_q=cu(0, 8), cu_seqlens_k=cu(0, 8),
                                        deterministic=deterministic)
        out.sum().backward()
    assert [call[0] for call in fast.calls] == ["fwd", "bwd", "fwd"]
    assert [call[0] for call in portable.calls] == ["bwd"]


UNSUPPORTED = {
    "qv": torch.zeros(8, 4, 8), "seqused_q": cu(8), "seqused_k": cu(8), "gather_kv_indices": cu(0), "page_table": cu(0),
    "learnable_sink": torch.zeros(4), "softcap": 15.0, "num_splits": 2, "score_mod": max, "score_mod_bwd": max,
    "mask_mod": max, "block_sparse_tensors": (), "aux_tensors": [cu(0)], "aux_scalars": (1,), "seqlen_k_per_split": 64,
    "gather_bwd_recompute_p": True, "gather_bwd_token_chunk": 64,
}
HINTS = {"min_seqlen_k": 1, "pack_gqa": True, "scheduler_metadata": (), "disable_scheduler_metadata": True}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_named(fake, name):
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_varlen_func(*tensors([8], [8]), cu_seqlens_q=cu(0, 8), cu_seqlens_k=cu(0, 8),
                               **{name: UNSUPPORTED[name]})
    assert fake.calls == []


def test_hints_change_nothing(fake):
    call = {"cu_seqlens_q": cu(0, 8), "cu_seqlens_k": cu(0, 8)}
    torch.testing.assert_close(flash_attn_varlen_func(*tensors([8], [8]), **call, **HINTS)[0],
                               flash_attn_varlen_func(*tensors([8], [8]), **call)[0])


def test_dense_rows_need_four_dimensions(fake):
    with pytest.raises(ValueError, match=r"^q: expected shape \[batch, rows, heads, head_dim\].*cu_seqlens_q"):
        flash_attn_varlen_func(*tensors([8], [8]), cu_seqlens_k=cu(0, 8))


@pytest.mark.parametrize("dense", [False, True])
def test_under_torch_compile(fake, dense):
    torch._dynamo.reset()
    compiled = torch.compile(flash_attn_varlen_func, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v = tensors([2, 3], [2, 5], dtype=torch.float64) if dense else tensors([9], [11], dtype=torch.float64)
    at = {} if dense else {"cu_seqlens_q": cu(0, 3, 9), "cu_seqlens_k": cu(0, 5, 11), "max_seqlen_q": 6}
    q.requires_grad_()
    results = []
    for function in (compiled, flash_attn_varlen_func):
        out, lse = function(q, k, v, causal=True, **at)
        results.append((out, lse, *torch.autograd.grad(out.square().sum(), q)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.gpu
def test_the_same_as_fa4():
    fa4 = pytest.importorskip("flash_attn.cute", reason="FlashAttention-4 isn't installed").flash_attn_varlen_func
    ours, theirs = (inspect.signature(function).parameters for function in (flash_attn_varlen_func, fa4))
    assert [(name, x.default) for name, x in ours.items()] == [(name, x.default) for name, x in theirs.items()]
    layout = JaggedLayout.from_lengths([300, 0, 77, 512], "cuda")
    q, k, v = (x.requires_grad_() for x in tensors([layout.total], [layout.total], head_dim=128, device="cuda",
                                                   dtype=torch.bfloat16))
    results = []
    for function in (flash_attn_varlen_func, fa4):
        out, lse = function(q, k, v, cu_seqlens_q=layout.cu_seqlens, cu_seqlens_k=layout.cu_seqlens, max_seqlen_q=512,
                            max_seqlen_k=512, causal=True, return_lse=True)
        results.append((out, lse, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))))
    for got, expected in zip(*results, strict=True):
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
