"""Known-good kernels that are not ours: the TLX tutorials of the installed Triton package, run unmodified.

Where a tutorial is flagged, `Allowed.because` says why that is not a fault of the simulator.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

from kernels.simulator.cases import Call, Case, Output
from kernels.simulator.errors import Allowed
from kernels.simulator.launcher import Simulator

_DIRECTORY = Path(triton.__file__).parent / "language" / "extra" / "tlx" / "tutorials"
_SCALE = 0.1

_UNWRITTEN_ACCUMULATOR = Allowed(
    "uninitialised", "The correction task rescales the accumulator before the first MMA of a tile has written it; that "
                     "MMA has use_acc=False, so the value is never used.", where="tmem")
_COMMIT_AT_EXIT = Allowed(
    "commit in flight at exit", "The last release of a ring slot, which nobody waits for, may still be on its way to "
                                "the CTA's own barrier when the CTA ends.")
_STORE_AT_EXIT = Allowed(
    "unwaited at exit", "The kernel ends without waiting for its last TMA store; it may read shared memory of a CTA "
                        "that has ended. Theirs, and without effect as long as nothing else gets that memory at once.",
    where="TMA store")
_MASKED_PREFETCH = Allowed(
    "unwaited at exit", "The last iterations prefetch blocks past the end of K with an all-false mask: nothing is "
                        "read, zeros are written, and nobody waits for them. Theirs.", where="cp.async")
_SAME_STATISTICS = Allowed(
    "race", "Both CTAs of the cluster store the same mean and variance to the same place. Theirs, and benign.",
    where="global memory")


@functools.cache
def load_tutorial(file: str) -> types.ModuleType:
    """The tutorial as a module. Raises `FileNotFoundError` if the installed Triton has no such tutorial."""
    path = _DIRECTORY / file
    if not path.exists():
        raise FileNotFoundError(f"{path}: the installed Triton ({triton.__version__}) has no such TLX tutorial")
    name = "tlx_tutorial_" + path.stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with Simulator(arch=90 if "hopper" in file else 100):  # tutorials ask for the device when they are imported
        spec.loader.exec_module(module)
    return module


def _normal(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = q.float() @ k.float().transpose(-1, -2) * _SCALE
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -float("inf"))
    return torch.softmax(scores, -1) @ v.float()


def _forward(file: str, config: dict[str, Any], shape: tuple[int, ...], causal: bool | None) -> Callable[[], Call]:
    def prepare() -> Call:
        module = load_tutorial(file)
        q, k, v = (_normal(*shape, seed=seed) for seed in range(3))
        reference = _attention(q, k, v, bool(causal))
        extra = [] if causal is None else [causal]
        return lambda: [Output("o", module.attention(q, k, v, _SCALE, *extra, config=config), reference)]

    return prepare


class _Context:
    """Takes the place of autograd's context."""

    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors


def _backward(shape: tuple[int, ...], causal: bool) -> Callable[[], Call]:
    def prepare() -> Call:
        module = load_tutorial("blackwell_fa_ws_pipelined_persistent.py")
        q, k, v, dout = (_normal(*shape, seed=seed) for seed in range(4))
        leaves = [tensor.float().requires_grad_() for tensor in (q, k, v)]
        out = _attention(leaves[0], leaves[1], leaves[2], causal)
        out.backward(dout.float())
        scores = q.float() @ k.float().transpose(-1, -2) * _SCALE
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -float("inf"))
        lse = torch.logsumexp(scores, -1) * 1.4426950408889634  # the tutorial keeps base-2 logarithms
        wanted = {name: torch.as_tensor(leaf.grad) for name, leaf in zip(("dq", "dk", "dv"), leaves, strict=True)}

        def call() -> list[Output]:
            context = _Context()
            _save_forward(module, context, q, k, v, out.detach().to(q.dtype), lse, causal)
            grads = module._attention.backward(context, dout)[:3]
            return [Output(name, grad, wanted[name], times=None)
                    for name, grad in zip(wanted, grads, strict=True)]

        return call

    return prepare


def _save_forward(module: Any, context: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                  lse: torch.Tensor, causal: bool) -> None:
    """What the tutorial's forward leaves in the autograd context, from the reference instead of its kernel."""
    context.save_for_backward(q, k, v, out, lse)
    context.sm_scale, context.HEAD_DIM, context.causal = _SCALE, q.shape[-1], causal


