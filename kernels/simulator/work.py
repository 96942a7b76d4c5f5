"""What an asynchronous operation moves or multiplies, for whoever gives operations a duration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Copy(NamedTuple):
    """A copy between global and shared memory, or between two CTAs' shared memory (``tensor`` is '' then).

    ``nbytes`` of shared memory, ``inside`` of them within the tensor (a box may reach past its end); ``tensor`` is the
    kernel's name of the argument, ``coordinates`` where in it.
    """

    nbytes: int
    inside: int
    tensor: str
    coordinates: Sequence[int]
    stores: bool = False
    adds: bool = False


class Matmul(NamedTuple):
    """``[rows, depth] @ [depth, columns]`` on the tensor cores of each of ``ctas``, reading ``smem_bytes`` there."""

    rows: int
    columns: int
    depth: int
    smem_bytes: int
    ctas: int = 1
