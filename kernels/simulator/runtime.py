"""What rewritten kernels call: starting tasks, assignment, methods; and Python equivalents of builtins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from kernels.simulator.agents import Task
from kernels.simulator.buffers import Pending
from kernels.simulator.context import machine, this_task
from kernels.simulator.dtypes import RuntimeInt, constexpr_only
from kernels.simulator.errors import SimulationError
from kernels.simulator.inline_ptx import ARITHMETIC
from kernels.simulator.tl_namespace import TL, cast, pairwise
from kernels.simulator.tlx_barriers import cluster_barrier

_TENSOR_METHODS = {"reshape", "permute", "trans", "split", "expand_dims", "broadcast_to", "sum"}


class Runtime:
    """``__sim`` in rewritten code."""

    changed: ClassVar[set[bool]] = set()  # for mutants: has a changed index ever differed from the original?

    @staticmethod
    def spawn(function: Callable[[dict[str, Any]], None], names: dict[str, Any], lineno: int, *args: Any,
              num_warps: int | None = None, replicate: int | None = None, **_: Any) -> None:
        """An ``async_task`` block: one task a replica, with the enclosing scope's names by value."""
        parent = this_task()
        cta = parent.cta
        default = bool(args) and args[0] == "default"
        warps = machine().num_warps if default else (num_warps or 4)
        replicas = replicate or 1
        captured = dict(names)
        for replica in range(replicas):
            name = "default" if default else f"task@{lineno}" + (f"[{replica}]" if replicas > 1 else "")
            child = Task(cta, f"{parent.name}/{name}", warps, lambda: function(captured), parent)
            child.replica, child.is_default = replica, default
            cta.children.append(child)

    @staticmethod
    def run_tasks(exclusive: bool = False, no_ending_cluster_sync: bool = False, **_: Any) -> None:
        """The end of an ``async_tasks`` block: start the tasks and wait for all of them."""
        parent = this_task()
        children = parent.cta.children
        if sum(child.is_default for child in children) != 1:
            raise SimulationError("structure", f"async_tasks at line {parent.at} needs exactly one default task")
        parent.cta.children = []
        parent.advance()
        for child in children:
            machine().add(child)
        machine().wait("its tasks", lambda: all(child.greenlet.dead for child in children))
        for child in children:
            parent.acquire(child)
        if len(parent.cta.cluster) > 1 and not no_ending_cluster_sync:  # the compiler's own
            cluster_barrier()

    @staticmethod
    def assign(value: Any) -> Any:
        """A plain assignment: a constexpr integer becomes a runtime one."""
        if type(value) is int:
            return RuntimeInt(value)
        if type(value) is tuple:
            return tuple(Runtime.assign(each) for each in value)
        return value

    @staticmethod
    def constexpr(value: Any) -> Any:
        """An assignment to a name annotated ``tl.constexpr``."""
        return constexpr_only(value, "a name annotated constexpr")

    @staticmethod
    def reached(helper: Callable[[], Any]) -> None:
        """For mutants: calls the helper, and notes this line if that did anything that a schedule could show."""
        before = machine().step
        helper()
        if machine().step != before:
            this_task().line()

    @staticmethod
    def changed_index(old: Any, new: Any) -> Any:
        """For mutants: ``new``, remembering whether it ever differs from ``old``."""
        if int(old) != int(new):
            Runtime.changed.add(True)
        return new

    @staticmethod
    def method(value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """A method call whose meaning on a torch tensor is not Triton's."""
        if isinstance(value, Pending):
            value.refuse()
        if name in ("to", "cast") and isinstance(value, torch.Tensor | int | float):
            return cast(value, *args, **kwargs)
        if isinstance(value, torch.Tensor) and name in _TENSOR_METHODS:
            return getattr(TL, name)(value, *args, **kwargs)
        return getattr(value, name)(*args, **kwargs)


BUILTINS: dict[str, Any] = {
    "range": TL.range,
    "min": lambda *args: pairwise(torch.fmin, min, *args),
    "max": lambda *args: pairwise(torch.fmax, max, *args),
}

#: Helpers of public kernels that wrap inline PTX, by the name under which a kernel's module has them.
EQUIVALENTS: dict[str, Callable[..., Any]] = {
    "_mul_f32x2": ARITHMETIC["mul"], "_sub_f32x2": ARITHMETIC["sub"], "_fma_f32x2": ARITHMETIC["fma"],
    "_reduce_fadd2": lambda p0a, p1a, p0b, p1b: (p0a + p0b, p1a + p1b),
    "tanh_approx_fp32": torch.tanh,
}
