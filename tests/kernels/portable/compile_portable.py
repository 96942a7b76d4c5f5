"""Run apart from pytest, without TRITON_INTERPRET: compiles the portable kernels for GPUs that are not here.

A forward and a backward run up to their launches, with one candidate tile a kernel, on CPU tensors. Prints one JSON
line for each compiled kernel: kernel, arch, registers, stack (bytes a thread; what spills goes there), tensor_memory
(columns, None where there is none). Exits with an error if a launch would compile what was not compiled together.
"""

from __future__ import annotations

import json
from unittest import mock

import torch
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner

from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.offline import OfflineDriver, resource_usage
from kernels.portable import IMPLEMENTATION, backward, forward, tuning
from kernels.portable.tiles import select
from kernels.problem import JaggedProblem

FULL = Mask()
KERNELS = (forward.forward_kernel, backward.delta_kernel, backward.dkdv_kernel, backward.dq_kernel)


def compiled_kernels():
    """What Triton has compiled so far, by kernel and specialisation."""
    return {(kernel.__name__, key): found for kernel in KERNELS for key, found in kernel.device_caches[0][0].items()}


def compile_instead(kernel, grid, problem, arguments):
    """In place of a launch: compile what it needs; nothing, if all was compiled together."""
    before = len(compiled_kernels())
    if isinstance(kernel, Autotuner):
        (kernel.best_config,) = kernel.configs
        kernel.fn.warmup(grid=None, **arguments, **kernel.best_config.all_kwargs())
    else:
        kernel.warmup(grid=None, **arguments)
    assert len(compiled_kernels()) == before, "a launch compiles what was not compiled together"


def compile_for(arch, problem):
    """Compiles the four kernels with the arguments that a call on this problem would pass them."""
    driver.set_active(OfflineDriver(arch))
    for kernel in KERNELS:
        kernel.device_caches.clear()
    for kernel in (forward.FORWARD, backward.DKDV, backward.DQ):
        kernel._best.clear()
    q, k, out = (torch.empty(shape, dtype=problem.dtype)
                 for shape in (problem.q_shape, problem.kv_shape, problem.out_shape))
    with (mock.patch.object(tuning, "launch", compile_instead), mock.patch.object(backward, "launch", compile_instead),
          mock.patch.object(tuning, "candidates", lambda name, problem: select(name, arch // 10, problem.head_dim,
                                                                               256, 256)[1:2])):
        _, lse = IMPLEMENTATION.forward(problem, q, k, k)
        IMPLEMENTATION.backward(problem, q, k, k, out, lse, out)


def make_problem(lengths_q, lengths_k, head_dim, mask=FULL, broadcast_q=False):
    layouts = JaggedLayout.from_lengths(lengths_q), JaggedLayout.from_lengths(lengths_k)
    return JaggedProblem(*layouts, 4, 2, head_dim, torch.bfloat16, 0.1, mask, broadcast_q)


def main():
    long_tail = [300] + [1] * 40
    for arch, problem in ((80, make_problem(long_tail, long_tail, 64)),
                          (90, make_problem([300, 5], [300, 200], 128, Mask(100, 0))),
                          (100, make_problem([32] * 3, [300, 5, 20], 96, broadcast_q=True))):
        compile_for(arch, problem)
        for (name, _), kernel in compiled_kernels().items():
            print(json.dumps({"kernel": name, "arch": arch, **resource_usage(kernel.asm["cubin"]),
                              "tensor_memory": getattr(kernel.metadata, "tmem_size", None)}))


if __name__ == "__main__":
    main()
