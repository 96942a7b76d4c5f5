"""An executed notebook as one HTML page that needs no other file: text, tables and pictures, without the code."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Any

STYLE = Path(__file__).with_name("page.css")
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<nav><ul>
$contents
</ul></nav>
<main>
$body
</main>
</body>
</html>
""")
_HEADING = re.compile(r"<h2>(.*?)</h2>", re.DOTALL)
_TITLE = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)


def page(node: Any) -> str:
    """The page of an executed notebook (an `nbformat` node)."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_input_prompt=True,
                            exclude_output_prompt=True, exclude_anchor_links=True)
    body, _ = exporter.from_notebook_node(node)
    contents: list[str] = []

    def anchored(match: re.Match[str]) -> str:
        contents.append(f'<li><a href="#section-{len(contents)}">{_text(match[1])}</a></li>')
        return f'<h2 id="section-{len(contents) - 1}">{match[1]}</h2>'

    body = _HEADING.sub(anchored, body)
    title = _TITLE.search(body)
    return _PAGE.substitute(title=_text(title[1]) if title else "Report", style=STYLE.read_text(encoding="utf-8"),
                            contents="\n".join(contents), body=body)


def _text(content: str) -> str:
    """A heading without its markup; still escaped."""
    return re.sub(r"<[^>]+>", "", content)
