from __future__ import annotations

import logging

import pytest
import torch
from fake_implementation import FakeImplementation, install

from kernels import autograd
from kernels.autograd import Plan, jagged_attention, packed
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.reference import attention_reference_backward

FULL = Mask()


@pytest.fixture
def fake(monkeypatch):
    implementation = FakeImplementation("fake")
    install(monkeypatch, implementation)
    return implementation


def make(broadcast_q=False, mask=FULL, dtype=torch.float64):
    layout_k = JaggedLayout.from_lengths([3, 0, 4])
    layout_q = JaggedLayout.from_lengths([2] * 3 if broadcast_q else [2, 3, 5])
    problem = JaggedProblem(layout_q, layout_k, 4, 2, 4, dtype, 0.4, mask, broadcast_q)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)
               for shape in (problem.q_shape, problem.kv_shape, problem.kv_shape))
    return problem, q, k, v


@pytest.mark.parametrize("broadcast_q", [False, True])
@pytest.mark.parametrize("mask", [Mask(), Mask(1, 0)])
def test_gradcheck(fake, broadcast_q, mask):
    problem, q, k, v = make(broadcast_q, mask)
    assert torch.autograd.gradcheck(lambda *x: jagged_attention(problem, *x)[0], (q, k, v))


def test_only_wanted_gradients_come_back(fake):
    problem, q, k, v = make()
    k.requires_grad_(False)
    out, lse = jagged_attention(problem, q, k, v)
    out.backward(torch.ones_like(out))
    assert k.grad is None
    expected = attention_reference_backward(problem, q.detach(), k, v.detach(), torch.ones_like(out))
    torch.testing.assert_close((q.grad, v.grad), (expected[0], expected[2]))
    assert not lse.requires_grad


def test_no_graph_without_grad(fake):
    problem, q, k, v = make()
    with torch.no_grad():
        out, _ = jagged_attention(problem, q, k, v)
    assert out.grad_fn is None
    assert [call[0] for call in fake.calls] == ["fwd"]


def test_kernels_get_contiguous_aligned_tensors(fake):
    problem, q, k, v = make()
    wide = torch.cat([k.detach(), v.detach()], dim=1).requires_grad_()  # K and V side by side, as a projection gives
    misaligned = torch.empty(q.numel() + 1, dtype=q.dtype)[1:].view_as(q).copy_(q.detach()).requires_grad_()
    out, _ = jagged_attention(problem, misaligned, wide[:, :2], wide[:, 2:])
    out.sum().backward()  # a stride-0 gradient
    (_, forward, *_), (_, backward, *_) = fake.calls
    assert len(forward) == 3
    assert len(backward) == 6
    for x in (*forward, *backward):
        assert x.is_contiguous()
        assert x.data_ptr() % 16 == 0
    dq, dk, dv = attention_reference_backward(problem, q.detach(), k.detach(), v.detach(), torch.ones_like(out))
    torch.testing.assert_close(misaligned.grad, dq)
    torch.testing.assert_close(wide.grad, torch.cat([dk, dv], dim=1))


def test_noncontiguous_dout(fake):
    problem, q, k, v = make()
    out, _ = jagged_attention(problem, q, k, v)
    dout = torch.randn(out.shape[::-1], dtype=out.dtype).permute(2, 1, 0)
    out.backward(dout)
    expected = attention_reference_backward(problem, q.detach(), k.detach(), v.detach(), dout)
    torch.testing.assert_close((q.grad, k.grad, v.grad), expected)


def test_packed_copies_only_what_it_must():
    x = torch.zeros(4, 2, 8)
    assert packed(x) is x
    assert packed(x[1:]).data_ptr() == x[1:].data_ptr()
    assert packed(x.transpose(0, 1)).is_contiguous()
    assert packed(torch.zeros(1).expand(4, 2, 8)).is_contiguous()
    assert packed(torch.zeros(65)[1:].view(4, 2, 8)).data_ptr() % 16 == 0


