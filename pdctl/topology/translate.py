"""pydantic's errors in the words of the file."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.topology.fields import model_at
from pdctl.topology.keys import advise
from pdctl.topology.source import below

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import ValidationError

    from pdctl.topology.source import Path
    from pdctl.topology.written import Written

_TYPES: dict[str, str] = {
    "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false", "string_type": "text",
    "list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping",
}  # fmt: skip
_SHAPES: dict[str, str] = {
    "gpus": "write a count (gpus: 4), or a list of ids or UUIDs (gpus: [0, 1])",
    "hosts": "write a list, one `- {name: a, address: 10.0.0.1}` a host",
    "placement": "write a list, one `- {instance: producer-0, host: a}` a pin",
    "connector": "write `connector: nixl`, or {name: nixl, extra: {...}}",
    "args": "write a mapping from flag to value: {max-model-len: 32768}",
    "env": "write a mapping from name to value: {NCCL_DEBUG: WARN}",
    "ssh": "write a mapping: {host: a.example, user: ubuntu}",
    "extra": "write a mapping: {key: value}",
}
_EXAMPLES: dict[str, str] = {
    "port": "8000", "base": "20000", "size": "2000", "startup_timeout": "20m", "interval": "5s", "window": "10m",
    "backoff": "5s", "max_size": "100MiB", "gpu_memory": "80GiB", "share_gpus": "1",
}  # fmt: skip
_WORDS: dict[tuple[str, str], str] = {
    ("policy", "no"): "never", ("policy", "unless-stopped"): "always", ("policy", "failure"): "on-failure",
    ("kind", "simulated"): "sim", ("kind", "simulator"): "sim", ("kind", "router"): "vllm-router",
    ("kind", "off"): "none", ("kind", "no"): "none", ("device", "cuda"): "gpu",
}  # fmt: skip
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Wrong:
    """One thing wrong, with the keys of which nothing is known because of it."""

    path: Path
    what: str
    fix: str
    broken: tuple[Path, ...]


def translate(error: ValidationError, data: Mapping[str, Any], written: Written) -> list[Wrong]:
    """Return every error once, without pydantic's jargon and without values that came from variables."""
    groups: dict[Path, list[Mapping[str, Any]]] = {}
    for one in error.errors(include_url=False):
        groups.setdefault(_path(one, data), []).append(one)
    # A union fails once for each of its members: the deepest failure is the member that was meant.
    deepest = {path for path in groups if not any(other != path and below(other, path) for other in groups)}
    wrong = [_one(path, groups[path], written) for path in groups if path in deepest]
    meant = {path for one in wrong for path in one.broken[1:]}
    return [one for one in wrong if one.what != "missing" or one.path not in meant]


def _path(error: Mapping[str, Any], data: Any) -> Path:
    """Return the part of pydantic's location that names keys of the data, without the names of types in unions."""
    path: list[str | int] = []
    for part in error["loc"]:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            data = data[part]
            path.append(part)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _one(path: Path, errors: Sequence[Mapping[str, Any]], written: Written) -> Wrong:
    error = next((one for one in errors if one["type"] not in _TYPES), errors[0])
    kind, key, value = str(error["type"]), str(path[-1]) if path else "", error.get("input")
    context = error.get("ctx") or {}
    shown = written.show(path, value)
    if kind == "extra_forbidden":
        fix, meant = advise(path, written.keys(path[:-1]))
        return Wrong(path, "unknown key", fix, (path,) if meant is None else (path, meant))
    if kind == "missing":
        return Wrong(path, "missing", _missing_fix(path), (path,))
    what, fix = f"{shown} is not possible here", "`pdctl schema` describes the file"
    if value is None:
        what, fix = "there is no value", _empty_fix(path, _wanted(errors))
    elif kind == "literal_error":
        fix = _choice_fix(key, value, path)
    elif kind in ("string_pattern_mismatch", "string_too_long"):
        what, fix = f"{shown} is not allowed as a name", _name_fix(path)
    elif kind in ("greater_than", "greater_than_equal"):
        limit = context.get("gt", context.get("ge"))
        what, fix = (
            f"{shown} is too small",
            f"use {'more than ' if 'gt' in context else ''}{limit:g}{'' if 'gt' in context else ' or more'}",
        )
    elif kind in ("less_than", "less_than_equal"):
        what, fix = f"{shown} is too big", f"use {_limit(key, context.get('le', context.get('lt')))} or less"
    elif kind == "string_too_short":
        what, fix = "is empty", "write a value, or remove the key"
    elif kind == "value_error":
        said, _, fix = str(context.get("error", error["msg"])).partition("; ")
        what, fix = f"{shown} {said}", _unit_fix(value, written.show(path) == repr(value)) or fix
    elif kind in _TYPES:
        what, fix = f"{shown} is not {_wanted(errors)}", _type_fix(path, kind, value, errors)
    return Wrong(path, what, fix, (path,))


