"""The operators: checked by torch's own `opcheck`, traced without a break, and traced once for all lengths.

Backend ``aot_eager`` traces forward and backward as Inductor does and needs no compiler; Inductor runs where a GPU is.
"""

from __future__ import annotations

import pytest
import torch
from fake_implementation import FakeImplementation, install
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import JaggedLayout, jagged_flash_attention, ops
from kernels.reference import attention_reference, attention_reference_backward


@pytest.fixture
def fake(monkeypatch):
    implementation = FakeImplementation("fake")
    install(monkeypatch, implementation)
    torch._dynamo.reset()
    yield implementation
    torch._dynamo.reset()


def tensors(rows_q, rows_k, dtype=torch.float64, head_dim=6, device="cpu"):
    generator = torch.Generator().manual_seed(rows_k)
    return tuple(torch.randn(rows, heads, head_dim, generator=generator, dtype=torch.float64).to(device, dtype)
                 .requires_grad_() for rows, heads in ((rows_q, 4), (rows_k, 2), (rows_k, 2)))


CASES = {  # offsets of q, of k, the rest
    "self": ((0, 3, 3, 8), (0, 3, 3, 8), {"causal": True}),
    "cross_window": ((0, 2, 9), (0, 7, 11), {"window_left": 2, "window_right": 1, "softmax_scale": 0.3}),
    "broadcast_q": (None, (0, 4, 4, 7), {}),
    "all_empty": ((0, 0, 0), (0, 0, 0), {}),
}


def arguments(case, device="cpu", **shape):
    offsets_q, offsets_k, rest = CASES[case]
    cu_seqlens_q, cu_seqlens_k = (None if x is None else torch.tensor(x, dtype=torch.int32, device=device)
                                  for x in (offsets_q, offsets_k))
    longest_q, longest_k = (None if x is None else int(x.diff().max()) for x in (cu_seqlens_q, cu_seqlens_k))
    return (*tensors(5 if offsets_q is None else offsets_q[-1], offsets_k[-1], device=device, **shape), cu_seqlens_q,
            cu_seqlens_k, longest_q, longest_k, rest.get("softmax_scale"), rest.get("causal", False),
            rest.get("window_left"), rest.get("window_right"), "auto", "auto", None)


@pytest.mark.parametrize("case", CASES)
def test_opcheck(fake, case):
    values = arguments(case)
    torch.library.opcheck(ops.forward, values)
    q, k, v = (x.detach() for x in values[:3])
    out, lse = ops.forward(q, k, v, *values[3:])
    torch.library.opcheck(ops.backward, (q, k, v, out, lse, torch.randn_like(out), *values[3:11], "auto", None))


@pytest.mark.parametrize("case", ["self", "cross_window", "broadcast_q"])
def test_gradcheck(fake, case):
    q, k, v, *rest = arguments(case)
    assert torch.autograd.gradcheck(lambda *x: ops.forward(*x, *rest)[0], (q, k, v))


def test_only_wanted_gradients_and_no_gradient_of_the_lse(fake):
    q, k, v, *rest = arguments("self")
    out, lse = ops.forward(q, k.detach(), v, *rest)
    out.backward(torch.ones_like(out))
    assert k.grad is None
    assert v.grad is not None
    assert not lse.requires_grad
    (dq,) = torch.autograd.grad(ops.forward(q, k, v, *rest)[0].square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        dq.sum().backward()


def test_a_wrong_call_is_told_while_tracing_and_when_run(fake):
    q, k, v, *rest = arguments("self")
    traced = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with traced, pytest.raises(TypeError, match="k: expected q's dtype"):
        ops.forward(q, k.float(), v, *rest)
    with pytest.raises(ValueError, match=r"schedule: .*'fast'"):
        ops.forward(q, k, v, *rest[:-3], "auto", "fake", "fast")
    assert fake.calls == []
    rest[4] = -1.0
    with pytest.raises(ValueError, match="softmax_scale"):
        ops.forward(q, k, v, *rest)


class Twice(torch.nn.Module):
    """Two layers of attention over one batch, self and with a dense Q."""

    def __init__(self, dtype=torch.float64, head_dim=6):
        super().__init__()
        self.pool = torch.nn.Parameter(torch.linspace(-1, 1, 3 * 4 * head_dim).view(3, 4, head_dim).to(dtype))

    def forward(self, q, k, v, cu_seqlens, max_seqlen=None):
        at = {"cu_seqlens_k": cu_seqlens, "max_seqlen_k": max_seqlen}
        mixed = jagged_flash_attention(q * 2, k, v, cu_seqlens_q=cu_seqlens, max_seqlen_q=max_seqlen, causal=True, **at)
        pooled, lse = jagged_flash_attention(self.pool, mixed[:, :2], v, cu_seqlens_q=None, return_lse=True, **at)
        return pooled, lse


def check_compiled(compiled, module, batches, tolerance):
    for values in batches:
        results = []
        for run in (compiled, module):
            pooled, lse = run(*values)
            grads = torch.autograd.grad(pooled.float().square().sum(), (*values[:3], module.pool))
            results.append((pooled, lse, *grads))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, **tolerance)


EXACT = {"rtol": 1e-9, "atol": 1e-9}
LENGTHS = [[3, 0, 8, 6], [9, 9, 1], [7, 6], [40]]  # no two sizes of the first alike: equal ones would be taken for one