def test_second_derivatives_are_refused(fake):
    problem, q, k, v = make()
    out, _ = jagged_attention(problem, q, k, v)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_the_lse_has_no_gradient(fake):
    problem, q, k, v = make()
    _, lse = jagged_attention(problem, q, k, v)
    with pytest.raises(RuntimeError, match="does not require grad"):
        lse.sum().backward()


def test_directions_mix_and_keep_their_plans(monkeypatch, caplog):
    best, second = FakeImplementation("best", {"bwd": "no backward yet"}), FakeImplementation("second")
    install(monkeypatch, best, second)
    autograd._log_once.cache_clear()
    problem, q, k, v = make()
    with caplog.at_level(logging.INFO, "kernels.autograd"):
        for _ in range(2):
            out, _ = jagged_attention(problem, q, k, v, Plan("auto", "sorted", "F"), Plan("auto", "zigzag", "B"))
            out.sum().backward()
    assert [(direction, schedule, options) for direction, _, schedule, options in best.calls] == [
        ("fwd", "sorted", "F")] * 2
    assert [(direction, schedule, options) for direction, _, schedule, options in second.calls] == [
        ("bwd", "zigzag", "B")] * 2
    assert caplog.messages == ["bwd: second, because best: no backward yet"]  # said once


def test_auto_runs_with_a_schedule_that_the_fallback_does_not_know(monkeypatch, caplog):
    best = FakeImplementation("best", {"bwd": "no backward yet"})
    second = FakeImplementation("second", schedules={"bwd": ("none",)})
    install(monkeypatch, best, second)
    autograd._log_once.cache_clear()
    problem, q, k, v = make()
    with caplog.at_level(logging.INFO, "kernels.autograd"):
        out, _ = jagged_attention(problem, q, k, v, Plan(schedule="zigzag"), Plan(schedule="zigzag"))
        out.sum().backward()
    assert best.calls[0][2] == "zigzag"
    assert second.calls[0][2] is None
    assert caplog.messages == [
        "bwd: second, because best: no backward yet; second has no schedule 'zigzag' and takes its own"]


def test_a_named_backward_s_unknown_schedule_is_told_by_the_forward(monkeypatch):
    best = FakeImplementation("best", schedules={"bwd": ("none",)})
    install(monkeypatch, best)
    problem, q, k, v = make()
    plan = Plan("best", "zigzag")
    with pytest.raises(ValueError, match=r"schedule: .*best's bwd.*'zigzag'"):
        jagged_attention(problem, q, k, v, plan, plan)
    with pytest.raises(ValueError, match=r"schedule: .*best's fwd.*'none'"):
        jagged_attention(problem, q, k, v, Plan("best", "none"), Plan("best"))
    assert best.calls == []
    with torch.no_grad():
        jagged_attention(problem, q, k, v, plan, plan)
    jagged_attention(problem, q.detach(), k.detach(), v.detach(), plan, plan)
    assert [call[2] for call in best.calls] == ["zigzag"] * 2


def test_a_missing_backward_is_told_when_asked_for(monkeypatch):
    install(monkeypatch, FakeImplementation("best", {"bwd": "no backward yet"}), FakeImplementation("second"))
    problem, q, k, v = make()
    out, _ = jagged_attention(problem, q, k, v, Plan("best"), Plan("best"))
    with pytest.raises(NotImplementedError, match="best: no backward yet"):
        out.sum().backward()


def test_under_torch_compile(fake):
    problem, q, k, v = make()

    def step(q, k, v):
        return jagged_attention(problem, q * 2, k, v)[0] + 1

    expected = step(q, k, v)
    grads = torch.autograd.grad(expected.sum(), (q, k, v))
    got = torch.compile(step, backend="eager")(q, k, v)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), (q, k, v)), grads)
    assert len(fake.calls) == 4
