"""Systematic mutants of a kernel: one wait, arrive, fence, commit, phase, count or buffer index changed at a time.

A swap of two neighbouring statements is only made where the neighbour can matter: swapping a wait with another wait,
or a release with scalar arithmetic, is the same kernel.
"""

from __future__ import annotations

import ast
import re
import types
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

_STATEMENTS = {"barrier_wait", "barrier_arrive", "barrier_expect_bytes", "named_barrier_wait", "named_barrier_arrive",
               "fence", "fence_async_shared", "tcgen05_commit", "async_descriptor_store_wait", "cluster_barrier"}
_WAITS = {"barrier_wait", "named_barrier_wait", "async_descriptor_store_wait"}
_RELEASES = {"barrier_arrive", "named_barrier_arrive", "tcgen05_commit"}
_BUFFER_ARGUMENT = {"async_descriptor_load": 1, "async_descriptor_store": 1, "local_load": 0, "local_store": 0,
                    "local_trans": 0}


@dataclass(frozen=True)
class Site:
    """One possible change: ``kind`` applied to node ``index`` (in `ast.walk` order) of a function's tree.

    ``ordinal`` counts the sites of one kind and statement in a function, in the order of their lines.
    ``helper_line`` is that of the helper call with which a statement is swapped, 0 if it is none: a helper may do
    nothing in a variant.
    """

    function: str
    kind: str
    index: int
    line: int
    statement: str
    ordinal: int = 1
    file: str = ""
    helper_line: int = 0


def _tlx_name(node: Any) -> str:
    """``barrier_wait`` of the call ``tlx.barrier_wait(...)``, else an empty string."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


def _helper_name(node: ast.AST) -> str:
    """The name of a helper function that is called for its effect."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
        return node.value.func.id
    return ""


