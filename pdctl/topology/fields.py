"""What the schema knows about a path of the file."""

from __future__ import annotations

import types
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from pdctl.topology.schema import Topology

if TYPE_CHECKING:
    from pdctl.topology.source import Path

_UNIONS = (Union, types.UnionType)


def kinds_at(path: Path) -> tuple[Any, ...]:
    """Return the types that may stand at a path, without None and annotations; () for an unknown key."""
    kinds: tuple[Any, ...] = (Topology,)
    for part in path:
        kinds = tuple(inner for kind in kinds for inner in _below(kind, part))
    return kinds


def model_at(path: Path) -> type[BaseModel] | None:
    """Return the model of the mapping at a path; None where free keys are allowed or the path is unknown."""
    return next((kind for kind in kinds_at(path) if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def is_text(path: Path) -> bool:
    """Tell whether a path holds text only, so that `version: 0.30` is what is written there and no number."""
    kinds = kinds_at(path)
    return bool(kinds) and all(kind is str or get_origin(kind) is Literal for kind in kinds)


def is_section(path: Path) -> bool:
    """Tell whether a path holds a mapping or a list, for which nothing means the default."""
    kinds = kinds_at(path)
    return bool(kinds) and all(_is_container(kind) for kind in kinds)


@cache
def places_of(key: str) -> tuple[Path, ...]:
    """Return every place of the schema that knows a key, the top level first, list items as index 0."""
    return tuple(sorted((path for path in all_keys() if path[-1] == key), key=len))


@cache
def all_keys() -> tuple[Path, ...]:
    """Return the path of every key of the schema, in the order of the schema."""
    return tuple(_keys_of(Topology, ()))


def example_path(path: Path) -> str:
    """Write a place of the schema for people: `hosts[].address`."""
    text = ""
    for part in path:
        text += "[]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_of(model: type[BaseModel], path: Path) -> list[Path]:
    keys: list[Path] = []
    for name in model.model_fields:
        at = (*path, name)
        keys.append(at)
        for below in (at, (*at, 0)):
            inner = model_at(below)
            if inner is not None:
                keys += _keys_of(inner, below)
    return keys


def _below(kind: Any, part: str | int) -> tuple[Any, ...]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(part) if isinstance(part, str) else None
        return _flat(field.annotation) if field is not None else ()
    arguments = get_args(kind)
    if get_origin(kind) is list and isinstance(part, int):
        return _flat(arguments[0])
    if get_origin(kind) is dict and isinstance(part, str):
        return _flat(arguments[1])
    return ()


def _flat(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, without Annotated and None."""
    if get_origin(annotation) is Annotated:
        return _flat(get_args(annotation)[0])
    if get_origin(annotation) in _UNIONS:
        return tuple(kind for one in get_args(annotation) for kind in _flat(one))
    return () if annotation is type(None) else (annotation,)


def _is_container(kind: Any) -> bool:
    return get_origin(kind) in (list, dict) or (isinstance(kind, type) and issubclass(kind, BaseModel))