def _gemm(file: str, m: int = 512, n: int = 256, k: int = 256, function: str = "matmul") -> Callable[[], Call]:
    def prepare() -> Call:
        module = load_tutorial(file)
        a, b = _normal(m, k, seed=0, dtype=torch.float16), _normal(k, n, seed=1, dtype=torch.float16)
        reference = a.float() @ b.float()
        return lambda: [Output("c", getattr(module, function)(a, b), reference, 2e-3)]

    return prepare


def _layernorm(file: str, function: str) -> Callable[[], Call]:
    def prepare() -> Call:
        module = load_tutorial(file)
        x, weight, bias = (_normal(*shape, seed=seed, dtype=torch.float16)
                           for seed, shape in enumerate([(8, 4096), (4096,), (4096,)]))
        reference = torch.nn.functional.layer_norm(x.float(), (4096,), weight.float(), bias.float(), 1e-5)

        def call() -> list[Output]:
            out = getattr(module, function)(x, weight, bias, 1e-5)
            return [Output("y", out[0] if isinstance(out, tuple) else out, reference)]

        return call

    return prepare


_HOPPER = {"BLOCK_M": 128, "BLOCK_N": 128, "NUM_BUFFERS": 2, "NUM_MMA_WARPS": 8, "NUM_MMA_GROUPS": 2}
_HOPPER_PERSISTENT = {"BLOCK_M": 128, "BLOCK_N": 128, "NUM_BUFFERS_Q": 1, "NUM_BUFFERS_KV": 2, "NUM_MMA_WARPS": 8,
                      "NUM_MMA_GROUPS": 2}
_BLACKWELL = {"BLOCK_M": 256, "BLOCK_N": 128, "NUM_BUFFERS_KV": 3, "NUM_BUFFERS_QK": 1, "NUM_MMA_GROUPS": 2}
_PERSISTENT = {**_BLACKWELL, "NUM_BUFFERS_Q": 1}
_PIPELINED = {**_PERSISTENT, "NUM_MMA_SLICES": 2, "GROUP_SIZE_N": 1, "RESCALE_OPT": False, "USE_WHERE": False,
              "USE_WARP_BARRIER": False}
_ALLOWED = (_UNWRITTEN_ACCUMULATOR, _COMMIT_AT_EXIT)
_LONG = (1, 3, 512, 128)


_PERSISTENT_FILE = "blackwell_fa_ws_pipelined_persistent.py"
#: Attention forwards: (arch, file, configuration, causal or None where there is no such argument, shape).
FORWARDS: dict[str, tuple[int, str, dict[str, Any], bool | None, tuple[int, ...]]] = {
    "hopper_fa_ws": (90, "hopper_fa_ws.py", _HOPPER, None, (1, 2, 256, 128)),
    "hopper_fa_ws/one-group": (90, "hopper_fa_ws.py", {**_HOPPER, "NUM_MMA_GROUPS": 1, "NUM_MMA_WARPS": 4}, None,
                               (1, 1, 384, 128)),
    "hopper_fa_ws_pipelined": (90, "hopper_fa_ws_pipelined.py", _HOPPER, None, (1, 2, 384, 128)),
    "hopper_fa_ws_pipelined_pingpong": (90, "hopper_fa_ws_pipelined_pingpong.py", _HOPPER, None, (1, 2, 384, 128)),
    "hopper_fa_ws_pipelined_pingpong_persistent": (90, "hopper_fa_ws_pipelined_pingpong_persistent.py",
                                                   _HOPPER_PERSISTENT, None, (1, 3, 384, 128)),
    "blackwell_fa_ws": (100, "blackwell_fa_ws.py", _BLACKWELL, None, (1, 2, 512, 128)),
    "blackwell_fa_ws_pipelined": (100, "blackwell_fa_ws_pipelined.py", _BLACKWELL, False, (1, 2, 512, 128)),
    "blackwell_fa_ws_pipelined/causal": (100, "blackwell_fa_ws_pipelined.py", _BLACKWELL, True, (1, 2, 512, 128)),
    "blackwell_fa_ws_persistent": (100, "blackwell_fa_ws_persistent.py", _PERSISTENT, False, _LONG),
    "blackwell_fa_ws_persistent/causal": (100, "blackwell_fa_ws_persistent.py", _PERSISTENT, True, _LONG),
    "blackwell_fa_ws_pipelined_persistent": (100, _PERSISTENT_FILE, _PIPELINED, False, _LONG),
    "blackwell_fa_ws_pipelined_persistent/causal": (100, _PERSISTENT_FILE, {**_PIPELINED, "GROUP_SIZE_N": 4}, True,
                                                    _LONG),
    "blackwell_fa_ws_pipelined_persistent/rescale-warp": (
        100, _PERSISTENT_FILE, {**_PIPELINED, "RESCALE_OPT": True, "USE_WARP_BARRIER": True}, False, _LONG),
    "blackwell_fa_ws_pipelined_persistent/rescale-where": (
        100, _PERSISTENT_FILE, {**_PIPELINED, "RESCALE_OPT": True, "USE_WHERE": True}, False, _LONG),
    "blackwell_fa_ws_pipelined_persistent/d64": (
        100, _PERSISTENT_FILE, {**_PIPELINED, "NUM_BUFFERS_KV": 6, "BLOCK_N": 64}, False, (1, 3, 512, 64)),
    "blackwell_fa_clc": (100, "blackwell_fa_clc.py", _PIPELINED, False, _LONG),
}


