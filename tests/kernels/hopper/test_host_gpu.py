"""On a GPU: neither direction waits for the device on new lengths, and layers that share a layout share its plans."""

import numpy as np
import pytest
import torch

from kernels import JaggedLayout, jagged_flash_attention
from kernels.reference import attention_reference, attention_reference_backward

pytestmark = pytest.mark.gpu


@pytest.fixture
def no_sync():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU here")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("queries", [None, 32])
def test_new_lengths_are_planned_without_waiting(no_sync, queries):
    generator = np.random.default_rng(0)
    for turn in range(3):  # the first compiles, which may wait
        host = JaggedLayout.from_lengths(generator.integers(0, 300, 700), "cuda")
        q, k, v = (torch.randn(rows, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for rows in (queries or host.total, host.total, host.total))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if turn else "default")
        layout = JaggedLayout.from_cu_seqlens(host.cu_seqlens, total=host.total, max_seqlen=host.max_seqlen)
        out = jagged_flash_attention(q, k, v, cu_seqlens_q=None if queries else layout, cu_seqlens_k=layout,
                                     impl="hopper")
        dout = torch.randn_like(out)
        grads = torch.autograd.grad(out, (q, k, v), dout)
        torch.cuda.set_sync_debug_mode("default")
        assert not layout.on_host
    problem = out.grad_fn.problem
    exact = attention_reference(problem, q, k, v)[0], *attention_reference_backward(problem, q, k, v, dout)
    for value, wanted in zip((out, *grads), exact, strict=True):
        assert (value.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()


def test_a_second_layer_launches_no_plan(no_sync):
    layout = JaggedLayout.from_lengths([100, 300], "cuda")
    q, k, v = (torch.randn(layout.total, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    kept = []
    for _ in range(3):
        out = jagged_flash_attention(q, k, v, cu_seqlens_q=layout, cu_seqlens_k=layout, impl="hopper")
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        kept.append({key: id(value) for key, value in layout._cache.items()})
    assert kept[0] == kept[1] == kept[2]
