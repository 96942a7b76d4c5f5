"""Runs a report notebook on given files, and writes it as one HTML page or as an executed ``.ipynb``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.report.page import page

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
SUFFIXES = (".html", ".ipynb")
TIMEOUT_S = 600  # of one cell


def build(notebook: str, parameters: Mapping[str, Any], outs: Sequence[Path]) -> Sequence[Path]:
    """Run ``notebooks/<notebook>.py`` once with its parameters replaced, and write all of ``outs``; gives them back.

    A name ends in ``.html`` (self-contained, without the code) or ``.ipynb`` (with outputs). The same input gives the
    same file. Raises `UserError` for another ending, a missing package, a cell that fails, or a file that can't be
    written.
    """
    for out in outs:
        if out.suffix not in SUFFIXES:
            raise UserError(f"{out}: expected a name that ends in {' or '.join(SUFFIXES)}")
    executed = execute(notebook, parameters)
    for out in outs:
        text = page(executed) if out.suffix == ".html" else _notebook_text(executed)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out}: can't write the report: {error.strerror or error}") from None
    return outs


def execute(notebook: str, parameters: Mapping[str, Any]) -> Any:
    """The executed notebook, an `nbformat` node. Paths in ``parameters`` are seen from ``notebooks/``."""
    try:
        import jupytext
        import nbclient
        from nbclient.exceptions import CellExecutionError
        from nbformat.v4 import new_code_cell
        from traitlets.config import Config
    except ImportError as error:
        raise UserError(f"a report needs the package {error.name}: run make setup, or pip install "
                        "-e '.[notebooks]'") from None
    source = NOTEBOOKS / f"{notebook}.py"
    if not source.exists():
        raise UserError(f"{source}: no such notebook; reports are built from a checkout of this project")
    node = jupytext.read(source)
    given = new_code_cell("\n".join(f"{name} = {value!r}" for name, value in parameters.items()),
                          metadata={"tags": ["injected-parameters"]})
    at = next(place for place, cell in enumerate(node.cells) if "parameters" in cell.metadata.get("tags", ()))
    node.cells.insert(at + 1, given)
    for number, cell in enumerate(node.cells):
        cell["id"] = f"cell-{number:02d}"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as scratch:  # sockets in a file system, no port
        settings = Config(KernelManager={"transport": "ipc", "connection_file": str(Path(scratch) / "kernel.json")})
        client = nbclient.NotebookClient(node, config=settings, kernel_name="python3", timeout=TIMEOUT_S,
                                         record_timing=False, resources={"metadata": {"path": str(NOTEBOOKS)}})
        try:
            client.execute(env=os.environ | {"PYTHONPATH": path})
        except CellExecutionError as error:
            by_user = error.ename == UserError.__name__  # names the file itself
            raise UserError(error.evalue if by_user else f"{source}: {error.ename}: {error.evalue}") from None
    for cell in node.cells:
        cell.metadata.pop("execution", None)
    node.metadata.pop("language_info", None)  # names the interpreter's version
    return node


def seen_from_notebooks(path: Path) -> str:
    """A path as a notebook writes it: relative to ``notebooks/`` within the checkout, else absolute."""
    path = path.resolve()
    return os.path.relpath(path, NOTEBOOKS) if path.is_relative_to(ROOT) else str(path)


def _notebook_text(node: Any) -> str:
    import nbformat

    return nbformat.writes(node) + "\n"