def _empty_fix(path: Path, wanted: str) -> str:
    model = model_at(path[:-1])
    field = model.model_fields.get(str(path[-1])) if model is not None else None
    return _missing_fix(path) if field is not None and field.is_required() else f"write {wanted}, or remove the key"


def _limit(key: str, limit: Any) -> str:
    """Write a bound as the file would: hours for a duration, GiB for a size."""
    if key in ("max_size", "gpu_memory"):
        return f"{limit // 2**30}GiB"
    return f"{limit / 3600:g}h" if isinstance(limit, float) else str(limit)


def _wanted(errors: Sequence[Mapping[str, Any]]) -> str:
    kinds = list(dict.fromkeys(_TYPES[str(one["type"])] for one in errors if str(one["type"]) in _TYPES))
    return " or ".join(kinds) or "a value"


def _type_fix(path: Path, kind: str, value: Any, errors: Sequence[Mapping[str, Any]]) -> str:
    key = str(path[-1]) if path else ""
    named = next((str(part) for part in reversed(path) if isinstance(part, str)), key)
    if isinstance(path[-1], int) and kind == "model_type":
        return "write a mapping for each: " + (
            "{instance: producer-0, host: a}" if named == "placement" else "{name: a, address: 10.0.0.1}"
        )
    shaped = len(errors) > 1 or kind in ("list_type", "dict_type", "model_type")
    if shaped and key in _SHAPES and path[1:] != ("hosts",):
        return _SHAPES[key]
    if kind in ("int_type", "float_type"):
        return _number_fix(named, kind, value, listed=isinstance(path[-1], int))
    if kind == "bool_type":
        return "write true or false"
    if kind == "list_type":
        return "write a list of names: [a, b]" if key == "hosts" else "write a list: [0, 1]"
    if kind == "string_type":
        return "write it in quotes" if isinstance(value, (int, float)) else "write one text"
    model = model_at(path)
    return f"write a mapping with keys of: {', '.join(model.model_fields)}" if model else "write {key: value}"


def _number_fix(key: str, kind: str, value: Any, *, listed: bool) -> str:
    if listed:
        return "write ids or UUIDs: [0, 1]"
    if isinstance(value, str):
        if re.fullmatch(r"[+-]?[1-9][0-9]{0,17}|0", value.strip()):
            return "write the number without quotes"
        if value.strip().lower() in _NUMBER_WORDS:
            return f"write {key}: {_NUMBER_WORDS.index(value.strip().lower())}"
    if isinstance(value, float) and kind == "int_type":
        return f"write {key}: {int(value)}" if value.is_integer() else "write it without a fraction"
    return f"write a number, such as {key}: {_EXAMPLES.get(key, '2')}"


def _choice_fix(key: str, value: Any, path: Path) -> str:
    choices = _choices(path)
    listed = f"use {', '.join(choices[:-1])} or {choices[-1]}"
    if not isinstance(value, str):
        return listed
    word = value.strip().lower().replace("_", "-")
    near = _WORDS.get((key, word)) or next(iter(difflib.get_close_matches(word, choices, n=1, cutoff=0.6)), None)
    return f"did you mean `{near}`? Possible: {', '.join(choices)}" if near in choices else listed


def _choices(path: Path) -> list[str]:
    from typing import get_args

    from pdctl.topology.fields import kinds_at

    return [str(choice) for kind in kinds_at(path) for choice in get_args(kind)]


def _name_fix(path: Path) -> str:
    if path == ("name",):
        return "use lower-case letters, digits and dashes, at most 40"
    return "use letters, digits, `.`, `_` and `-`, at most 64, a letter or digit first"


def _missing_fix(path: Path) -> str:
    if path == ("model",):
        return "add `model: /path/to/model` (a path on the hosts, or a hub id)"
    examples = {"name": "a", "host": "a", "instance": "producer-0"}
    if path[:-1] == ("connector",):
        return "add `name: nixl`"
    return f"add `{path[-1]}: {examples.get(str(path[-1]), '...')}`"


def _unit_fix(value: Any, literal: bool) -> str:
    """Return the duration or size that was meant by one with a unit of other programs."""
    match = (
        re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", value.strip())
        if isinstance(value, str) and literal
        else None
    )
    if not match:
        return ""
    number, unit = match[1], match[2].lower()
    for short, words in {
        "s": ("sec", "secs", "second", "seconds"),
        "m": ("min", "mins", "minute", "minutes"),
        "h": ("hr", "hrs", "hour", "hours"),
    }.items():
        if unit in words:
            return f"write {number}{short}"
    if unit in ("k", "kb", "ki", "kib", "m", "mb", "mi", "mib", "g", "gb", "gi", "gib"):
        return f"write {number}{unit[0].upper()}iB"
    if unit in ("d", "day", "days") and "." not in number:
        return f"write {int(number) * 24}h"
    if unit in ("ms", "msec", "millis") and "." not in number:
        return f"write {int(number) / 1000:g}s"
    return ""
