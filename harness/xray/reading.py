"""From one compiled kernel to its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.xray.counting import COUNTS, local_bytes
from harness.xray.main_loops import find_roles
from harness.xray.rows import XrayRow
from harness.xray.sass import Sass
from kernels.offline import disassemble, resource_usage


def read_kernel(identity: Mapping[str, Any], ptx: str, cubin: bytes, smem_bytes: int,
                tmem_columns: int | None = None) -> list[XrayRow]:
    """The kernel's row, then one for each of its roles. ``identity`` holds the columns that say what it is.

    ``tmem_columns`` is None where only the PTX tells. Raises `ValueError` for code that isn't one kernel's.
    """
    sass = Sass.parse(disassemble(cubin))
    usage = resource_usage(cubin)
    found: list[dict[str, Any]] = [{
        "threads": threads(ptx), "setmaxnreg": ", ".join(register_requests(ptx)), "stack_bytes": usage["stack"],
        "registers": str(usage["registers"]), "local_bytes": local_bytes(sass.instructions), "smem_bytes": smem_bytes,
        "tmem_columns": allocated_columns(ptx) if tmem_columns is None else tmem_columns,
        "code_bytes": sass.code_bytes}]
    for role in find_roles(sass):
        found.append({"role": role.name, "registers": "/".join(map(str, role.registers)), "loops": role.loops,
                      "local_bytes": role.local_bytes, **{name: role.counts[name] for name in COUNTS}})
    return [XrayRow.model_validate({**identity, **each}) for each in found]


def threads(ptx: str) -> int | None:
    """Threads of a CTA, as the PTX requires them."""
    found = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", ptx)
    return None if found is None else int(found[1]) * int(found[2] or 1) * int(found[3] or 1)


def register_requests(ptx: str) -> list[str]:
    """Each kind of setmaxnreg once, with how often it stands there: ``dec24 x2``, ``inc232``."""
    found = Counter(re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s+(\d+)", ptx))
    kinds = sorted(found, key=lambda kind: (kind[0], int(kind[1])))
    return [f"{way}{value}" + (f" x{found[way, value]}" if found[way, value] > 1 else "") for way, value in kinds]


def allocated_columns(ptx: str) -> int:
    """Columns of tensor memory that tcgen05.alloc asks for, by a number or a register that holds one."""
    total = 0
    for operand in re.findall(r"tcgen05\.alloc\.\S+\s+\[[^\]]+\],\s*(%?\w+)", ptx):
        value = re.search(rf"mov\.[bu]32\s+{re.escape(operand)},\s*(\d+)", ptx) if operand[0] == "%" else None
        if operand[0] == "%" and value is None:
            raise ValueError(f"tcgen05.alloc takes its number of columns from {operand}, which is no constant")
        total += int(value[1] if value else operand)
    return total
