"""This project's kernels, compiled. Runs in a process of its own, without TRITON_INTERPRET."""

from __future__ import annotations

from harness.backends.packages import last_line, version_of
from harness.records import Status
from harness.xray.reading import read_kernel
from harness.xray.rows import XrayRow
from kernels.xray_targets import OfflineConfig, compile_config

NAME = "jfa"


def compile_rows(impl: str, arch: str, config: OfflineConfig) -> list[XrayRow]:
    """The rows of a configuration's kernels, or one row that says why there are none. ``arch`` such as ``sm_90a``."""
    identity = {"arch": arch, "backend": NAME, "version": f"fbtriton {version_of('fbtriton')}",
                "shape": str(config.shape), "config": config.name}
    try:
        rows = []
        for kernel in compile_config(impl, config):
            rows += read_kernel({**identity, "kernel": kernel.metadata.name}, kernel.asm["ptx"], kernel.asm["cubin"],
                                kernel.metadata.shared, getattr(kernel.metadata, "tmem_size", 0) or 0)
        return rows
    except Exception as error:  # what a compiler does is the row's message
        return [XrayRow.model_validate({**identity, "status": Status.CRASH, "message": last_line(error)})]
