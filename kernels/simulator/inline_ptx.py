"""Python equivalents of inline PTX: what one instruction does; moves that pack registers around it are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from kernels.simulator.context import machine, this_task
from kernels.simulator.errors import SimulationError
from kernels.simulator.global_memory import Pointer
from kernels.simulator.inline_blocks import block_of


def _fma(a: Any, b: Any, c: Any) -> Any:
    return torch.addcmul(c, a, b) if all(isinstance(x, torch.Tensor) for x in (a, b, c)) else a * b + c


#: By the beginning of the opcode; register tensors in, one register tensor out.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "fma": _fma,
    "max": torch.fmax, "min": torch.fmin, "tanh.approx": torch.tanh, "ex2.approx": torch.exp2, "lg2.approx": torch.log2,
    "rcp.approx": lambda a: 1.0 / a, "neg": lambda a: -a,
}
#: Instructions that only steer the compiler or order a warp with itself.
_NOTHING = ("bar.warp.sync", "griddepcontrol", "prefetch", "nanosleep", "pragma", "setp", "bra")


def _wait_group(code: str) -> None:
    """``cp.async.bulk.wait_group N``: unlike ``.read``, the writes to global memory are done too."""
    pending = int(code.rstrip(";").split()[-1])
    task = this_task()
    old = task.stores[: len(task.stores) - pending]
    if any(not op.done for op in old):
        machine().wait(f"bulk stores (all but {pending}, complete)", lambda: all(op.done for op in old))
    for op in old:
        task.acquire(op.global_writes())
    if ".read" in code:
        raise SimulationError("unsupported", "cp.async.bulk.wait_group.read in inline PTX: use "
                                             "async_descriptor_store_wait")
    task.stores = task.stores[len(old):]


def _synchronise(line: str, args: list[Any]) -> Any:
    """A flag in global memory: ``ld.acquire`` in a loop until ``args[1]`` is reached, or ``red.release``, by one."""
    pointer, task = args[0], this_task()
    if not isinstance(pointer, Pointer):
        raise SimulationError("unsupported", f"inline PTX on an address that is no pointer: {line}")
    if line.startswith("red.release"):
        machine().pause()
        pointer.synchronise(task, 1, releases=True)
        return torch.zeros((), dtype=torch.int32)
    wanted = int(args[1])
    machine().wait(f"{pointer.target.name}[{int(pointer.offset)}] to reach {wanted}",
                   lambda: bool(pointer.target.flat[int(pointer.offset)] >= wanted))
    return pointer.synchronise(task, 0, releases=False)


def run_inline_ptx(asm: str, args: list[Any]) -> Any:
    """The result of ``tl.inline_asm_elementwise``. Raises ``unsupported`` for PTX that has no equivalent here."""
    if block := block_of(asm):
        this_task().note(block[0])
        return block[1](args)
    lines = [re.sub(r"^@!?%\w+ ", "", line.strip()) for line in re.split(r"[;{}\n]", asm)]
    code = [line for line in lines if re.match(r"[a-z]", line) and not line.startswith("mov")]
    if any(line.startswith("ld.acquire") for line in code):  # then relaxed looks before it change nothing
        code = [line for line in code if not line.startswith("ld.relaxed")]
    if not code:
        return args[0] if args else None
    this_task().note(code[0].split()[0])
    result: Any = args[0] if args else torch.zeros((), dtype=torch.int32)
    effects = 0
    for line in code:
        if line.startswith("cp.async.bulk.wait_group"):
            _wait_group(line)
        elif line.startswith("fence.proxy.async"):
            this_task().proxy_fence()
        elif line.startswith(("ld.acquire", "red.release")):
            result = _synchronise(line, args)
        elif not line.startswith((*_NOTHING, "fence", "membar", "cp.async.bulk.commit_group")):
            continue
        effects += 1
    if effects == len(code):
        return result
    if len(code) - effects == 1:
        (line,) = [each for each in code if not each.startswith(("cp.async", "fence", "membar", *_NOTHING))]
        for opcode, function in ARITHMETIC.items():
            if line.startswith(opcode):
                return function(*args)
    raise SimulationError("unsupported", f"inline PTX without an equivalent: {' ; '.join(code)}")