def batch_of(lengths, as_layout, device="cpu", **shape):
    layout = JaggedLayout.from_lengths(lengths, device)
    bounds = (layout,) if as_layout else (layout.cu_seqlens.clone(), layout.max_seqlen)
    return (*tensors(layout.total, layout.total, device=device, **shape), *bounds)


@pytest.mark.parametrize("as_layout", [False, True])
@pytest.mark.parametrize(("dynamic", "traces"), [(True, 1), (None, 2)])  # by default torch first takes sizes as fixed
def test_new_lengths_need_no_new_trace(fake, as_layout, dynamic, traces):
    module, counter = Twice(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter, dynamic=dynamic)
    check_compiled(compiled, module, [batch_of(lengths, as_layout) for lengths in LENGTHS], EXACT)
    assert counter.frame_count == traces


def test_layers_of_a_batch_share_its_layout(fake, monkeypatch):
    seen = []
    forward, backward = fake.forward, fake.backward
    monkeypatch.setattr(fake, "forward", lambda problem, *x, **y: seen.append(problem) or forward(problem, *x, **y))
    monkeypatch.setattr(fake, "backward", lambda problem, *x, **y: seen.append(problem) or backward(problem, *x, **y))
    compiled = torch.compile(Twice(), fullgraph=True, backend="aot_eager")
    *inputs, layout = batch_of([3, 0, 8], as_layout=True)
    compiled(*inputs, layout)[0].sum().backward()
    assert len(seen) == 4
    assert all(problem.layout_k is layout for problem in seen)
    assert len({problem.layout_q for problem in seen}) == 2


def test_offsets_that_change_in_place_are_read_again(fake):
    compiled = torch.compile(Twice(), fullgraph=True, backend="aot_eager")
    q, k, v, cu_seqlens, _ = batch_of([3, 0, 8], as_layout=False)
    first = compiled(q, k, v, cu_seqlens, 11)[0]
    cu_seqlens[1:3] = 5
    second = compiled(q, k, v, cu_seqlens, 11)[0]
    torch.testing.assert_close(second, Twice()(q, k, v, cu_seqlens, 11)[0])
    assert (first - second).abs().max() > 0.01


def test_export(fake):
    module = Twice()
    rows = torch.export.Dim("rows", max=1000)
    sequences = torch.export.Dim("offsets", min=2, max=100)
    values = (*batch_of([3, 0, 8], as_layout=False)[:-1], 50)
    exported = torch.export.export(module, values, dynamic_shapes=({0: rows}, {0: rows}, {0: rows}, {0: sequences},
                                                                   None))
    assert "jagged_attention.forward" in exported.graph_module.code
    other = (*batch_of([9, 9, 1, 4], as_layout=False)[:-1], 50)
    torch.testing.assert_close(exported.module()(*other), module(*other))


def test_options_break_the_graph_and_count(fake):
    q, k, v, layout = batch_of([3, 0, 8], as_layout=True)

    def step(q, k, v):
        return jagged_flash_attention(q * 2, k, v, cu_seqlens_q=layout, cu_seqlens_k=layout, impl="fake",
                                      options={"fwd": {"stages": 2}}) + 1

    got = torch.compile(step, backend="eager")(q, k, v)
    assert fake.calls[-1][3] == ("fwd", 2)
    torch.testing.assert_close(got, step(q, k, v))


def test_the_shipped_kernels_compiled(device):
    """Through `auto`: on a CPU the portable kernels in Triton's interpreter."""
    torch._dynamo.reset()
    module = Twice(torch.bfloat16, 32).to(device)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    batch = batch_of([3, 0, 8], True, device, dtype=torch.bfloat16, head_dim=32)
    check_compiled(compiled, module, [batch], {"rtol": 2e-2, "atol": 2e-2})


@pytest.mark.gpu
@pytest.mark.parametrize("as_layout", [False, True])
def test_inductor(as_layout):
    torch._dynamo.reset()
    module = Twice(torch.bfloat16, 128).cuda()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    batches = [batch_of(lengths, as_layout, "cuda", dtype=torch.bfloat16, head_dim=128)
               for lengths in ([300, 0, 77, 512], [64] * 9, [1000, 3])]
    check_compiled(compiled, module, batches[:1], {"rtol": 2e-2, "atol": 2e-2})
    with torch._dynamo.config.patch(error_on_recompile=True):
        check_compiled(compiled, module, batches[1:], {"rtol": 2e-2, "atol": 2e-2})


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["self", "cross_window", "broadcast_q"])
def test_opcheck_of_the_kernels(case):
    values = arguments(case, "cuda", dtype=torch.bfloat16, head_dim=128)
    torch.library.opcheck(ops.forward, values, atol=2e-2, rtol=2e-2)
    out, _ = ops.forward(*values)
    dout = torch.randn_like(out)
    grads = torch.autograd.grad(out, values[:3], dout)
    qkv = [x.detach() for x in values[:3]]
    problem = ops._problem(*qkv, *values[3:11])
    exact = (attention_reference(problem, *qkv)[0], *attention_reference_backward(problem, *qkv, dout))
    for got, want in zip((out, *grads), exact, strict=True):
        assert (got.double() - want).abs().max() <= 0.02 * want.abs().max()
