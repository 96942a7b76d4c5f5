"""Outputs in spoilt surroundings: sentinels around each, NaN in what nobody wrote."""

from __future__ import annotations

import math

import pytest
import torch
from portable_problems import GUARD

SENTINEL = 4096.0  # exact in bf16 and fp16; no result comes near


@pytest.fixture
def guarded_empty(monkeypatch):
    """``torch.empty`` gives NaN between sentinels; at the end the sentinels must be as they were."""
    buffers = []
    empty = torch.empty

    def guarded(*shape, dtype=None, device=None):
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        size = math.prod(shape)
        buffer = empty(2 * GUARD + size, dtype=dtype, device=device).fill_(SENTINEL)
        buffer[GUARD:GUARD + size] = math.nan
        buffers.append((buffer, size))
        return buffer[GUARD:GUARD + size].view(shape)

    monkeypatch.setattr(torch, "empty", guarded)
    yield
    monkeypatch.undo()
    for buffer, size in buffers:
        assert (buffer[:GUARD] == SENTINEL).all(), "written before an output"
        assert (buffer[GUARD + size:] == SENTINEL).all(), "written after an output"
