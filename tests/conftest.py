"""Runs plain Triton kernels in Triton's interpreter where there is no GPU, and skips what needs one."""

from __future__ import annotations

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported, which is after this file
    torch.set_num_threads(1)  # tensors are tiny: on a busy machine more threads wait for each other, ten times as long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@pytest.fixture
def device() -> torch.device:
    """Where kernels run in this session."""
    return torch.device("cuda" if HAS_GPU else "cpu")
