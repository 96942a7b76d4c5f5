from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from fake_implementation import FakeImplementation, install

from kernels import dispatch
from kernels.api import jagged_flash_attention, make_problem
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.reference import (
    attention_reference,
    attention_reference_backward,
    attention_reference_lowp,
    attention_reference_lowp_backward,
)


def cu(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int32)


def arguments(**changes):
    """Good arguments, two sequences of 3 and 5 queries over 4 and 2 keys, with changes."""
    good = {"q": torch.randn(8, 4, 16), "k": torch.randn(6, 2, 16), "v": torch.randn(6, 2, 16),
            "cu_seqlens_q": cu(0, 3, 8), "cu_seqlens_k": cu(0, 4, 6), "max_seqlen_q": 5, "max_seqlen_k": 4}
    return good | changes


def test_a_problem_from_tensors():
    problem = make_problem(**arguments(causal=True, window_size=(7, 3)))
    assert problem.layout_q.cu_seqlens.tolist() == [0, 3, 8]
    assert problem.layout_k.cu_seqlens.tolist() == [0, 4, 6]
    assert (problem.num_heads_q, problem.num_heads_kv, problem.head_dim) == (4, 2, 16)
    assert problem.softmax_scale == 0.25
    assert problem.mask == Mask(7, 0)
    assert not problem.broadcast_q
    assert problem.dtype == torch.float32


def test_a_problem_from_layouts_keeps_them():
    layout_q, layout_k = JaggedLayout.from_lengths([3, 5]), JaggedLayout.from_lengths([4, 2])
    changes = {"cu_seqlens_q": layout_q, "cu_seqlens_k": layout_k, "softmax_scale": 2}
    problem = make_problem(**arguments(**changes, max_seqlen_q=None, max_seqlen_k=100))
    assert problem.layout_q is layout_q
    assert problem.layout_k is layout_k
    assert problem.softmax_scale == 2.0


def test_self_attention_shares_one_layout():
    offsets = cu(0, 4, 6)
    problem = make_problem(**arguments(q=torch.randn(6, 4, 16), cu_seqlens_q=offsets, cu_seqlens_k=offsets,
                                       max_seqlen_q=4))
    assert problem.layout_q is problem.layout_k


@pytest.mark.parametrize("max_seqlen_q", [None, 8])
def test_a_dense_q(max_seqlen_q):
    layout_k = JaggedLayout.from_lengths([4, 2])
    changes = {"cu_seqlens_q": None, "cu_seqlens_k": layout_k, "max_seqlen_q": max_seqlen_q}
    problem = make_problem(**arguments(**changes))
    assert problem.broadcast_q
    assert problem.q_shape == (8, 4, 16)
    assert problem.out_shape == (16, 4, 16)
    assert problem.layout_q.cu_seqlens.tolist() == [0, 8, 16]
    assert make_problem(**arguments(**changes)).layout_q is problem.layout_q  # made once for a batch


