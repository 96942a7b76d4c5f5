"""`StrictModel`: the base of all that is read from YAML, and the translation of its errors into `ConfigError`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness.errors import ConfigError, UserError

KeyPath = tuple[Any, ...]
MAX_VALUES = 1_000_000  # of a file, each counted as often as an alias repeats it
_ALLOWED = {  # by pydantic's type of error; others are in its words
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "float_type": "a number",
    "int_type": "an integer",
    "model_attributes_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "string_pattern_mismatch": "up to 100 letters, digits and _ . + -, of which the first is a letter or digit",
    "string_type": "text",
    "too_short": "at least one value",
    "tuple_type": "a list",
    "union_tag_not_found": "a distribution such as {kind: constant, value: 512}",
}
Model = TypeVar("Model", bound="StrictModel")


def problem(key: KeyPath, text: str, allowed: str = "") -> PydanticCustomError:
    """An error for validators to raise: at ``key`` (relative to the model), what is wrong and what is allowed."""
    return PydanticCustomError("config_problem", "{problem}", {"key": key, "problem": text, "allowed": allowed})


def choices(values: Iterable[object], got: object = None) -> str:
    """``a, b, c``, with a guess at what a misspelt ``got`` was meant to be."""
    names = [str(value) for value in values]
    close = difflib.get_close_matches(str(got), names, n=1)
    return ", ".join(names) + (f" (did you mean {close[0]!r}?)" if close else "")


class StrictModel(BaseModel):
    """Frozen; an unknown key is an error that lists the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise problem((key,), "unknown key", choices(cls.model_fields, key))
        return data


class YamlSource:
    """A YAML file's data, and the line of each key in it."""

    def __init__(self, file: Path | str, text: str):
        self.file = str(file)
        self._lines: dict[KeyPath, int] = {}
        try:
            root = YAML(typ="safe", pure=True).compose(StringIO(text))
            if _size(root, {}) > MAX_VALUES:
                raise ConfigError(file, "", "aliases (*name) expand to too many values", f"{MAX_VALUES:,} in all")
            self.data = YAML(typ="safe", pure=True).load(StringIO(text))
            self._note_lines(root, ())
        except RecursionError:
            raise ConfigError(file, "", "nested too deeply, or an alias (*name) stands within what it names") from None
        except YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            text = getattr(error, "problem", None) or str(error)
            raise ConfigError(file, "", f"not valid YAML: {text}", line=mark.line + 1 if mark else None) from None

    @classmethod
    def read(cls, path: Path | str) -> YamlSource:
        """From a file. Raises `UserError` when it can't be read, `ConfigError` when it isn't YAML."""
        try:
            return cls(path, Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"{path}: can't read the config: {reason}") from None

    def _note_lines(self, node: Node | None, path: KeyPath) -> None:
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if not isinstance(key, ScalarNode):
                    continue  # no key of ours
                here = (*path, key.value)
                self._lines[here] = key.start_mark.line + 1
                self._note_lines(value, here)
        elif isinstance(node, SequenceNode):
            for index, value in enumerate(node.value):
                here = (*path, index)
                self._lines[here] = value.start_mark.line + 1
                self._note_lines(value, here)

    def error(self, key: KeyPath, text: str, allowed: str = "") -> ConfigError:
        """A `ConfigError` at ``key``, with the line of it or of what holds it."""
        line = next((self._lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self._lines), None)
        return ConfigError(self.file, dotted(key), text, allowed, line)

    def validate(self, model: type[Model]) -> Model:
        """The data as ``model``; validators find this folder as ``info.context["folder"]``. Raises `ConfigError`."""
        if not isinstance(self.data, Mapping):
            raise self.error((), f"holds {_show(self.data)}", f"a mapping with the keys {choices(model.model_fields)}")
        try:
            return model.model_validate(self.data, context={"folder": Path(self.file).parent})
        except ValidationError as errors:
            raise self._translate(errors) from None

    def _translate(self, errors: ValidationError) -> ConfigError:
        found = errors.errors(include_url=False)
        # A list without a valid item is also "too short": keep the innermost error of each place.
        details = [one for one in found if not any(
            other is not one and other["loc"][:len(one["loc"])] == one["loc"] for other in found)] or found
        kind, context = details[0]["type"], details[0].get("ctx", {})
        key, value = self._locate(details[0]["loc"])
        text = f"got {_show(value)}"
        allowed = _ALLOWED.get(kind) or re.sub(r"^\w+ should (be|have) ", "", details[0]["msg"])
        if kind == "config_problem":
            key, text, allowed = (*key, *context["key"]), context["problem"], context["allowed"]
        elif kind == "missing":
            key, text, allowed = (*key, details[0]["loc"][-1]), "missing", ""
        elif kind == "literal_error":
            allowed = choices(context["expected"].replace("'", "").replace(" or ", ", ").split(", "), value)
        elif kind == "union_tag_invalid":
            kinds = context["expected_tags"].replace("'", "").split(", ")
            key, text, allowed = (*key, "kind"), f"got {context['tag']!r}", choices(kinds, context["tag"])
        if len(details) > 1:
            allowed += f" ({len(details) - 1} more after this one)"
        return self.error(key, text, allowed)

    def _locate(self, location: KeyPath) -> tuple[KeyPath, Any]:
        """Pydantic's location as a path in the file: without union tags and the indices of wrapped scalars."""
        path: KeyPath = ()
        value = self.data
        for step in location:
            inside = isinstance(value, Mapping) and step in value
            if inside or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
                path, value = (*path, step), value[step]
        return path, value


def dotted(key: KeyPath) -> str:
    """``("cases", 3, "lengths")`` as ``cases[3].lengths``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key)
    return text.removeprefix(".")


def _size(node: Node | None, known: dict[int, int]) -> int:
    """Values that a node expands to, aliases written out. Raises `RecursionError` where one holds itself."""
    if not isinstance(node, (MappingNode, SequenceNode)):
        return 1
    if id(node) not in known:
        inner = [part for pair in node.value for part in pair] if isinstance(node, MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(node)]


def _show(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
