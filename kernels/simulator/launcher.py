"""`Simulator`: within it, every launch of a jit function runs here, on CPU tensors."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.offline import OfflineDriver
from kernels.simulator import context
from kernels.simulator.agents import SMEM_LIMIT, TMEM_COLUMNS
from kernels.simulator.clocks import Clocked
from kernels.simulator.compiled import compiled_usage
from kernels.simulator.dtypes import RuntimeInt, as_int, poison, unwrap
from kernels.simulator.errors import Allowed, Findings, SimulationError
from kernels.simulator.frontend import JIT_TYPES, Frontend, Mutation
from kernels.simulator.global_memory import Descriptor, GlobalShadow, GlobalTensor, Pointer, WriteLedger
from kernels.simulator.runtime import BUILTINS, EQUIVALENTS, Runtime
from kernels.simulator.scheduler import Machine, Mode
from kernels.simulator.tl_namespace import TL
from kernels.simulator.tlx_namespace import TLX

_LAUNCH_OPTIONS = frozenset({
    "ctas_per_cga", "enable_fp_fusion", "generate_subtiled_region", "grid", "launch_cooperative_grid", "launch_pdl",
    "maxRegAutoWS", "maxnreg", "minRegAutoWS", "num_ctas", "num_stages", "num_warps", "pingpongAutoWS",
    "preferred_ctas_per_cga", "stream", "warmup",
})


class Simulator:
    """Runs jit functions on the CPU, one seeded schedule of tasks and asynchronous operations.

        with Simulator(seed=3, mode="random", arch=90) as simulator:
            kernel[grid](...)
        simulator.check_written(out)

    Args:
        seed: fixes every choice of the scheduler.
        mode: when asynchronous operations complete: ``eager``, ``lazy`` (as late as is legal) or ``random``.
        arch: 90 (wgmma, named-barrier kernels) or 100 (tcgen05, tensor memory).
        sms: number of SMs that host code sees.
        resident: clusters that run at the same time; of a cooperative launch, all do.
        races: check accesses by vector clocks, and count global writes.
        compile_memory: compile each kernel too (1-3 s a signature, not under ``TRITON_INTERPRET=1``) and check the
            compiler's count of shared and tensor memory, which includes scratch that is not simulated.
        commits_in_order: whether commits of one CTA arrive in the order of their issue.
        allow: findings to count rather than raise, each with its reason.
        errors: warnings to raise after all.
        config: picks an autotuner's configuration, ``(kernel name, config) -> bool``; the first that fits is taken.
        equivalents: Python equivalents of helper functions that wrap inline PTX, by name.
        mutation: changes each kernel's syntax tree first, for mutants.

    Raises `SimulationError` out of the launch; the error names the check, shows a timeline and how to reproduce it.
    """

    def __init__(self, seed: int = 0, mode: Mode = "random", *, arch: int = 90, sms: int = 2, resident: int = 1,
                 races: bool = True, compile_memory: bool = False, commits_in_order: bool = True,
                 allow: Iterable[Allowed] = (), errors: Iterable[str] = (),
                 config: Callable[[str, Any], bool] | None = None,
                 equivalents: Mapping[str, Callable[..., Any]] | None = None, mutation: Mutation | None = None):
        if mode not in ("eager", "lazy", "random"):
            raise ValueError(f"mode: expected eager, lazy or random, got {mode!r}")
        if arch not in (90, 100, 103):
            raise ValueError(f"arch: expected 90, 100 or 103, got {arch}")
        self.seed, self.mode, self.arch, self.sms, self.resident = seed, mode, arch, sms, resident
        self.races, self.commits_in_order, self._config = races, commits_in_order, config
        self._compile_memory = compile_memory
        self.findings = Findings(allow, errors)
        self.ledger = WriteLedger()
        self.covered: set[tuple[str, int]] = set()  # (file, line) of kernel code that did something
        self.smem_bytes = self.tmem_columns = 0  # peak over CTAs and launches; the compiler's with compile_memory
        self.switches = 0
        self._frontend = Frontend(Runtime, TL, TLX, BUILTINS, {**EQUIVALENTS, **(equivalents or {})}, mutation)
        self._undo = contextlib.ExitStack()

    # -- checks after the run

    def write_counts(self, tensor: torch.Tensor) -> torch.Tensor:
        """How often kernels wrote each element since the simulator was made; int16, in the tensor's shape."""
        return self.ledger.of(tensor)

    def check_written(self, tensor: torch.Tensor, where: torch.Tensor | None = None, name: str = "output",
                      times: int | None = 1) -> None:
        """Every element (``where`` is True) was written exactly ``times`` times (None: at least once), others never.

        Raises `SimulationError`: ``never written`` or ``written twice``, with the first such index.
        """
        counts = self.write_counts(tensor)
        wanted = torch.ones_like(counts, dtype=torch.bool) if where is None else where.expand(counts.shape)
        for check, wrong in (("never written", wanted & (counts == 0)),
                             ("written twice", counts > (torch.where(wanted, times, 0) if times else 32766)),
                             ("written twice", ~wanted & (counts > 0))):
            if wrong.any():
                index = tuple(wrong.nonzero()[0].tolist())
                at = f"{name}{list(index)} was written {int(counts[index])} times (one of {int(wrong.sum())} such)"
                self.findings.report(check, at if wanted[index] else at + ", outside of what it may write")

    # -- launches

    def run(self, jit: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        """What ``jit[grid](*args, **kwargs)`` does inside the context."""
        names = jit.arg_names
        bound = dict(zip(names, args, strict=False)) | {name: value for name, value in kwargs.items() if name in names}
        options = {name: value for name, value in kwargs.items() if name not in names}
        unknown = set(options) - _LAUNCH_OPTIONS
        if unknown:
            raise TypeError(f"{jit.__name__}: unknown arguments or launch options {sorted(unknown)}")
        if callable(grid):
            grid = grid(bound)
        sizes = [int(as_int(size)) for size in grid] + [1] * (3 - len(grid))
        if 0 in sizes:
            return
        cluster = tuple(options.get("ctas_per_cga") or (1, 1, 1))
        machine = self._machine((sizes[0], sizes[1], sizes[2]), cluster, options.get("num_warps") or 4)
        if options.get("launch_cooperative_grid"):
            machine.resident = sizes[0] * sizes[1] * sizes[2]
        if self._compile_memory:
            self._check_compiled(jit, bound, options)
        values = self._arguments(jit, bound)
        function = self._frontend.value("kernel", jit)
        outer, context.current = context.current, machine
        try:
            machine.launch(lambda: function(**values))
        except SimulationError as error:
            error.timeline = error.timeline or machine.timeline()
            error.reproduce = error.reproduce or self._how_to_reproduce(jit)
            raise
        finally:
            machine.finish()
            context.current = outer
            self.covered |= machine.covered
            self.switches += machine.switches
            if not self._compile_memory:
                self.smem_bytes = max(self.smem_bytes, machine.peak_smem)
                self.tmem_columns = max(self.tmem_columns, machine.peak_tmem_columns)

    def _machine(self, grid: tuple[int, int, int], cluster: tuple[int, int, int], num_warps: int) -> Machine:
        """The machine of one launch."""
        return Machine(grid, cluster, seed=self.seed, mode=self.mode, arch=self.arch, resident=self.resident,
                       num_warps=num_warps, races=self.races, commits_in_order=self.commits_in_order,
                       findings=self.findings, ledger=self.ledger)

    def _fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        """What host code gets from ``torch.empty``."""
        return poison(tensor)

    def _check_compiled(self, jit: Any, bound: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        usage = compiled_usage(jit, bound, options, self.arch)
        self.smem_bytes = max(self.smem_bytes, usage.shared_bytes)
        self.tmem_columns = max(self.tmem_columns, usage.tmem_columns)
        if usage.shared_bytes > SMEM_LIMIT or usage.tmem_columns > TMEM_COLUMNS:
            raise SimulationError("capacity", f"{jit.fn.__name__} compiles to {usage.shared_bytes} B of shared memory "
                                              f"(limit {SMEM_LIMIT}) and {usage.tmem_columns} columns of tensor memory "
                                              f"(limit {TMEM_COLUMNS})")

    def _how_to_reproduce(self, jit: Any) -> str:
        extra = "" if self.commits_in_order else ", commits_in_order=False"
        return (f"{jit.fn.__name__} under Simulator(seed={self.seed}, mode={self.mode!r}, arch={self.arch}, "
                f"sms={self.sms}, resident={self.resident}{extra})")

    def _arguments(self, jit: Any, bound: Mapping[str, Any]) -> dict[str, Any]:
        shadows: dict[Any, GlobalShadow] = {}
        targets: dict[Any, GlobalTensor] = {}
        atomics: dict[Any, dict[int, Clocked]] = {}

        def target(tensor: torch.Tensor, name: str) -> GlobalTensor:
            made = GlobalTensor(tensor, name, self.findings, self.ledger, shadows)
            made.atomics = atomics.setdefault(made.flat.data_ptr(), {})
            targets[name] = made
            return made

        def convert(name: str, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return Pointer(target(value, name), value.storage_offset())
            if isinstance(value, TensorDescriptor):
                base = value.base
                return Descriptor(target(base, name), base.storage_offset(), value.shape, value.strides,
                                  value.block_shape, value.padding)
            value = unwrap(value)
            return RuntimeInt(value) if type(value) is int and name not in constexprs else value

        constexprs = {name for name, parameter in inspect.signature(jit.fn).parameters.items()
                      if "constexpr" in str(parameter.annotation)}
        return {name: convert(name, value) for name, value in bound.items()}

    # -- taking the place of the GPU

    def __enter__(self) -> Simulator:
        simulator = self

        def autotuned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            return simulator._run_autotuned(tuner, *args, **kwargs)

        empty, empty_like = torch.empty, torch.empty_like

        def on_cpu(function: Any) -> Any:
            return lambda *args, **kwargs: simulator._fresh(
                function(*args, **{k: v for k, v in kwargs.items() if k != "device"}))

        properties = types.SimpleNamespace(multi_processor_count=self.sms, major=self.arch // 10, minor=self.arch % 10,
                                           name="simulated", shared_memory_per_multiprocessor=233_472,
                                           shared_memory_per_block_optin=SMEM_LIMIT, total_memory=2**33)
        patches: list[tuple[Any, str, Any]] = [
            (torch, "empty", on_cpu(empty)), (torch, "empty_like", on_cpu(empty_like)),
            (torch.Tensor, "cuda", lambda tensor, *args, **kwargs: tensor), (Autotuner, "run", autotuned),
            (torch.cuda, "get_device_properties", lambda *args: properties),
            (torch.cuda, "get_device_capability", lambda *args: (properties.major, properties.minor)),
            (torch.cuda, "current_device", lambda: 0),
            (driver, "_active", OfflineDriver(self.arch)),
        ]
        patches += [(kind, "run", lambda jit, *args, **kwargs: simulator.run(jit, *args, **kwargs))
                    for kind in JIT_TYPES]
        for owner, name, value in patches:
            self._undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._undo.close()

    def _run_autotuned(self, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        configs = tuner.configs
        named = dict(zip(tuner.arg_names, args, strict=False))
        if tuner.early_config_prune:
            configs = tuner.early_config_prune(configs, named, **kwargs)
        name = tuner.fn.fn.__name__
        config = next((each for each in configs if self._config is None or self._config(name, each)), None)
        if config is None:
            raise ValueError(f"{name}: the config argument accepts none of {len(configs)} configurations")
        if config.pre_hook:
            config.pre_hook({**named, **kwargs, **config.kwargs})
        tuner.best_config = config
        given = {key: value for key, value in config.all_kwargs().items() if value is not None and key not in kwargs}
        return tuner.fn.run(*args, **kwargs, **given)

