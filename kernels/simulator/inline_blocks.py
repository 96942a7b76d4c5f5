"""Python equivalents of whole blocks of inline PTX, with branches or exchanges between threads in them.

A block says which it is in its first line, ``// name numbers``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch


def _settle(numbers: list[float], args: list[Any]) -> tuple[Any, ...]:
    """`kernels.hopper.stale_softmax.settle`: a warp, 16 rows, does its step again if a thread's sums pass a limit."""
    scores, _, limit = numbers
    s, p = torch.stack(args[:int(scores)]), torch.stack(args[int(scores):2 * int(scores)])  # [parts, 64, 4]
    m, norm, sums, scale = args[2 * int(scores):2 * int(scores) + 4]
    acc = torch.stack(args[2 * int(scores) + 4:])
    in_threads = sums.reshape(-1, 2, 8, 4).sum(1)  # thread 4 r + c of warp w has column c of rows 16 w + r and + 8
    again = (~(in_threads <= limit)).flatten(1).any(1).repeat_interleave(16)[:, None]  # [64, 1]
    top = s.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax((0, 2))[:, None] * scale
    new = torch.fmax(top, m)
    origin = torch.where(new == -torch.inf, 0.0, new)
    alpha = torch.exp2(m - origin)
    redone = torch.exp2(s * scale - origin)
    return (*torch.where(again, redone, p), torch.where(again, new, m),
            torch.where(again, norm * alpha + redone.sum(0), norm + sums), *torch.where(again, acc * alpha, acc))


_BLOCKS: dict[str, Callable[[list[float], list[Any]], Any]] = {"settle": _settle}


def block_of(asm: str) -> tuple[str, Callable[[list[Any]], Any]] | None:
    """Name and equivalent of a block, a function of its operands; None for PTX that names none."""
    named = re.match(r"// (\w+)((?: [\d.]+)*)\n", asm)
    if not named or named[1] not in _BLOCKS:
        return None
    numbers = [float(number) for number in named[2].split()]
    return named[1], lambda args: _BLOCKS[named[1]](numbers, args)
