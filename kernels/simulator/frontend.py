"""The front end: a ``@triton.jit`` function's own source, rewritten so that Python can run it.

- ``with tlx.async_task(...)`` becomes a local function. Every name that it assigns is captured by value from the
  enclosing scope when a task starts, so replicas and tasks never share a variable.
- ``x op= y`` becomes ``x = x op y``: register tensors are values.
- Methods that mean something else on torch tensors (``.to``, ``.split``, ...) go through the runtime.
- Globals: ``tl``, ``tlx``, builtin PTX helpers and other jit functions are replaced; constexprs become plain values.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

import triton.language as real_tl
import triton.language.extra.tlx as real_tlx
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from kernels.simulator.errors import SimulationError

JIT_TYPES = (JITFunction, InterpretedFunction)  # the second is what @triton.jit makes under TRITON_INTERPRET=1
_METHODS = {"to", "split", "trans", "cast", "reshape", "permute", "expand_dims", "broadcast_to", "sum", "store",
            "load"}
_COMPILED: dict[Callable[..., Any], types.CodeType] = {}  # unmutated, by the function that @triton.jit wraps
#: Changes a kernel's syntax tree before it is rewritten: (function, tree) -> tree.
Mutation = Callable[[types.FunctionType, ast.Module], ast.Module]


def _is_call_of(node: ast.With, name: str) -> bool:
    call = node.items[0].context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == name


def _assigned_names(body: list[ast.stmt]) -> list[str]:
    names = {node.id for stmt in body for node in ast.walk(stmt)
             if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del)}
    names |= {node.name for stmt in body for node in ast.walk(stmt) if isinstance(node, ast.FunctionDef)}
    return sorted(names)


def _locate(new: ast.AST, old: ast.stmt | ast.expr) -> Any:
    """Give every new node that has no position that of ``old``."""
    for node in ast.walk(new):
        if isinstance(node, ast.stmt | ast.expr) and not hasattr(node, "lineno"):
            ast.copy_location(node, old)
    if isinstance(new, ast.FunctionDef | ast.Expr) and new.lineno < old.lineno:
        ast.copy_location(new, old)
    return new


def _runtime_call(name: str, *args: ast.expr) -> ast.Call:
    call = ast.Call(ast.Attribute(ast.Name("__sim", ast.Load()), name, ast.Load()), list(args), [])
    return _locate(call, args[0])


class _Rewrite(ast.NodeTransformer):
    def __init__(self) -> None:
        self._tasks = 0

    def visit_With(self, node: ast.With) -> Any:
        if _is_call_of(node, "async_tasks"):
            self.generic_visit(node)
            end = ast.parse("__sim.run_tasks()").body[0]
            end.value.keywords += node.items[0].context_expr.keywords  # type: ignore[attr-defined]
            return [*node.body, _locate(end, node)]
        if _is_call_of(node, "async_task"):
            return self._task(node)
        return self.generic_visit(node)

    def _task(self, node: ast.With) -> list[ast.stmt]:
        call: Any = node.items[0].context_expr
        names = _assigned_names(node.body)
        self.generic_visit(node)
        self._tasks += 1
        function: Any = ast.parse(f"def __task_{self._tasks}(__env): pass").body[0]
        head = [ast.parse(f"if {name!r} in __env: {name} = __env[{name!r}]").body[0] for name in names]
        function.body = head + node.body
        spawn: Any = ast.parse(f"__sim.spawn(__task_{self._tasks}, locals(), {node.lineno})").body[0]
        spawn.value.args += call.args
        spawn.value.keywords += call.keywords
        return [_locate(function, node), _locate(spawn, node)]

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = _runtime_call("assign", ast.copy_location(ast.BinOp(load, node.op, node.value), node))
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        constexpr = "constexpr" in ast.unparse(node.annotation)
        value = _runtime_call("constexpr" if constexpr else "assign", node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        """A plain assignment turns a constexpr into a runtime value, as the compiler does."""
        self.generic_visit(node)
        node.value = _runtime_call("assign", node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            name = ast.copy_location(ast.Constant(node.func.attr), node)
            call = _runtime_call("method", node.func.value, name, *node.args)
            call.keywords = node.keywords
            return ast.copy_location(call, node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.generic_visit(node)
        node.decorator_list = []
        node.returns = None
        for arg in node.args.posonlyargs + node.args.args + node.args.kwonlyargs:
            arg.annotation = None  # the compiler does not enforce a helper's constexpr annotations either
        return node


class _Lazy:
    """A jit function that is rewritten when it is first called."""

    def __init__(self, jit: Any, frontend: Frontend):
        self._jit, self._frontend = jit, frontend
        self._function: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            self._function = self._frontend.rewrite(self._jit)
        return self._function(*args, **kwargs)


class Frontend:
    """Rewrites jit functions against simulated namespaces.

    Args:
        runtime: what rewritten code calls as ``__sim``.
        tl, tlx: the simulated namespaces.
        builtins: replacements of Python builtins inside kernels (``range``, ``min``, ``max``).
        equivalents: Python equivalents of builtin helpers that wrap inline PTX, by their name in the kernel's module.
        mutation: changes each function's tree first, for mutants.
    """

    def __init__(self, runtime: Any, tl: Any, tlx: Any, builtins: Mapping[str, Any],
                 equivalents: Mapping[str, Callable[..., Any]], mutation: Mutation | None = None):
        self._runtime, self._tl, self._tlx = runtime, tl, tlx
        self._builtins, self._equivalents, self._mutation = dict(builtins), dict(equivalents), mutation
        self._lazy: dict[int, _Lazy] = {}

    def value(self, name: str, value: Any) -> Any:
        """What a kernel's global (or closure) variable is replaced by."""
        if isinstance(value, types.ModuleType):
            if value.__name__.endswith("libdevice"):  # its functions are stubs that return None
                return self._tl.math
            return {real_tl: self._tl, real_tlx: self._tlx}.get(value, value)
        if isinstance(value, JIT_TYPES):
            if name in self._equivalents:
                return self._equivalents[name]
            if value.fn.__module__.startswith("triton.language.standard"):
                return getattr(self._tl, value.fn.__name__)
            return self._lazy.setdefault(id(value), _Lazy(value, self))
        if isinstance(value, real_tl.constexpr):
            return value.value
        if hasattr(value, "__triton_builtin__"):
            return self._builtin(name, value)
        return value

    def _builtin(self, name: str, value: Any) -> Any:
        if name in self._equivalents:
            return self._equivalents[name]
        for namespace in (self._tl, self._tlx):
            try:
                return getattr(namespace, value.__name__)
            except SimulationError:
                continue

        def missing(*_: Any, **__: Any) -> Any:
            raise SimulationError("unsupported", f"no Python equivalent of the builtin {name}")

        return missing

    def rewrite(self, jit: Any) -> Callable[..., Any]:
        """The jit function as a Python function on simulated values."""
        function = jit.fn
        code = _COMPILED.get(function)
        if code is None or self._mutation is not None:
            lines, start = inspect.getsourcelines(function)
            source = "".join(lines)
            original = ast.increment_lineno(ast.parse(textwrap.dedent(source)), start - 1)
            tree = self._mutation(function, original) if self._mutation else original
            tree = ast.fix_missing_locations(_Rewrite().visit(tree))
            code = compile(tree, inspect.getsourcefile(function) or "<kernel>", "exec")
            if self._mutation is None:
                _COMPILED[function] = code
        env = {name: self.value(name, value) for name, value in function.__globals__.items()
               if not name.startswith("__")}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            env[name] = self.value(name, cell.cell_contents)
        env |= self._builtins
        env["__sim"] = self._runtime
        exec(code, env)
        return env[function.__name__]
