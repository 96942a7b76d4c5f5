"""How many lines the kernels are written in: ours and FlashAttention-4's, counted the same way.

Counted are the files of the package that the entry modules import, directly or through others; `ENTRIES` names both. A
line is *code* if a token other than a comment or a docstring stands on it, else *comment* if one of these does, else
*blank*. A file is *shared* if it is not of the architecture alone (ours: outside the architecture's folder; FA4's: not
in a ``flash_*.py``). FA4's sources are found where it is installed; they do more than ours (paged KV, block sparsity,
other head dimensions, user-defined masks and scores). Its host-side `interface.py` is left out, and so are the
libraries under it, `quack` and CUTLASS, as Triton is.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

_SILENT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
                     tokenize.ENDMARKER})


@dataclass(frozen=True)
class Entry:
    """Where a backend's kernels begin: modules of a package; ``own`` marks the architecture's file names."""

    package: str
    modules: tuple[str, ...]
    own: str


ENTRIES: dict[tuple[str, str], Entry] = {
    ("sm_90a", "jfa"): Entry("kernels", ("hopper.forward", "hopper.backward"), "hopper/"),
    ("sm_90a", "fa4"): Entry("flash_attn.cute", ("flash_fwd_sm90", "flash_bwd_sm90", "flash_bwd_preprocess",
                                                 "flash_bwd_postprocess"), "flash_"),
    ("sm_100a", "jfa"): Entry("kernels", ("blackwell.forward", "blackwell.backward"), "blackwell/"),
    ("sm_100a", "fa4"): Entry("flash_attn.cute", ("flash_fwd_sm100", "flash_bwd_sm100", "flash_bwd_preprocess",
                                                  "flash_bwd_postprocess"), "flash_"),
}


@dataclass(frozen=True)
class Lines:
    """Of one file; ``name`` is relative to the package."""

    name: str
    code: int
    comment: int
    blank: int
    own: bool


def source_lines(arch: str, backend: str) -> list[Lines]:
    """The files of a backend's kernels for an architecture, longest first; none where they aren't installed."""
    entry = ENTRIES.get((arch, backend))
    root = _folder(entry.package) if entry else None
    if entry is None or root is None:
        return []
    files = _closure(entry, root)
    lines = [count_lines(file.read_text(encoding="utf-8"), str(file.relative_to(root)), entry.own) for file in files]
    return sorted(lines, key=lambda each: (not each.own, -each.code))


def count_lines(text: str, name: str = "", own: str = "") -> Lines:
    """Lines of Python ``text``. Raises `SyntaxError` for what isn't Python."""
    docstrings = _docstring_lines(ast.parse(text))
    code: set[int] = set()
    comment: set[int] = set(docstrings)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        span = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comment.update(span)
        elif token.type not in _SILENT and not (token.type == tokenize.STRING and set(span) <= docstrings):
            code.update(span)
    total = len(text.splitlines())
    return Lines(name, len(code), len(comment - code), total - len(code | comment), bool(own) and own in name)


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value,
                                                                                                    str):
                found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def _folder(package: str) -> Path | None:
    """Of a package that may not be importable here: only its top level is looked up."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    places = [Path(place, *rest) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place.is_dir()), None)


def _closure(entry: Entry, root: Path) -> list[Path]:
    """The files that the entry modules import within the package, themselves included."""
    waiting = [root.joinpath(*module.split(".")).with_suffix(".py") for module in entry.modules]
    found: list[Path] = []
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.append(file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module, *(f"{node.module}.{name}" for name in names)]
            for name in names:
                if name.startswith(entry.package + "."):
                    parts = name.removeprefix(entry.package + ".").split(".")
                    waiting += [root.joinpath(*parts).with_suffix(".py")]
    return found
