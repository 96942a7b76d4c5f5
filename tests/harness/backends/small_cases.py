"""Cases that a CPU computes in milliseconds, and comparison with the oracle."""

from __future__ import annotations

import numpy as np
import torch

from harness.backends.base import Outputs
from harness.cases import Case
from harness.inputs import Inputs
from kernels.mask import Mask
from kernels.reference import attention_reference, attention_reference_backward

FULL, CAUSAL = Mask(), Mask(None, 0)
SELF = [30, 0, 17, 1]
CROSS_Q, CROSS_K = [30, 5, 17, 0, 9], [12, 0, 40, 4, 9]


def make_case(mode: str, mask: Mask, lengths_q: list[int], lengths_k: list[int], heads: tuple[int, int] = (2, 2),
              head_dim: int = 32, hazard: str = "none") -> Case:
    """A bf16 case."""
    return Case("small", mode, *heads, head_dim, "bf16", mask, np.array(lengths_q), np.array(lengths_k), hazard=hazard)


CASES = {
    "self": make_case("self", FULL, SELF, SELF),
    "causal": make_case("self", CAUSAL, SELF, SELF),
    "window": make_case("self", Mask(4, 2), SELF, SELF),
    "gqa": make_case("self", CAUSAL, SELF, SELF, heads=(4, 2)),
    "cross": make_case("cross", FULL, CROSS_Q, CROSS_K),
    "cross_causal": make_case("cross", CAUSAL, CROSS_Q, CROSS_K),
    "cross_window": make_case("cross", Mask(3, 1), CROSS_Q, CROSS_K),
    "left_window": make_case("cross", Mask(3, None), CROSS_Q, CROSS_K),
    "short_kv": make_case("short_kv", FULL, [40, 3, 21], [8, 8, 8]),
    "broadcast_q": make_case("broadcast_q", FULL, [8] * 4, [12, 0, 40, 4], heads=(4, 2)),
    "broadcast_q_causal": make_case("broadcast_q", CAUSAL, [8] * 4, [12, 0, 40, 4]),
    "all_empty": make_case("self", FULL, [0, 0], [0, 0]),
    "no_keys": make_case("cross", FULL, [4, 0], [0, 0]),
    "no_queries": make_case("cross", FULL, [0, 0], [3, 2]),
    "strided": make_case("self", CAUSAL, SELF, SELF, hazard="noncontiguous"),
    "stride0": make_case("self", FULL, SELF, SELF, hazard="stride0"),
    "nonfinite": make_case("cross", FULL, CROSS_Q, CROSS_K, hazard="nonfinite_neighbours"),
    "guard": make_case("self", FULL, SELF, SELF, hazard="guard"),
}


def assert_close(outputs: Outputs, inputs: Inputs, limit: float = 0.02) -> None:
    """Relative errors (Frobenius) of all that there is, rows of spoilt sequences left out; shapes and dtypes too."""
    problem, sequences = inputs.problem, inputs.clean_sequences.tolist()
    out, lse = attention_reference(problem, inputs.q, inputs.k, inputs.v, sequences=sequences)
    dq, dk, dv = attention_reference_backward(problem, inputs.q, inputs.k, inputs.v, inputs.dout, sequences=sequences)
    expected = {"out": out, "dq": dq, "dk": dk, "dv": dv}
    for name, exact in expected.items():
        got = getattr(outputs, name)
        assert got is not None, name
        assert got.shape == exact.shape, name
        assert got.dtype == problem.dtype, name
        checked = ~exact.isnan()
        error = torch.linalg.vector_norm((got.double() - exact)[checked])
        assert error <= limit * torch.linalg.vector_norm(exact[checked]) + 1e-6, name
    if outputs.lse is not None:
        assert outputs.lse.dtype == torch.float32
        checked = ~lse.isnan()
        torch.testing.assert_close(outputs.lse.double()[checked], lse[checked], atol=1e-2, rtol=1e-2)
