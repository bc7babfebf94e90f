"""pydantic's errors in the words of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from pdctl.topology.keys import unknown_key_fix
from pdctl.topology.source import Path

Found = tuple[Path, str, str]
"""(path, what, fix)"""
_WANTED: dict[str, tuple[str, str]] = {
    "int_parsing": ("a whole number", "write a number, such as 2"),
    "int_type": ("a whole number", "write a number, such as 2"),
    "int_from_float": ("a whole number", "write it without a fraction"),
    "float_parsing": ("a number", "write a number"),
    "float_type": ("a number", "write a number"),
    "bool_type": ("true or false", "write true or false"),
    "bool_parsing": ("true or false", "write true or false"),
    "string_type": ("text", "write it in quotes"),
    "list_type": ("a list", "write [a, b] or one `- item` a line"),
    "dict_type": ("a mapping", "write {key: value}"),
    "model_type": ("a mapping", "write {key: value}"),
    "model_attributes_type": ("a mapping", "write {key: value}"),
}
_PATTERNS: dict[str, str] = {
    "name": "use lower-case letters, digits and dashes, at most 40",
    "layout": "write it as 1P1D: a number of prefill replicas, P, a number of decode replicas, D",
}


def translate(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any]) -> list[Found]:
    """Return every error once, as (path, what, fix), without pydantic's jargon."""
    found: dict[Path, Found] = {}
    unions: dict[Path, list[Mapping[str, Any]]] = {}
    for one in error.errors(include_url=False, include_context=True):
        path = _path(one["loc"], data)
        if len(path) < len(one["loc"]):  # a branch of a union: all branches fail, say it once
            unions.setdefault(path, []).append(one)
        elif path not in found:
            found[path] = _one(path, one, model, data)
    for path, branches in unions.items():
        if not any(path == other or path == other[: len(path)] for other in found):
            found[path] = (path, f"{_shown(_value(data, path))} is not possible here", _union_fix(path, branches))
    return list(found.values())


def _path(loc: tuple[int | str, ...], data: Any) -> Path:
    """Return the part of pydantic's location that names keys of the data; names of types in unions are left out."""
    path: list[int | str] = []
    value = data
    for part in loc:
        if isinstance(value, Mapping) and isinstance(part, str) and (part in value or _is_key(part)):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif value is None and _is_key(part):
            value = None
        else:
            break
        path.append(part)
    return tuple(path)


def _is_key(part: object) -> bool:
    return isinstance(part, str) and part not in ("int", "str", "float", "bool", "constrained-int", "constrained-str", "[key]") and "[" not in part


def _one(path: Path, error: Mapping[str, Any], model: type[BaseModel], data: Mapping[str, Any]) -> Found:
    kind, value, context = str(error["type"]), error.get("input"), error.get("ctx") or {}
    if kind == "extra_forbidden":
        known = list(_model_at(model, path[:-1]).model_fields)
        return path, "unknown key", unknown_key_fix(str(path[-1]), known, at_top=len(path) == 1, all_known=_places(model))
    if kind == "missing":
        return path, "missing", _missing_fix(path)
    if kind == "literal_error":
        return path, f"{_shown(value)} is not possible here", f"use {context.get('expected', '').replace(chr(39), '`')}"
    if kind == "string_pattern_mismatch":
        return path, f"{_shown(value)} is not allowed here", _PATTERNS.get(str(path[-1]), "use letters, digits, `.`, `_` and `-`")
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return path, f"{_shown(value)} is out of range", _range_fix(kind, context)
    if kind in ("string_too_short", "too_short"):
        return path, "is empty", "write a value"
    if kind == "value_error":
        what, _, fix = str(context.get("error", error["msg"])).partition("; ")
        return path, what, fix or "see docs/topology.md"
    wanted, fix = _WANTED.get(kind, (None, ""))
    if wanted:
        return path, f"{_shown(value)} is not {wanted}", fix
    return path, str(error["msg"]).rstrip("."), "see docs/topology.md"


def _range_fix(kind: str, context: Mapping[str, Any]) -> str:
    low = context.get("ge", context.get("gt"))
    high = context.get("le", context.get("lt"))
    if low is not None:
        return f"use {low} or more" if kind == "greater_than_equal" else f"use more than {low}"
    return f"use {high} or less" if kind == "less_than_equal" else f"use less than {high}"


def _missing_fix(path: Path) -> str:
    if path == ("model",):
        return "add `model: /path/to/model` (a path on the hosts, or a hub id)"
    return f"add `{path[-1]}: ...`"


def _union_fix(path: Path, branches: list[Mapping[str, Any]]) -> str:
    if path and path[-1] == "gpus":
        return "write a count (gpus: 4), or a list of ids or UUIDs (gpus: [0, 1])"
    wanted = dict.fromkeys(_WANTED[str(one["type"])][0] for one in branches if str(one["type"]) in _WANTED)
    return f"write {' or '.join(wanted)}" if wanted else "see docs/topology.md"


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _value(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(str(part))
        inner = _inner_model(field.annotation) if field else None
        if inner is None:
            return model
        model = inner
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    from typing import get_args

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _inner_model(one)) is not None), None)


def _places(model: type[BaseModel]) -> dict[str, str]:
    """Return every key of the schema with the first place where it is known."""
    places = dict.fromkeys(model.model_fields, "the top level")
    for name, field in model.model_fields.items():
        inner = _inner_model(field.annotation)
        for key in inner.model_fields if inner else ():
            places.setdefault(key, f"`{name}`")
    return places
