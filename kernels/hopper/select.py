"""The selection rule: layout statistics -> variant of the Hopper forward."""

from __future__ import annotations

from dataclasses import replace

from kernels.hopper.options import VARIANTS, HopperForwardOptions
from kernels.problem import JaggedProblem

MASKED_SECTION_MB = 40


def select_forward(problem: JaggedProblem) -> HopperForwardOptions:
    """The variant for a problem. Only the layouts' mean and longest lengths, the head dimension and the mask matter.

    Short sequences pay for the gap between tiles and for padding: independent workers with 64-row tiles, two CTAs an
    SM (``solo64``, which keeps Q in registers), or from a mean of 384 queries and 240 keys three workers in one CTA
    (``tri64``, two of which compute while one is between tiles). Long sequences pay for shared-memory traffic
    instead: two groups share a 128-row tile with its K and V (``pair128``), from a mean of 2,048, or of 1,024 where
    no sequence is much longer than the mean. Up to 192 queries are one tile of three groups (``trio64``): K and V are
    then read once. At D = 64 the registers are enough for three CTAs an SM (``tri64c``).

    A mask makes tiles of one sequence unequal, so items are drawn from a counter (``dynamic``), whatever the variant,
    and all heads of a sequence go together, its heaviest tiles first; ``solo64`` then serves up to a mean of 2,048.
    Without a mask, dealing sorted sequences in zigzag costs nothing in the kernel and balances as well, but for D = 64.
    """
    mean_q, mean_k = (layout.total / max(layout.batch, 1) for layout in (problem.layout_q, problem.layout_k))
    if problem.head_dim == 64:
        variant = "tri64c"
    elif not problem.mask.is_full:
        variant = "pair128" if min(mean_q, mean_k) > 2048 else "solo64"
    elif 128 < problem.layout_q.max_seqlen <= 192 and mean_q > 128 and mean_k > 512:
        variant = "trio64"
    elif _is_long(problem, min(mean_q, mean_k)):
        variant = "pair128"
    else:
        variant = "solo64" if mean_q < 384 or mean_k < 240 else "tri64"
    if not problem.mask.is_full:
        return replace(VARIANTS[variant], schedule="dynamic", section_mb=MASKED_SECTION_MB)
    return replace(VARIANTS[variant], schedule="dynamic") if variant == "tri64c" else VARIANTS[variant]


def _is_long(problem: JaggedProblem, mean: float) -> bool:
    longest = max(problem.layout_q.max_seqlen, problem.layout_k.max_seqlen)
    return mean >= (1024 if mean > 0.75 * longest else 2048)