BAD = {
    "q is no tensor": ({"q": [1.0]}, TypeError, "q: expected a torch.Tensor, got list"),
    "k is 2-D": ({"k": torch.randn(6, 32)}, ValueError, r"k: expected shape \[rows, heads, head_dim\].*\[6, 32\]"),
    "no heads": ({"q": torch.randn(8, 0, 16)}, ValueError, "q: .*at least one head"),
    "integers": ({"q": torch.ones(8, 4, 16, dtype=torch.int32)}, TypeError, "q: .*floating-point.*torch.int32"),
    "dtypes differ": ({"v": torch.randn(6, 2, 16).half()}, TypeError, "v: expected q's dtype, torch.float32, got"),
    "devices differ": ({"k": torch.randn(6, 2, 16, device="meta")}, ValueError, "k: .* q's device, cpu, got meta"),
    "head_dims differ": ({"k": torch.randn(6, 2, 8)}, ValueError, "k: expected q's head_dim, 16, got 8"),
    "v is not like k": ({"v": torch.randn(7, 2, 16)}, ValueError, r"v: expected k's shape, \[6, 2, 16\], got \[7,"),
    "heads don't divide": ({"q": torch.randn(8, 3, 16)}, ValueError, "q: expected a multiple of k's 2 heads, got 3"),
    "int64 offsets": ({"cu_seqlens_k": torch.tensor([0, 4, 6])}, TypeError, "cu_seqlens_k: expected torch.int32, got"),
    "2-D offsets": ({"cu_seqlens_q": cu(0, 8)[None]}, ValueError, r"cu_seqlens_q: expected shape \[B \+ 1\]"),
    "offsets in a list": ({"cu_seqlens_q": [0, 3, 8]}, TypeError, "cu_seqlens_q: .*JaggedLayout or None, got list"),
    "no keys' offsets": ({"cu_seqlens_k": None}, TypeError, "cu_seqlens_k: .*a JaggedLayout, got NoneType"),
    "offsets elsewhere": ({"cu_seqlens_k": torch.empty(3, dtype=torch.int32, device="meta"), "max_seqlen_k": 4},
                          ValueError, "cu_seqlens_k: expected k's device, cpu, got meta"),
    "batches differ": ({"cu_seqlens_q": cu(0, 3, 6, 8)}, ValueError, "cu_seqlens_q: .*as cu_seqlens_k, 2, got 3"),
    "offsets beyond": ({"cu_seqlens_q": cu(0, 3, 9)}, ValueError, "cu_seqlens_q: .*end at 8 rows"),
    "decreasing": ({"cu_seqlens_k": cu(0, 7, 6)}, ValueError, "cu_seqlens_k: .*never decrease"),
    "layout of other rows": ({"cu_seqlens_k": JaggedLayout.from_lengths([3, 2])}, ValueError,
                             "cu_seqlens_k: expected a layout of k's 6 rows, got one of 5"),
    "a layout that lies": ({"cu_seqlens_k": JaggedLayout.from_cu_seqlens(cu(0, 7, 6), total=6), "max_seqlen_k": 9},
                           ValueError, "cu_seqlens_k: .*never decrease"),
    "no maximum": ({"max_seqlen_q": None}, TypeError, "max_seqlen_q: expected an int"),
    "a tensor maximum": ({"max_seqlen_k": torch.tensor(4)}, TypeError, "max_seqlen_k: expected a Python int.*Tensor"),
    "a float maximum": ({"max_seqlen_k": 4.0}, TypeError, "max_seqlen_k: expected a Python int.*float"),
    "a negative maximum": ({"max_seqlen_k": -1}, ValueError, "max_seqlen_k: expected at least 0, got -1"),
    "maximum too small": ({"max_seqlen_q": 4}, ValueError, "max_seqlen_q: 4 is below the longest length, 5"),
    "maximum below a layout's": ({"cu_seqlens_k": JaggedLayout.from_lengths([4, 2]), "max_seqlen_k": 3}, ValueError,
                                 "max_seqlen_k: expected None or at least the layout's 4, got 3"),
    "maximum of a dense q": ({"cu_seqlens_q": None}, ValueError, "max_seqlen_q: .*the dense q's 8 rows, got 5"),
    "a tensor scale": ({"softmax_scale": torch.tensor(0.1)}, TypeError, "softmax_scale: .*Python number.*Tensor"),
    "scale 0": ({"softmax_scale": 0}, ValueError, "softmax_scale: expected a finite number above 0, got 0"),
    "scale NaN": ({"softmax_scale": float("nan")}, ValueError, "softmax_scale: .*got nan"),
    "causal is a number": ({"causal": 1}, TypeError, "causal: expected a bool, got int"),
    "one window": ({"window_size": 4}, TypeError, r"window_size: expected \(left, right\).*got 4"),
    "float window": ({"window_size": (4.0, None)}, TypeError, "window_size: "),
    "negative window": ({"window_size": (-1, -1)}, ValueError, "window_size: left must be None or >= 0, got -1"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_argument_is_named(what):
    changes, error, message = BAD[what]
    with pytest.raises(error, match=message):
        make_problem(**arguments(**changes))


BAD_CALLS = {
    "unknown impl": ({"impl": "fast"}, ValueError, r"impl: expected 'auto' or one of \['best', 'second'\], got 'fast'"),
    "three impls": ({"impl": ("best",) * 3}, TypeError, r"impl: expected a name or a pair"),
    "unknown schedule": ({"schedule": "fast"}, ValueError, "schedule: expected None or one of sorted, zigzag, got 'f"),
    "a named one's schedule": ({"impl": "second", "schedule": "none"}, ValueError, "schedule: .*second's fwd.*'none'"),
    "schedule": ({"schedule": 3}, TypeError, "schedule: expected a name or None, got int"),
    "options' keys": ({"impl": "best", "options": {"forward": {}}}, ValueError, r"options: .*\['fwd', 'bwd'\]"),
    "options for auto": ({"options": {"bwd": {"stages": 2}}}, ValueError, "'bwd' switches belong to an implementation"),
    "unknown switch": ({"impl": "best", "options": {"bwd": {"stage": 2}}}, ValueError, "bwd: unknown switch.*stages"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_wrong_choice_is_named(monkeypatch, what):
    changes, error, message = BAD_CALLS[what]
    best, second = FakeImplementation("best"), FakeImplementation("second")
    install(monkeypatch, best, second)
    with pytest.raises(error, match=message):
        jagged_flash_attention(**arguments(**changes))
    assert not best.calls
    assert not second.calls


def test_validation_reads_nothing_on_a_device():
    """On the meta device any read of a value raises, as a sync would on a GPU."""
    meta = {name: value.to("meta") if isinstance(value, torch.Tensor) else value
            for name, value in arguments().items()}
    problem = make_problem(**meta)
    assert not problem.layout_q.on_host
    assert make_problem(**(meta | {"cu_seqlens_q": None, "max_seqlen_q": None})).out_shape == (16, 4, 16)
    with pytest.raises(ValueError, match="max_seqlen_k: 2 sequences of at most 2 can't make up k's 6 rows"):
        make_problem(**(meta | {"max_seqlen_k": 2}))


def test_the_call_hands_everything_on(monkeypatch):
    best, second = FakeImplementation("best"), FakeImplementation("second")
    install(monkeypatch, best, second)
    call = arguments(impl=("best", "second"), schedule="zigzag", options={"fwd": {"stages": 3}, "bwd": ("bwd", 1)},
                     causal=True, return_lse=True)
    call["q"].requires_grad_()
    out, lse = jagged_flash_attention(**call)
    expected, expected_lse = attention_reference(make_problem(**arguments(causal=True) | {
        name: call[name] for name in "qkv"}), call["q"].detach(), call["k"], call["v"])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-6)
    assert not lse.requires_grad
    out.sum().backward()
    assert [call[2:] for call in best.calls] == [("zigzag", ("fwd", 3))]
    assert [call[2:] for call in second.calls] == [("zigzag", ("bwd", 1))]
    assert isinstance(jagged_flash_attention(**arguments()), torch.Tensor)  # without return_lse: out alone


def test_a_named_implementation_that_is_not_there(monkeypatch):
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS", {"absent": "no_such_module"})
    for options in (None, {"fwd": {"stages": 3}}):
        with pytest.raises(NotImplementedError, match="absent: can't be imported"):
            jagged_flash_attention(**arguments(impl="absent", options=options))


def test_the_package_exports_the_call_and_ours_is_the_package():
    code = "import kernels, sys; print(sorted(kernels.__all__), kernels.__file__, 'triton' in sys.modules)"
    root = dispatch.__file__.rsplit("/kernels/", 1)[0]
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root).stdout
    assert printed.strip() == f"['JaggedLayout', 'Mask', 'jagged_flash_attention'] {root}/kernels/__init__.py False"


SHAPES = {
    "self": {"lengths_q": [5, 0, 33, 1, 18], "lengths_k": [5, 0, 33, 1, 18], "causal": True},
    "cross_window": {"lengths_q": [20, 3, 0, 17], "lengths_k": [7, 19, 4, 0], "window": (6, 2)},
    "broadcast_q": {"lengths_q": None, "lengths_k": [12, 0, 21]},
    "all_empty": {"lengths_q": [0, 0], "lengths_k": [0, 0]},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("impl", ["auto", "portable"])
def test_end_to_end_against_the_oracle(shape, impl, device):
    """Through the shipped kernels; errors no larger than a few times the low-precision twin's."""
    spec = SHAPES[shape]
    generator = torch.Generator().manual_seed(3)
    layout_k = JaggedLayout.from_lengths(spec["lengths_k"], device)
    layout_q = None if spec["lengths_q"] is None else JaggedLayout.from_lengths(spec["lengths_q"], device)
    rows_q = 10 if layout_q is None else layout_q.total
    q, k, v = (torch.randn(rows, heads, 32, generator=generator).bfloat16().to(device).requires_grad_()
               for rows, heads in ((rows_q, 4), (layout_k.total, 2), (layout_k.total, 2)))
    options = {"cu_seqlens_q": layout_q, "cu_seqlens_k": layout_k, "causal": spec.get("causal", False),
                   "window_size": spec.get("window", (None, None))}
    out, lse = jagged_flash_attention(q, k, v, **options, return_lse=True, impl=impl)
    dout = torch.randn(out.shape, generator=generator).bfloat16().to(device)
    out.backward(dout)

    tensors = [x.detach() for x in (q, k, v)]
    problem = make_problem(*tensors, **options)
    exact_out, exact_lse = attention_reference(problem, *tensors)
    exact = (exact_out, *attention_reference_backward(problem, *tensors, dout))
    low = (attention_reference_lowp(problem, *tensors)[0], *attention_reference_lowp_backward(problem, *tensors, dout))
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)
    for name, got, want, twin in zip(("out", "dq", "dk", "dv"), (out, q.grad, k.grad, v.grad), exact, low, strict=True):
        assert got.shape == want.shape, name
        assert got.dtype == torch.bfloat16, name
        if want.numel():
            error, allowed = ((x.double() - want).abs().max().item() for x in (got, twin))
            assert error <= 2 * allowed + 1e-3 * want.abs().max().item(), name
