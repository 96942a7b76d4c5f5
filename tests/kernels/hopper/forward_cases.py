"""Problems, tensors and the check against the oracle that the tests of the Hopper forward share."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.hopper.options import VARIANTS
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask
from kernels.problem import JaggedProblem
from kernels.reference import attention_reference, attention_reference_lowp

MASKS = {"full": Mask(), "causal": Mask.make(True), "window": Mask.make(window_size=(70, 5)), "left": Mask(64, None),
         "right": Mask(None, 30)}
EDGES = ([65, 128, 1, 64, 200, 129, 0, 63, 127, 300], [64, 0, 130, 70, 128, 257, 90, 300, 1, 65])

#: Every variant as the selection rule runs it, and every switch away from its default at least once.
SHIPPED = dict(VARIANTS)
SWITCHED = {
    "solo64, dynamic": replace(VARIANTS["solo64"], schedule="dynamic"),
    "solo64, unsorted": replace(VARIANTS["solo64"], schedule="none"),
    "solo64, sorted": replace(VARIANTS["solo64"], schedule="sorted"),
    "solo64, all masked": replace(VARIANTS["solo64"], peel_masks=False),
    "solo64, late Q": replace(VARIANTS["solo64"], prefetch_next_tile=False),
    "solo64, Q in shared memory": replace(VARIANTS["solo64"], q_in_registers=False),
    "solo64, barriers of a group": replace(VARIANTS["solo64"], warp_barriers=False),
    "solo64, loader of four warps": replace(VARIANTS["solo64"], loader_warps=4),
    "tri64, dynamic": replace(VARIANTS["tri64"], schedule="dynamic"),
    "pair128, dynamic": replace(VARIANTS["pair128"], schedule="dynamic"),
    "pair128, head after head": replace(VARIANTS["pair128"], section_mb=0),
    "pair128, dynamic, head after head": replace(VARIANTS["pair128"], schedule="dynamic", section_mb=0),
    "pair128, no turns": replace(VARIANTS["pair128"], ping_pong=False),
    "pair128, barriers of a group": replace(VARIANTS["pair128"], warp_barriers=False),
    "trio64, unsorted, head after head": replace(VARIANTS["trio64"], schedule="none", section_mb=0),
    "duo64, dynamic": replace(VARIANTS["duo64"], schedule="dynamic"),
    "duo64, Q in shared memory": replace(VARIANTS["duo64"], q_in_registers=False),
    "pair128, apart": replace(VARIANTS["pair128"], ping_pong=False, apart=True),
    "trio64, dynamic": replace(VARIANTS["trio64"], schedule="dynamic"),
    "trio64, barriers of a group": replace(VARIANTS["trio64"], warp_barriers=False),
    "trio64, together": replace(VARIANTS["trio64"], apart=False),
    "solo64, from both ends": replace(VARIANTS["solo64"], both_ends=True),
    "solo64, maximum at each step": replace(VARIANTS["solo64"], stale_max=False),
    "solo64, maximum at each step, all masked": replace(VARIANTS["solo64"], stale_max=False, peel_masks=False),
    "pair128, maximum at each step": replace(VARIANTS["pair128"], stale_max=False),
    "trio64, maximum at each step": replace(VARIANTS["trio64"], stale_max=False),
    "tri64c, maximum at each step": replace(VARIANTS["tri64c"], stale_max=False),
    "solo64, from both ends, dynamic": replace(VARIANTS["solo64"], both_ends=True, schedule="dynamic"),
}
ALL = {**SHIPPED, **SWITCHED}


def problem(len_q, len_k, heads_q=2, heads_kv=2, dim=128, mask=None, dtype=torch.bfloat16, device="cpu"):
    """``len_q`` an int: broadcast Q of that length."""
    layout_k = JaggedLayout.from_lengths(len_k, device)
    broadcast = isinstance(len_q, int)
    layout_q = (JaggedLayout.uniform(len(len_k), len_q, device) if broadcast
                else JaggedLayout.from_lengths(len_q, device))
    return JaggedProblem(layout_q, layout_k, heads_q, heads_kv, dim, dtype, dim ** -0.5, mask or Mask(), broadcast)


def tensors(case, device="cpu", seed=0):
    generator = torch.Generator(device).manual_seed(seed)
    return [torch.randn(shape, generator=generator, device=device).to(case.dtype)
            for shape in (case.q_shape, case.kv_shape, case.kv_shape)]


def check(case, q, k, v, out, lse, rows=slice(None)):
    """Within twice the error of a 16-bit twin of the oracle; rows that see no key are exactly 0 and -inf."""
    exact, exact_lse = attention_reference(case, q, k, v)
    assert (out.shape, lse.shape) == (exact.shape, exact_lse.shape)
    if not exact.numel():
        return
    twin = attention_reference_lowp(case, q, k, v)
    twin = twin[0] if isinstance(twin, tuple) else twin
    none = exact_lse[:, rows].isneginf()
    assert torch.equal(lse[:, rows].isneginf(), none)
    assert not out[rows].double()[none.T].any()
    allowed = 2 * (twin.double() - exact)[rows].abs().max() + 2e-3 * exact[rows].abs().max() + 1e-5
    assert (out.double() - exact)[rows].abs().max() <= allowed
    assert (lse.double() - exact_lse)[:, rows][~none].abs().amax() <= 1e-3 if (~none).any() else True
