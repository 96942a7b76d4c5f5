"""`JaggedLayout`: where each sequence of a packed tensor begins and ends."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

ALIGNMENT_BYTES = 16  # what vector loads and TMA need of a tensor's first element
_OWNERS: weakref.WeakValueDictionary[int, JaggedLayout] = weakref.WeakValueDictionary()  # by the id of their offsets


class JaggedLayout:
    """Bounds of ``B`` sequences packed end to end along dimension 0 of a ``[total, H, D]`` tensor.

    Sequence ``b`` is rows ``cu_seqlens[b]:cu_seqlens[b + 1]``; a sequence may be empty, and so may the batch's rows.

    Attributes:
        cu_seqlens: int32 ``[B + 1]`` on the device of the tensors, starting at 0, not decreasing; contiguous and
            16-byte aligned (copied if it wasn't).
        total: number of rows, ``cu_seqlens[-1]``.
        max_seqlen: an upper bound of the lengths (exact where the layout was built from lengths).

    Kernels that need the lengths on the host read `offsets` or `lengths`. A layout that was built on the host has
    them; one that was built from device offsets copies them once, which waits for the device (the only sync here).
    Those that plan on the device, as Hopper's do, read neither. `cached` keeps what kernels derive from the layout
    (tile schedules), so that layers sharing a batch share it. So the values of `cu_seqlens` must not change while the
    layout lives: what was derived from them would be another batch's, and too small for it.
    """

    def __init__(self, cu_seqlens: torch.Tensor, *, total: int, max_seqlen: int, offsets: np.ndarray | None = None):
        if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
            raise ValueError(f"cu_seqlens: expected shape [B + 1], got {list(cu_seqlens.shape)}")
        if cu_seqlens.dtype != torch.int32:
            raise TypeError(f"cu_seqlens: expected torch.int32, got {cu_seqlens.dtype}")
        cu_seqlens = cu_seqlens.contiguous()
        self.cu_seqlens = cu_seqlens if cu_seqlens.data_ptr() % ALIGNMENT_BYTES == 0 else cu_seqlens.clone()
        self.total = int(total)
        self.max_seqlen = int(max_seqlen)
        self._offsets = offsets
        self._cache: dict[Hashable, Any] = {}

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | np.ndarray, device: torch.device | str = "cpu") -> JaggedLayout:
        """From ``B`` lengths on the host; no sync. Raises `ValueError` for a negative length or a total >= 2^31."""
        lengths = np.asarray(lengths, dtype=np.int64).reshape(-1)
        if (lengths < 0).any():
            raise ValueError(f"lengths: must be >= 0, got {int(lengths.min())}")
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] >= 2**31:
            raise ValueError(f"lengths: the total must be below 2^31 rows, got {int(offsets[-1])}")
        cu_seqlens = torch.from_numpy(offsets.astype(np.int32)).to(device, non_blocking=True)
        return cls(cu_seqlens, total=int(offsets[-1]), max_seqlen=int(lengths.max(initial=0)), offsets=offsets)._own()

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: torch.Tensor, *, total: int, max_seqlen: int | None = None) -> JaggedLayout:
        """From int32 offsets ``[B + 1]`` on any device.

        Offsets on the CPU are read at once. Those on a GPU stay there, unread, when ``max_seqlen`` is given;
        without it they are copied to the host (one sync) to find it.
        """
        if cu_seqlens.device.type == "cpu" or max_seqlen is None:
            offsets = cu_seqlens.cpu().numpy().astype(np.int64)
            longest = int(np.diff(offsets).max(initial=0))
            return cls(cu_seqlens, total=total, max_seqlen=longest if max_seqlen is None else max_seqlen,
                       offsets=offsets)
        return cls(cu_seqlens, total=total, max_seqlen=max_seqlen)

    @classmethod
    def uniform(cls, batch: int, length: int, device: torch.device | str = "cpu") -> JaggedLayout:
        """``batch`` sequences of ``length`` rows each, made on the device: no copy, no sync."""
        if batch * length >= 2**31:
            raise ValueError(f"length: {batch} sequences of {length} rows are not below 2^31 rows")
        if length:
            cu_seqlens = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=device)
        else:
            cu_seqlens = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        offsets = np.arange(batch + 1, dtype=np.int64) * length
        return cls(cu_seqlens, total=batch * length, max_seqlen=length, offsets=offsets)._own()

    @staticmethod
    def owner_of(cu_seqlens: torch.Tensor) -> JaggedLayout | None:
        """The living layout that made these very offsets on the host, if one did.

        Where only tensors can be passed, as to an operator, it brings back what the layout has `cached`. Offsets that
        came from elsewhere have no owner: whoever made them may change them.
        """
        layout = _OWNERS.get(id(cu_seqlens))
        return layout if layout is not None and layout.cu_seqlens is cu_seqlens else None

    def _own(self) -> JaggedLayout:
        _OWNERS[id(self.cu_seqlens)] = self
        return self

    @property
    def batch(self) -> int:
        """Number of sequences, ``B``."""
        return self.cu_seqlens.numel() - 1

    @property
    def device(self) -> torch.device:
        """Device of `cu_seqlens`."""
        return self.cu_seqlens.device

    @property
    def on_host(self) -> bool:
        """Whether `offsets` are known to the host, so that reading them doesn't wait for the device."""
        return self._offsets is not None

    @property
    def offsets(self) -> np.ndarray:
        """int64 ``[B + 1]`` on the host (copied from the device at most once)."""
        if self._offsets is None:
            self._offsets = self.cu_seqlens.cpu().numpy().astype(np.int64)
        return self._offsets

    @property
    def lengths(self) -> np.ndarray:
        """int64 ``[B]`` on the host."""
        return np.diff(self.offsets)

    def cached(self, key: Hashable, build: Any) -> Any:
        """``build()``, kept under ``key`` for the life of the layout."""
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    def forget(self) -> None:
        """Drop what `cached` keeps, as if the batch had not been seen before."""
        self._cache.clear()

    def validate(self, suffix: str = "") -> None:
        """Check the values (not only the shape). Raises `ValueError`; may sync, see `offsets`.

        ``suffix`` is appended to the argument's name in the error, as in ``cu_seqlens_q``.
        """
        offsets = self.offsets
        if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != self.total:
            raise ValueError(f"cu_seqlens{suffix}: expected to start at 0, never decrease and end at {self.total} "
                             f"rows, got {_abridged(offsets)}")
        if self.lengths.max(initial=0) > self.max_seqlen:
            raise ValueError(f"max_seqlen{suffix}: {self.max_seqlen} is below the longest length, "
                             f"{int(self.lengths.max())}")

    def __repr__(self) -> str:
        return f"JaggedLayout(batch={self.batch}, total={self.total}, max_seqlen={self.max_seqlen}, {self.device})"


def _abridged(offsets: np.ndarray) -> str:
    values = [str(int(value)) for value in offsets]
    return "[" + ", ".join(values if len(values) <= 8 else [*values[:4], "...", *values[-2:]]) + "]"
