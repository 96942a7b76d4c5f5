"""Launching a Triton kernel again without asking again which compiled kernel it is.

Triton's own launch binds and specialises every argument in Python each time, and checks every tensor descriptor: more
host time than a short kernel takes on the device. Here the first launch goes through Triton, which compiles; later
ones hand their arguments to the compiled kernel straight away. What Triton would specialise on must then not change:

- dtypes, the device and compile-time arguments belong to the `Launcher`: make one for each combination;
- pointers are 16-byte aligned (checked at the first launch; tensors that torch allocates are);
- the kernel declares its integers ``do_not_specialize``, or they are multiples of 16 (checked at the first launch).

Needs Triton, so that only modules with kernels may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.driver import GPUDriver
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.jagged_layout import ALIGNMENT_BYTES


class Blocks(NamedTuple):
    """A tensor that a kernel reaches by TMA: a host descriptor, as Triton's `TensorDescriptor`, without its checks.

    ``shape`` and ``strides`` are in elements; ``block_shape`` is what one access moves. ``base`` is 16-byte aligned.
    """

    base: torch.Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    def checked(self) -> TensorDescriptor:
        """The same as Triton's class. Raises `AssertionError` for what TMA can't do."""
        return TensorDescriptor(self.base, self.shape, self.strides, self.block_shape)


class Launcher:
    """One variant of a jit function on one device, with arguments of fixed dtypes.

    Args:
        function: the jit function; its compile-time parameters come last.
        constants: values of its compile-time parameters that have no default.
        options: compiler options, such as ``num_warps``.
    """

    def __init__(self, function: Any, constants: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._function = function
        self._constants = dict(constants)
        self._options = dict(options)
        self._compiled: CompiledKernel | None = None
        self._values: tuple[Any, ...] = ()  # of the compile-time parameters, in their order
        self._driver: Any = None
        self._device = 0

    def __call__(self, grid: tuple[int, int], *args: torch.Tensor | Blocks | int | float) -> None:
        """Launch on the current stream of the current device, which is the launcher's. ``args`` by position.

        Raises `ValueError` at the first launch for arguments that Triton would specialise on.
        """
        compiled = self._compiled
        if compiled is None or self._driver is not driver.active or knobs.runtime.launch_enter_hook:
            self._launch_by_triton(grid, args)
            return
        stream = self._driver.get_current_stream(self._device)
        compiled.run(grid[0], grid[1], 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *args,
                     *self._values)

    def _launch_by_triton(self, grid: tuple[int, int], args: tuple[Any, ...]) -> None:
        values = [arg.checked() if isinstance(arg, Blocks) else arg for arg in args]
        compiled = self._function[grid](*values, **self._constants, **self._options)
        if not isinstance(compiled, CompiledKernel) or not isinstance(driver.active, GPUDriver):
            return  # an interpreter or a simulator ran it, or nothing did
        parameters = self._function.params
        for parameter, arg in zip(parameters, args, strict=False):
            if isinstance(arg, int) and not parameter.do_not_specialize and (arg % 16 or not arg):
                raise ValueError(f"{self._function.__name__}: {parameter.name} must be in do_not_specialize")
            if isinstance(arg, torch.Tensor) and arg.data_ptr() % ALIGNMENT_BYTES:
                raise ValueError(f"{self._function.__name__}: {parameter.name} isn't {ALIGNMENT_BYTES}-byte aligned")
        self._values = tuple(self._constants.get(parameter.name, parameter.default) for parameter in
                             parameters[len(args):])
        self._driver, self._device = driver.active, driver.active.get_current_device()
        self._compiled = compiled
