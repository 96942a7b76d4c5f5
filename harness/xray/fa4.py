"""FlashAttention-4's own kernels, compiled by CuTe DSL.

Runs in a process for each shape: the stubs stay (see `fa4_stubs`), and FA4 compiles a kernel once a process.
"""

from __future__ import annotations

import importlib
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.backends.packages import last_line, version_of
from harness.records import Status
from harness.xray.fa4_stubs import pretend
from harness.xray.reading import read_kernel
from harness.xray.rows import XrayRow
from harness.xray.survey import FA4
from kernels.xray_targets import MASKS, Shape

NAME = "fa4"
_HEADS, _ROWS, _BATCH = 4, 4096, 4  # what is compiled does not depend on them


def compile_rows(arch: str, shape: Shape) -> list[XrayRow]:
    """The rows of the kernels that FA4 runs for a jagged problem of this shape, or one row that says why not."""
    identity = {"arch": arch, "backend": NAME, "version": f"{FA4} {version_of(FA4)}",
                "shape": str(shape), "config": NAME}
    with tempfile.TemporaryDirectory(prefix="xray-") as folder:
        try:
            pretend(int(re.sub(r"\D", "", arch)), folder)
            interface = importlib.import_module("flash_attn.cute.interface")  # beside the public: without autograd
        except Exception as error:  # whatever a package does while it is imported is its row's message
            return [_failed(identity, Status.IMPORT_ERROR, error)]
        try:
            with warnings.catch_warnings(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
                warnings.simplefilter("ignore")
                _call(interface, shape)
            return _rows(identity, Path(folder))
        except Exception as error:
            return [_failed(identity, Status.CRASH, error)]


def _failed(identity: dict[str, str], status: Status, error: Exception) -> XrayRow:
    return XrayRow.model_validate({**identity, "status": status, "message": last_line(error)})


def _rows(identity: dict[str, str], dump: Path) -> list[XrayRow]:
    rows = []
    for cubin in sorted(dump.glob("*.cubin")):
        ptx, ir = cubin.with_suffix(".ptx"), next(dump.glob(f"*{cubin.name.split('.')[0]}_clean.mlir"))
        rows += read_kernel({**identity, "kernel": _kernel_name(cubin.name)}, ptx.read_text(), cubin.read_bytes(),
                            _smem_bytes(ir.read_text()))
    return rows


def _call(interface: Any, shape: Shape) -> None:
    def tensor(heads: int) -> torch.Tensor:
        return torch.empty(_ROWS, heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)

    mask = MASKS[shape.mask]
    bounds = torch.empty(_BATCH + 1, device="cuda", dtype=torch.int32)
    given: dict[str, Any] = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, "max_seqlen_q": 2048,
                             "max_seqlen_k": 2048, "softmax_scale": shape.head_dim ** -0.5}
    if mask.left is None:
        given["causal"] = mask.right == 0
    else:
        given |= {"window_size_left": mask.left, "window_size_right": mask.right}
    q, k, v = tensor(_HEADS), tensor(_HEADS // shape.group_size), tensor(_HEADS // shape.group_size)
    if shape.direction == "fwd":
        interface._flash_attn_fwd(q, k, v, return_lse=True, **given)
    else:
        lse = torch.empty(_HEADS, _ROWS, device="cuda", dtype=torch.float32)
        interface._flash_attn_bwd(q, k, v, tensor(_HEADS), tensor(_HEADS), lse, **given)


def _kernel_name(file: str) -> str:
    """``flash_fwd_sm90`` from the file of a kernel of the class ``flash_attn.cute.flash_fwd_sm90.Flash...``."""
    found = re.search(r"flash_attncute([a-z0-9_]+)[A-Z]", file)
    return found[1] if found else file.split(".")[0]


def _smem_bytes(mlir: str) -> int:
    """Shared memory of the kernel: its `alloca`s in the memory space, which are all dynamic."""
    types = dict(re.findall(r'^(!\w+) = !cute\.memref<i8, smem, [^"]*"(\d+):1">', mlir, flags=re.MULTILINE))
    return sum(int(types[name]) for name in re.findall(r"cute\.memref\.alloca\(\) \{smem\..*: (!\w+)$", mlir,
                                                       flags=re.MULTILINE))
