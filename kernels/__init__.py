"""Attention over jagged (packed, variable-length) batches: TLX and Triton kernels, forward and backward."""

from kernels.api import jagged_flash_attention
from kernels.jagged_layout import JaggedLayout
from kernels.mask import Mask

__all__ = ["JaggedLayout", "Mask", "jagged_flash_attention"]
