"""Which keys a query sees: full, causal or sliding window, one definition for every kernel and formula.

Sequences are aligned at their ends ("bottom-right"): query ``i`` of a sequence with ``len_q`` queries and
``len_k`` keys stands at key position ``i + len_k - len_q``, as in FlashAttention 2 and later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mask:
    """Key ``j`` is visible to query ``i`` iff ``-left <= j - (i + len_k - len_q) <= right``.

    ``None`` is no bound on that side. Causal is ``right == 0``; use `Mask.make` to combine both arguments.
    """

    left: int | None = None
    right: int | None = None

    @classmethod
    def make(cls, causal: bool = False, window_size: tuple[int | None, int | None] = (None, None)) -> Mask:
        """The mask of ``causal`` and ``window_size=(left, right)``; causal wins over a right bound.

        Raises `ValueError` for a negative bound.
        """
        left, right = window_size
        for name, bound in (("left", left), ("right", right)):
            if bound is not None and bound < 0:
                raise ValueError(f"window_size: {name} must be None or >= 0, got {bound}")
        return cls(left, 0 if causal else right)

    @property
    def is_full(self) -> bool:
        """No bound: every query sees every key of its sequence."""
        return self.left is None and self.right is None

    def key_bounds(self, query: np.ndarray, len_q: np.ndarray, len_k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(low, high)``: query ``i`` sees keys ``low <= j < high``; ``high >= low`` always. Broadcasts."""
        position = np.asarray(query, dtype=np.int64) + len_k - len_q
        low = np.zeros_like(position) if self.left is None else np.clip(position - self.left, 0, len_k)
        high = np.zeros_like(position) + len_k
        if self.right is not None:
            high = np.clip(position + self.right + 1, 0, len_k)
        return low, np.maximum(low, high)

    def visible_pairs(self, lengths_q: np.ndarray, lengths_k: np.ndarray) -> np.ndarray:
        """Exact number of visible (query, key) pairs of each sequence, int64 ``[B]``."""
        lengths_q = np.asarray(lengths_q, dtype=np.int64)
        lengths_k = np.asarray(lengths_k, dtype=np.int64)
        if self.is_full:
            return lengths_q * lengths_k
        sequence = np.repeat(np.arange(len(lengths_q)), lengths_q)
        starts = np.cumsum(lengths_q) - lengths_q
        query = np.arange(len(sequence)) - starts[sequence]
        low, high = self.key_bounds(query, lengths_q[sequence], lengths_k[sequence])
        return np.bincount(sequence, weights=high - low, minlength=len(lengths_q)).astype(np.int64)