def attention_case(name: str, shape: tuple[int, ...] | None = None) -> Case:
    """An attention forward of `FORWARDS`; ``shape`` is ``(batch, heads, length, head_dim)`` (default: its own)."""
    arch, file, config, causal, own_shape = FORWARDS[name]
    label = name if shape is None else f"{name}/{'x'.join(map(str, shape))}"
    return Case(label, arch, _forward(file, config, shape or own_shape, causal), _ALLOWED if arch >= 100 else ())


def backward_case(name: str, shape: tuple[int, ...], causal: bool, ctas: int, warp_barrier: bool = False) -> Case:
    """The Blackwell backward on one or two CTAs; ``shape`` as in `attention_case`."""

    def config(kernel: str, choice: Any) -> bool:
        return kernel != "_attn_bwd_ws" or (choice.kwargs["NUM_CTAS"] == ctas
                                            and choice.kwargs["USE_WARP_BARRIER"] == warp_barrier)

    return Case(name, 100, _backward(shape, causal), _ALLOWED, config)


#: By name. The order is that of the default listing.
TUTORIALS: dict[str, Case] = {case.name: case for case in (
    *(attention_case(name) for name in FORWARDS),
    backward_case("backward/1-cta", (1, 1, 256, 128), False, 1),
    backward_case("backward/1-cta/causal", (1, 2, 256, 128), True, 1),
    backward_case("backward/1-cta/warp-barrier", (1, 1, 256, 128), False, 1, True),
    backward_case("backward/1-cta/d64", (1, 1, 256, 64), False, 1),
    backward_case("backward/2-cta", (1, 1, 256, 128), False, 2),
    backward_case("backward/2-cta/causal", (1, 1, 512, 128), True, 2),
    Case("blackwell_gemm_2cta", 100, _gemm("blackwell_gemm_2cta.py"), _ALLOWED),
    Case("blackwell_gemm_clc", 100, _gemm("blackwell_gemm_clc.py"), _ALLOWED),
    Case("blackwell_gemm_pipelined", 100, _gemm("blackwell_gemm_pipelined.py"), (*_ALLOWED, _STORE_AT_EXIT)),
    Case("blackwell_gemm_ws", 100, _gemm("blackwell_gemm_ws.py", 256, 256, 128), _ALLOWED),
    Case("hopper_gemm_pipelined", 90, _gemm("hopper_gemm_pipelined.py"), (_MASKED_PREFETCH,)),
    Case("hopper_gemm_ws", 90, _gemm("hopper_gemm_ws.py")),
    Case("hopper_gemm_cooperative", 90, _gemm("hopper-persistent-gemm-ws-cooperative.py", 512, 512, 256,
                                              "matmul_tlx_ws_persistent")),
    Case("hopper_gemm_pingpong", 90, _gemm("hopper-persistent-gemm-ws-pingpong.py", 512, 512, 256,
                                           "matmul_tlx_ws_persistent")),
    Case("layernorm_multi_cta", 100, _layernorm("blackwell-multi-cta-layernorm_test.py", "multi_cta_layernorm"),
         (_SAME_STATISTICS,)),
    Case("layernorm_multi_cta_ws", 100,
         _layernorm("blackwell_multi_cta_layernorm_ws_test.py", "multi_cta_layernorm_ws"), (_SAME_STATISTICS,)),
)}