def _effects(node: ast.AST) -> set[str]:
    """What a statement calls: names of ``tlx``/``tl`` functions with effects, and of helpers."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            if isinstance(each.func, ast.Name):
                found.add(each.func.id)
            elif isinstance(each.func, ast.Attribute) and isinstance(each.func.value, ast.Name):
                owner, name = each.func.value.id, each.func.attr
                if owner == "tlx" or name in ("load", "store", "atomic_add"):
                    found.add(name)
    return found - {"local_view", "local_trans", "local_slice", "subslice", "local_reinterpret", "size_of", "dtype_of",
                    "get_bufidx_phase", "min", "max"}


def _block_of(nodes: list[ast.AST], statement: ast.AST) -> list[ast.stmt]:
    for node in nodes:
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and any(each is statement for each in block):
                return block
    raise AssertionError("a statement outside of any block")


def _neighbour(nodes: list[ast.AST], statement: ast.AST, step: int) -> ast.stmt | None:
    block = _block_of(nodes, statement)
    at = next(i for i, each in enumerate(block) if each is statement) + step
    return block[at] if 0 <= at < len(block) else None


def _kinds(node: ast.AST, nodes: list[ast.AST]) -> Iterator[str]:
    """The changes that apply to this node."""
    if isinstance(node, ast.Expr):
        call: Any = node.value
        name = _tlx_name(call)
        if name in _STATEMENTS or (_helper_name(node) and "static" not in _helper_name(node)):
            yield "drop"
        if name == "barrier_wait":
            yield "flip phase"
        if name == "barrier_expect_bytes":
            yield "half the bytes"
        if name == "async_descriptor_store_wait":
            yield "wait for one less"
        if name in _RELEASES or name in _WAITS:
            release = name in _RELEASES
            other = _neighbour(nodes, node, -1 if release else 1)
            matters = _effects(other) - (_RELEASES if release else _WAITS) if other is not None else set()
            if matters:
                yield "release earlier" if release else "wait later"
        if name in ("barrier_wait", "barrier_arrive", "barrier_expect_bytes") and _varying(call.args[0]):
            yield "barrier 0"
    if isinstance(node, ast.Call):
        name = _tlx_name(node)
        if name == "async_dot_wait":
            yield "wait for one less"
        for keyword in node.keywords if name == "async_dot" else []:
            if keyword.arg == "mBarriers" and isinstance(keyword.value, ast.List):
                yield from (f"drop mBarriers[{i}]" for i in range(len(keyword.value.elts)))
            if keyword.arg == "use_acc":
                yield "flip use_acc"
        if name in _BUFFER_ARGUMENT and _varying(node.args[_BUFFER_ARGUMENT[name]]):
            yield "buffer 0"
        if "get_bufidx_phase" in (name, getattr(node.func, "id", "")):
            yield "count + 1"


def _swapped_helper_line(kind: str, node: ast.AST, nodes: list[ast.AST]) -> int:
    if kind not in ("release earlier", "wait later"):
        return 0
    other = _neighbour(nodes, node, -1 if kind == "release earlier" else 1)
    return other.lineno if other is not None and _helper_name(other) else 0


def _varying(node: ast.AST) -> bool:
    """Is it ``array[index]`` with an index that may vary?"""
    return isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant)


def sites_of(function: str, tree: ast.Module, file: str = "") -> list[Site]:
    """Every site of a function, in the order of the lines."""
    nodes = list(ast.walk(tree))
    found = [Site(function, kind, index, getattr(node, "lineno", 0), ast.unparse(node)[:100],
                  helper_line=_swapped_helper_line(kind, node, nodes))
             for index, node in enumerate(nodes) for kind in _kinds(node, nodes)]
    seen: Counter[tuple[str, str]] = Counter()
    numbered = []
    for site in sorted(found, key=lambda site: (site.line, site.index)):
        seen[site.kind, site.statement] += 1
        numbered.append(replace(site, ordinal=seen[site.kind, site.statement], file=file))
    return numbered


def _changed(old: ast.expr, new: int) -> ast.Call:
    call = ast.Attribute(ast.Name("__sim", ast.Load()), "changed_index", ast.Load())
    return ast.Call(call, [old, ast.Constant(new)], [])


def _plus_one(call: Any) -> None:
    call.args[0] = ast.BinOp(call.args[0], ast.Add(), ast.Constant(1))


def apply(tree: ast.Module, site: Site) -> ast.Module:
    """The tree with the change made (in place)."""
    nodes = list(ast.walk(tree))
    node: Any = nodes[site.index]
    call: Any = node.value if isinstance(node, ast.Expr) else node
    if site.kind == "drop":
        block = _block_of(nodes, node)
        block[block.index(node)] = ast.copy_location(ast.Pass(), node)
    elif site.kind in ("release earlier", "wait later"):
        block = _block_of(nodes, node)
        at = block.index(node)
        other = at - 1 if site.kind == "release earlier" else at + 1
        block[at], block[other] = block[other], block[at]
    elif site.kind == "flip phase":
        call.args[1] = ast.BinOp(call.args[1], ast.BitXor(), ast.Constant(1))
    elif site.kind == "half the bytes":
        call.args[1] = ast.BinOp(call.args[1], ast.FloorDiv(), ast.Constant(2))
    elif site.kind in ("wait for one less", "count + 1"):
        _plus_one(call)
    elif site.kind == "barrier 0":
        call.args[0].slice = _changed(call.args[0].slice, 0)
    elif site.kind == "buffer 0":
        argument = call.args[_BUFFER_ARGUMENT[_tlx_name(call)]]
        argument.slice = _changed(argument.slice, 0)
    elif site.kind == "flip use_acc":
        keyword = next(each for each in call.keywords if each.arg == "use_acc")
        keyword.value = ast.UnaryOp(ast.Not(), keyword.value)
    else:
        match = re.fullmatch(r"drop mBarriers\[(\d+)\]", site.kind)
        assert match, site.kind
        keyword = next(each for each in call.keywords if each.arg == "mBarriers")
        del keyword.value.elts[int(match[1])]
        if not any(each.arg == "force_async" for each in call.keywords):
            call.keywords.append(ast.keyword("force_async", ast.Constant(True)))
    return ast.fix_missing_locations(tree)


class Collector:
    """A `Mutation` that changes no behaviour and collects the sites of every function that runs."""

    def __init__(self, skip: Collection[str] = ()):
        self.sites: list[Site] = []
        self._skip = skip

    def __call__(self, function: types.FunctionType, tree: ast.Module) -> ast.Module:
        """Collect; the tree only gains notes of which helper calls do anything."""
        if function.__name__ not in self._skip:
            self.sites += sites_of(function.__name__, tree, function.__code__.co_filename)
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Expr) and _helper_name(node):
                no_arguments = ast.arguments([], [], None, [], [], None, [])
                reached = ast.Attribute(ast.Name("__sim", ast.Load()), "reached", ast.Load())
                node.value = ast.Call(reached, [ast.Lambda(no_arguments, node.value)], [])
        return ast.fix_missing_locations(tree)


class Mutator:
    """A `Mutation` that applies one site."""

    def __init__(self, site: Site):
        self.site = site

    def __call__(self, function: types.FunctionType, tree: ast.Module) -> ast.Module:
        """Change the function that the site is in, and leave others as they are."""
        mine = (function.__name__, function.__code__.co_filename) == (self.site.function, self.site.file)
        return apply(tree, self.site) if mine else tree
