from __future__ import annotations

import gc

import pytest
import torch
from fake_implementation import FakeImplementation, install

from kernels import JaggedLayout, jagged_flash_attention, nested
from kernels.nested import nested_flash_attention

LENGTHS = [3, 0, 8, 6]


@pytest.fixture
def fake(monkeypatch):
    implementation = FakeImplementation("fake")
    install(monkeypatch, implementation)
    return implementation


def leaves(lengths=LENGTHS, dtype=torch.float64, head_dim=6, device="cpu"):
    """``q, k, v``: nested tensors that share offsets, each a leaf."""
    generator = torch.Generator().manual_seed(0)
    layout = JaggedLayout.from_lengths(lengths)
    offsets = torch.from_numpy(layout.offsets).to(device)
    return tuple(torch.nested.nested_tensor_from_jagged(
        torch.randn(layout.total, heads, head_dim, generator=generator, dtype=torch.float64).to(device, dtype),
        offsets, max_seqlen=layout.max_seqlen).requires_grad_() for heads in (4, 2, 2))


def plain(q, k, v, **options):
    """The same by packed tensors: ``out`` and the gradients of its sum of squares."""
    layout = JaggedLayout.from_lengths(k.offsets().diff().tolist(), k.device)
    q, k, v = (x.detach().values().requires_grad_() if x.is_nested else x.detach().requires_grad_() for x in (q, k, v))
    out = jagged_flash_attention(q, k, v, cu_seqlens_q=layout if len(q) == layout.total else None, cu_seqlens_k=layout,
                                 **options)
    return out, torch.autograd.grad(out.double().square().sum(), (q, k, v))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (2, 1), "softmax_scale": 0.3}])
def test_out_and_gradients_are_those_of_packed_tensors(fake, options):
    q, k, v = leaves()
    out = nested_flash_attention(q, k, v, **options)
    assert out.offsets() is q.offsets()
    assert (out + q).shape == q.shape
    out.values().square().sum().backward()
    expected, gradients = plain(q, k, v, **options)
    torch.testing.assert_close(out.values(), expected)
    torch.testing.assert_close(tuple(x.grad.values() for x in (q, k, v)), gradients)


def test_nothing_is_copied(fake):
    q, k, v = leaves()
    out = nested_flash_attention(q, k, v)
    _, given, *_ = fake.calls[0]
    assert [x.data_ptr() for x in given] == [x.values().data_ptr() for x in (q, k, v)]
    out.values().sum().backward()
    _, given, *_ = fake.calls[1]
    assert [x.data_ptr() for x in given[:3]] == [x.values().data_ptr() for x in (q, k, v)]
    assert given[3].data_ptr() == out.values().data_ptr()


def test_cross_attention_and_the_lse(fake):
    q, _, _ = leaves([2, 5, 0, 1])
    _, k, v = leaves()
    out, lse = nested_flash_attention(q, k, v, return_lse=True)
    assert out.offsets() is q.offsets()
    assert lse.shape == (4, 8)
    for b, (one_q, one_k, one_v) in enumerate(zip(*(x.detach().unbind() for x in (q, k, v)), strict=True)):
        if len(one_k):
            expected = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(0, 1) for x in (one_q, one_k, one_v)), enable_gqa=True).transpose(0, 1)
            torch.testing.assert_close(out.detach().unbind()[b], expected)
        else:
            assert not out.detach().unbind()[b].any()


def test_a_dense_q(fake):
    _, k, v = leaves()
    q = torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)
    out = nested_flash_attention(q, k, v)
    assert out.shape == (4, 5, 4, 6)
    out.square().sum().backward()
    expected, (dq, dk, dv) = plain(q, k, v)
    torch.testing.assert_close(out.flatten(0, 1), expected)
    torch.testing.assert_close((q.grad, k.grad.values(), v.grad.values()), (dq, dk, dv))


def test_a_maximum_is_found_where_none_is_known(fake):
    q, k, v = (torch.nested.nested_tensor_from_jagged(x.detach().values(), offsets) for offsets in
               [torch.tensor([0, 3, 3, 11, 17])] for x in leaves())
    torch.testing.assert_close(nested_flash_attention(q, k, v).values(), plain(q, k, v)[0])


def test_layers_share_a_layout_that_goes_with_the_batch(fake):
    gc.collect()
    before = len(nested._LAYOUTS)
    q, k, v = leaves()
    for _ in range(2):
        q = q + nested_flash_attention(q, k, v)
    assert len(nested._LAYOUTS) == before + 1
    del q, k, v
    fake.calls.clear()
    gc.collect()
    assert len(nested._LAYOUTS) == before


def test_wrong_tensors_are_named(fake):
    q, k, v = leaves()
    others = leaves([8, 3, 0, 6])
    dense = k.values()
    strided = torch.nested.nested_tensor([torch.randn(3, 2, 6)])
    narrowed = torch.nested.narrow(torch.randn(2, 9, 2, 6), 1, torch.tensor([0, 2]), torch.tensor([3, 4]),
                                   layout=torch.jagged)
    for arguments, error, message in [
            ((q, dense, v), TypeError, "k: expected a nested tensor.*a dense one"),
            ((q, k, strided), TypeError, r"v: .*layout=torch.jagged, got layout torch.strided"),
            ((q, k, others[2]), ValueError, "v: expected k's offsets"),
            ((q.transpose(1, 2), k, v), ValueError, "q: .*transpose it back"),
            ((q, narrowed, narrowed), ValueError, "k: .*narrowed"),
            (([1], k, v), TypeError, "q: .*got list"),
            ((q, [1], v), TypeError, "k: .*got list")]:
        with pytest.raises(error, match=message):
            nested_flash_attention(*arguments)
    assert fake.calls == []


def test_under_torch_compile(fake):
    torch._dynamo.reset()

    def layer(q, k, v):
        return nested_flash_attention(q * 2, k, v, causal=True) + q

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in (LENGTHS, [9, 9, 1]):
        q, k, v = leaves(lengths)
        got, expected = compiled(q, k, v), layer(q, k, v)
        torch.testing.assert_close(got.values(), expected.values())
        gradients = [torch.autograd.grad(out.values().square().sum(), (q, k, v)) for out in (got, expected)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one.values(), other.values())


@pytest.mark.gpu
def test_the_shipped_kernels():
    q, k, v = leaves([300, 0, 77, 512], torch.bfloat16, 128, "cuda")
    nested_flash_attention(q, k, v, causal=True)  # compiles, which may wait
    torch.cuda.set_sync_debug_mode("error")  # a known maximum: nothing waits for the device
    try:
        out = nested_flash_attention(q, k, v, causal=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    out.values().double().square().sum().backward()
    expected, gradients = plain(q, k, v, causal=True)
    torch.testing.assert_close(out.values(), expected)
    for x, gradient in zip((q, k, v), gradients, strict=True):  # sums of floats in an order that may differ
        torch.testing.assert_close(x.grad.values(), gradient, rtol=2e-2, atol=2e-2)
