"""Backends by registry key, imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from pydantic import ValidationError

from harness.backends.base import Backend
from harness.errors import UserError

BACKENDS: Mapping[str, str] = {
    "jfa": "harness.backends.jfa:JaggedBackend",
    "jfa_triton": "harness.backends.jfa:PortableBackend",
    "fa4": "harness.backends.fa4:FlashAttention4Backend",
    "cudnn": "harness.backends.cudnn:CudnnBackend",
    "fa2": "harness.backends.fa2:FlashAttention2Backend",
    "flex": "harness.backends.flex:FlexBackend",
    "padded": "harness.backends.padded:PaddedBackend",
    "sdpa_loop": "harness.backends.sdpa_loop:LoopBackend",
}


def backend_class(key: str) -> type[Backend]:
    """The class of a registry key, or of ``package.module:Class`` for a backend from elsewhere.

    Raises `UserError` for one that isn't there.
    """
    if key not in BACKENDS and ":" not in key:
        raise UserError(f"backend: no such backend {key!r}; allowed: {', '.join(BACKENDS)}, or package.module:Class")
    module, name = BACKENDS.get(key, key).split(":", 1)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no module name at all
        raise UserError(f"backend: {key!r} can't be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise UserError(f"backend: {key!r} is no subclass of harness.backends.base.Backend")
    return found


def create(key: str, options: Mapping[str, object] | None = None) -> Backend:
    """A backend with its options. Needs none of the rivals' packages.

    Raises `UserError` that names an unknown key, or an unknown or bad option, and what is allowed.
    """
    cls = backend_class(key)
    model = cls.options_model
    try:
        return cls(model.model_validate(dict(options or {})))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(["options", *map(str, problem["loc"])])
        if problem["type"] == "extra_forbidden":
            what = f"no such option; allowed: {', '.join(model.model_fields) or 'none'}"
        else:
            got = f", got {problem['input']!r}" if problem["loc"] else ""
            what = problem["msg"].removeprefix("Value error, ") + got
        raise UserError(f"backend {key}: {where}: {what}") from None
