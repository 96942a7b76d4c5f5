"""What a notebook's cell shows: tables, pictures and notes, small and the same at every build."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

DPI = 160  # of the pixels; a picture is shown at SHOWN_DPI of them an inch, so that it stays sharp when enlarged
SHOWN_DPI = 96
COLOURS = 128  # a plot has few


class Picture:
    """A figure as a small PNG, with a text for those who can't see it. Not drawn: the reason, as a note."""

    def __init__(self, drawn: Figure | str, text: str) -> None:
        self.drawn, self.text = drawn, text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if isinstance(self.drawn, str):
            return Note(f"Not drawn: {self.drawn}.")._repr_mimebundle_()
        content = io.BytesIO()
        self.drawn.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
        with Image.open(content) as image:
            small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        content = io.BytesIO()
        small.save(content, format="png", optimize=True)
        shown = round(small.width * SHOWN_DPI / DPI)
        data = {"image/png": base64.b64encode(content.getvalue()).decode("ascii"), "text/plain": self.text}
        return data, {"image/png": {"width": shown, "alt": self.text}}


class Table:
    """Rows for a person: text cells, the first ``labels`` columns to the left, the others to the right."""

    def __init__(self, rows: pd.DataFrame, labels: int = 1) -> None:
        self.rows, self.labels = rows, labels

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, str]:
        return {"text/html": self.html(), "text/plain": self.rows.to_string(index=False)}

    def html(self) -> str:
        """An HTML table without styles of its own but the alignment."""
        def cells(tag: str, values: Any) -> str:
            sides = ("left" if place < self.labels else "right" for place in range(len(self.rows.columns)))
            return "".join(f'<{tag} style="text-align:{side}">{html.escape(str(value))}</{tag}>'
                           for side, value in zip(sides, values, strict=True))

        lines = [f"<tr>{cells('td', row)}</tr>" for row in self.rows.itertuples(index=False)]
        return (f"<table>\n<thead><tr>{cells('th', self.rows.columns)}</tr></thead>\n<tbody>\n"
                + "\n".join(lines) + "\n</tbody>\n</table>")


class Note:
    """A sentence or several, as Markdown."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, str]:
        return {"text/markdown": self.text, "text/plain": self.text}
