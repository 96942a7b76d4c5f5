"""Small backwards for the simulator, and how close to the oracle they must be."""

import torch

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.reference import attention_reference, attention_reference_backward, attention_reference_lowp_backward
from kernels.simulator import Simulator

SELF = [0, 300, 64, 129, 1]
CROSS = ([65, 128, 1, 0, 200], [64, 0, 130, 70, 257])


def problem(len_q, len_k, heads_q=1, heads_kv=1, dim=128, dtype=torch.bfloat16, mask=None, scale=None):
    """Lengths that are one list have one layout, as in self-attention; equal ones in two lists have two."""
    layout_k = JaggedLayout.from_lengths(len_k)
    broadcast = isinstance(len_q, int)
    layout_q = layout_k if len_q is len_k else JaggedLayout.from_lengths(len_q) if not broadcast else \
        JaggedLayout.uniform(len(len_k), len_q)
    return JaggedProblem(layout_q, layout_k, heads_q, heads_kv, dim, dtype, scale or dim ** -0.5, mask or Mask(),
                         broadcast)


def tensors(case):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(case.dtype)
            for shape in (case.q_shape, case.kv_shape, case.kv_shape, case.out_shape)]


def simulate_backward(backward, arch, case, q, k, v, dout, options, schedule=None, mode="random", seed=0, sms=3):
    """The gradients of a module's ``backward`` by one schedule, each element written, and the simulator."""
    out, lse = attention_reference(case, q, k, v, dtype=torch.float32)
    case.layout_k._cache.clear()
    with Simulator(seed, mode, arch=arch, sms=sms) as simulator:
        grads = backward.backward(case, q, k, v, out.to(case.dtype), lse.contiguous(), dout, schedule, options)
    for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
        simulator.check_written(grad, name=name)
    return grads, simulator


def check_gradients(case, q, k, v, dout, grads):
    oracle = attention_reference_backward(case, q, k, v, dout)
    twin = attention_reference_lowp_backward(case, q, k, v, dout)
    for name, grad, exact, low in zip(("dq", "dk", "dv"), grads, oracle, twin, strict=True):
        error, allowed = (grad.double() - exact).abs().max(), (low.double() - exact).abs().max()
        assert error <= 2 * allowed + 1e-3 * exact.abs().max(), name
