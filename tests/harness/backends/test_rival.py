"""What all rivals share: refusals, a shared Q expanded and its gradients summed, both scopes of packed tensors."""

from __future__ import annotations

import pytest
import torch
from reference_rival import PackedReference, attend
from small_cases import CASES, assert_close

from harness.backends.base import Unsupported
from harness.backends.packed_operation import PackedOperation
from harness.backends.rival import expand_queries, refusals, sum_queries
from harness.inputs import make_inputs


@pytest.mark.parametrize(("error", "expected"), [
    (AssertionError("line\nhead_dim must be 8"), Unsupported),
    (RuntimeError("query must be contiguous"), Unsupported),
    (NotImplementedError(), Unsupported),
    (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), RuntimeError),
    (KeyboardInterrupt(), KeyboardInterrupt),
])
def test_refusals(error, expected):
    with pytest.raises(expected) as raised, refusals():
        raise error
    if expected is Unsupported:
        assert "\n" not in str(raised.value)


def test_queries_are_expanded_and_summed():
    inputs = make_inputs(CASES["broadcast_q"], "cpu")
    expanded = expand_queries(inputs.problem, inputs.q)
    assert expanded.shape == inputs.problem.out_shape
    assert torch.equal(expanded[8:16], inputs.q)
    summed = sum_queries(inputs.problem, torch.ones_like(expanded))
    assert torch.equal(summed, torch.full_like(inputs.q, 4))
    packed = make_inputs(CASES["self"], "cpu")
    assert expand_queries(packed.problem, packed.q) is packed.q
    assert sum_queries(packed.problem, packed.q) is packed.q


class ReferenceOperation(PackedOperation):
    """A rival that is the oracle."""

    impl = {"fwd": "reference", "bwd": "reference"}  # noqa: RUF012

    def run_forward(self, q, k, v):
        assert not q.requires_grad
        return PackedReference(self.problem).forward(q, k, v)

    def run_backward(self, q, k, v, out, lse, dout):
        return PackedReference(self.problem).backward(q, k, v, dout)

    def attend(self, q, k, v):
        return attend(self.problem, expand_queries(self.problem, q), k, v), None


@pytest.mark.parametrize("name", ["self", "cross_causal", "broadcast_q"])
def test_both_scopes_give_packed_results(name):
    inputs = make_inputs(CASES[name], "cpu")
    operation = ReferenceOperation(inputs)
    operation.forward_operation()
    operation.backward_operation()
    assert_close(operation.outputs(), inputs)
    with pytest.raises(RuntimeError, match="forward_kernel"):
        operation.backward_kernel()
    operation.forward_kernel()
    assert operation.outputs().dq is None
    operation.backward_kernel()
    assert_close(operation.outputs(), inputs)
    assert operation.outputs().lse is not None
