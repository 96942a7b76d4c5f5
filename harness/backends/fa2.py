"""FlashAttention-2 as torch ships it: `torch.nn.attention.varlen.varlen_attn`."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

from harness.backends.base import Availability, Backend, Operation
from harness.backends.packages import find_gpu_package
from harness.backends.packed_operation import PackedOperation
from harness.backends.rival import expand_queries
from harness.cases import Case
from harness.inputs import Inputs
from kernels.mask import Mask

CAUSAL = Mask(None, 0)


@cache
def _parameters() -> frozenset[str]:
    """Names of the parameters of this torch's `varlen_attn`; they differ between versions."""
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)


class FlashAttention2Operation(PackedOperation):
    """Kernel scope: the aten operators that `varlen_attn` and its backward call."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        mask = self.problem.mask
        self._window = tuple(-1 if bound is None else bound for bound in (mask.left, mask.right))
        self._rng_state: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def impl(self) -> dict[str, str]:
        """One variant, and whether Q was expanded."""
        token = "varlen/expanded" if self.problem.broadcast_q else "varlen"
        return {"fwd": token, "bwd": token}

    def _positional(self) -> tuple[Any, ...]:
        """Offsets and longest lengths, as every entry takes them."""
        layout_q, layout_k = self.problem.layout_q, self.problem.layout_k
        return layout_q.cu_seqlens, layout_k.cu_seqlens, layout_q.max_seqlen, layout_k.max_seqlen

    def _mask_arguments(self) -> dict[str, Any]:
        return {"scale": self.problem.softmax_scale, "window_size_left": self._window[0],
                "window_size_right": self._window[1]}

    def run_forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``aten::_flash_attention_forward`` without dropout."""
        out, lse, *rng_state, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, *self._positional(), 0.0, self.problem.mask == CAUSAL, False, **self._mask_arguments())
        self._rng_state = (rng_state[0], rng_state[1])
        return out, lse

    def run_backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                     dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``aten::_flash_attention_backward``."""
        assert self._rng_state is not None
        return torch.ops.aten._flash_attention_backward(
            dout, q, k, v, out, lse, *self._positional(), 0.0, self.problem.mask == CAUSAL, *self._rng_state,
            **self._mask_arguments())

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`varlen_attn` on expanded queries."""
        from torch.nn.attention.varlen import varlen_attn

        arguments: dict[str, Any] = {"scale": self.problem.softmax_scale}
        if "window_size" in _parameters():
            arguments["window_size"] = self._window
        else:
            arguments["is_causal"] = self.problem.mask == CAUSAL
        if "enable_gqa" in _parameters():
            arguments["enable_gqa"] = self.problem.group_size > 1
        arguments = {name: value for name, value in arguments.items() if name in _parameters()}
        out = varlen_attn(expand_queries(self.problem, q), k, v, *self._positional(), **arguments)
        return out[0] if isinstance(out, tuple) else out, None

    def packed_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """FlashAttention-2 gives +inf to a query that sees no key."""
        return lse.masked_fill(lse == float("inf"), float("-inf"))


class FlashAttention2Backend(Backend):
    """Needs nothing but a CUDA torch of 2.10 or later."""

    name = "fa2"

    def availability(self, device: torch.device) -> Availability:
        """`varlen_attn` came with torch 2.10."""
        return find_gpu_package(device, "torch", "torch.nn.attention.varlen", "varlen_attn needs torch 2.10 or later")

    def declines(self, case: Case, direction: str, device: torch.device) -> str | None:
        """Head dimensions above 256, and windows where this torch has none."""
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "needs compute capability 8.0 or newer"
        if case.head_dim > 256 or case.head_dim % 8:
            return f"head_dim {case.head_dim} is not a multiple of 8 up to 256"
        if not (case.mask.is_full or case.mask == CAUSAL) and "window_size" not in _parameters():
            return f"varlen_attn of torch {torch.__version__} has no window_size"
        return None

    def prepare(self, inputs: Inputs) -> Operation:
        """See `FlashAttention2Operation`."""
        return FlashAttention2Operation(inputs)
