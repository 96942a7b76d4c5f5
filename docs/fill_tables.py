"""Fills the key tables of docs/configs.md and docs/distributions.md from the models that read configs.

    python docs/fill_tables.py

A table stands between ``<!-- keys of NAME -->`` and ``<!-- end -->``; NAME is a model of `harness.config` or
`harness.distributions`.
"""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from harness import config, distributions
from harness.strict_model import StrictModel

DOCS = Path(__file__).resolve().parent
DOCUMENTS = (DOCS / "configs.md", DOCS / "distributions.md")
TABLE = re.compile(r"(<!-- keys of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PLAIN = {int: "integer", float: "number", bool: "true or false", str: "text", Any: "anything"}
LIMITS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"), ("multiple_of", "multiple of"))
LARGE = 10**6  # limits from here on are there to catch nonsense; not worth a reader's time


def filled(text: str) -> str:
    """A document with its tables as the models have them."""
    return TABLE.sub(lambda match: match[1] + table(model_named(match[2])) + match[3], text)


def model_named(name: str) -> type[StrictModel]:
    """A model by its class name."""
    return getattr(config, name, None) or getattr(distributions, name)


def table(model: type[StrictModel]) -> str:
    """Markdown: a line per key."""
    rows = [f"| `{key}` | {allowed(info)} | {default(info)} | {info.description} |"
            for key, info in model.model_fields.items() if key != "kind"]
    if model is config.SweepBlock:  # a scalar stands for a list of one in all its keys
        rows = [row.replace("| list of ", "| ") if "`devices`" not in row else row for row in rows]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def default(info: FieldInfo) -> str:
    """The default as YAML would write it."""
    value = info.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, StrictModel):
        return "see there"
    if isinstance(value, tuple):
        value = value[0] if len(value) == 1 else "[" + ", ".join(map(str, value)) + "]"
    if value in (None, "", {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def allowed(info: FieldInfo) -> str:
    """What a key may hold."""
    return named(info.annotation, tuple(info.metadata))


def named(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """An annotation in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is distributions.Distribution or annotation == get_args(distributions.Distribution)[0]:
        return "[distribution](distributions.md)"
    if origin is Annotated:
        fields = [extra for extra in arguments[1:] if isinstance(extra, FieldInfo)]
        return named(arguments[0], (*metadata, *(one for each in fields for one in each.metadata)))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        names = [named(each, metadata) for each in arguments if each is not type(None)]
        return " or ".join(names)
    if annotation == config.Window:
        return "`[left, right]`, integers or null"
    if origin is tuple:
        return "list of " + named(arguments[0])
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    limits = [f"{sign} {getattr(each, name):g}" for name, sign in LIMITS for each in metadata
              if getattr(each, name, None) is not None and abs(getattr(each, name)) < LARGE]
    return " ".join([PLAIN[annotation], ", ".join(limits)]).strip()


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")
