"""The selection rule: layout statistics -> variant of the Hopper forward."""

from __future__ import annotations

from dataclasses import replace

from kernels.hopper.options import VARIANTS, HopperForwardOptions
from kernels.problem import JaggedProblem

MASKED_SECTION_MB = 40


def select_forward(problem: JaggedProblem) -> HopperForwardOptions:
    """The variant for a problem. Only the layouts' mean and longest lengths, the head dimension and the mask matter.

    Short sequences pay for the gap between tiles and for padding: independent workers with 64-row tiles, two CTAs an
    SM (``solo64``, which keeps Q in registers). From a mean of 320 queries and keys on, blocks of 128 keys pay, as
    they have fewer instructions a key: two groups share a 128-row tile with its K and V (``pair128``). Where many
    queries see few keys, and where Q is one tile of up to 192 rows, three groups read K and V once for 192 rows
    (``trio64``). At D = 64 the registers are enough for three CTAs an SM (``tri64c``).

    A mask makes tiles of one sequence unequal, so items are drawn from a counter (``dynamic``), whatever the variant,
    and all heads of a sequence go together, its heaviest tiles first. Under a causal mask or another right bound alone,
    two groups that walk their own blocks of 64 keys (``duo64``) waste less of the diagonal than ``pair128``, which pays
    from a mean of 768 on; under a left bound ``solo64`` serves up to a mean of 2,048. Without a mask, dealing sorted
    sequences in zigzag costs nothing in the kernel and balances as well, but for D = 64.
    """
    mean_q, mean_k = (layout.total / max(layout.batch, 1) for layout in (problem.layout_q, problem.layout_k))
    if problem.head_dim == 64:
        variant = "tri64c"
    elif problem.mask.left is not None:
        variant = "pair128" if min(mean_q, mean_k) > 2048 else "solo64"
    elif not problem.mask.is_full:
        mean = min(mean_q, mean_k)
        variant = "pair128" if mean >= 768 else "duo64" if mean >= 320 else "solo64"
    elif min(mean_q, mean_k) >= 320:
        variant = "pair128"
    elif (128 < problem.layout_q.max_seqlen <= 192 and mean_q > 128 and mean_k > 512) or mean_q >= 512:
        variant = "trio64"
    else:
        variant = "solo64"
    if not problem.mask.is_full:
        return replace(VARIANTS[variant], schedule="dynamic", section_mb=MASKED_SECTION_MB)
    return replace(VARIANTS[variant], schedule="dynamic") if variant == "tri64c" else VARIANTS[variant]

