"""Does a value fit a flag of vLLM's parser? Pure; lenient where the facts do not say how the parser reads it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.vllm.releases import Flag

_SIZE = re.compile(r"\d+(?:\.\d+)?[kKmMgGtT]?")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "size": "a whole number, such as 8192 or 8k",
    "auto-size": "a whole number such as 8192 or 8k, or auto",
    "json": "a JSON object: write it as a mapping",
    "bool": "true or false",
    "switch": "true (the flag alone)",
}


def misfit(flag: Flag, value: Any) -> tuple[str, str] | None:
    """Return (what, fix) if vLLM's parser would refuse the value, else None. A value of None leaves the flag out."""
    if value is None or flag.kind == "any":
        return None
    if flag.kind.startswith("list-") or flag.kind == "append":
        kind = flag.kind.removeprefix("list-")
        wrong = [one for one in (value if isinstance(value, list) else [value]) if not _fits(kind, one)]
        if isinstance(value, (bool, dict)):
            return f"`{flag.name}` takes values, not {_shown(value)}", "write a list"
        return (
            (f"{_shown(wrong[0])} is no value of `{flag.name}`", f"it takes {_WORDS.get(kind, kind)}")
            if wrong
            else None
        )
    if isinstance(value, list) and flag.kind != "json":
        return f"`{flag.name}` takes one value, not a list", "write one"
    if flag.choices is not None and flag.kind in ("str", "int"):
        return _choice(flag, value)
    if _fits(flag.kind, value):
        return None
    return f"{_shown(value)} is no value of `{flag.name}`", f"it takes {_WORDS.get(flag.kind, flag.kind)}"


def _choice(flag: Flag, value: Any) -> tuple[str, str] | None:
    assert flag.choices is not None
    allowed = [str(one) for one in flag.choices]
    if not isinstance(value, (bool, dict)) and (str(value) in allowed or str(value) == "None"):
        return None
    return f"{_shown(value)} is no choice of `{flag.name}`", f"it takes {', '.join(allowed)}"


def _fits(kind: str, value: Any) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "switch":
        return value is True
    if isinstance(value, bool):
        return False  # a bare flag where a value is wanted
    if kind == "json":
        return isinstance(value, (dict, list)) or _is_json(value)
    if isinstance(value, dict):
        return False
    text = str(value).strip()
    return text.lower() == "none" or _reads_as(kind, text)


def _reads_as(kind: str, text: str) -> bool:
    if kind == "int":
        return bool(re.fullmatch(r"[+-]?\d+", text))
    if kind == "float":
        return _is_number(text)
    if kind == "size":
        return bool(_SIZE.fullmatch(text))
    if kind == "auto-size":
        return bool(_SIZE.fullmatch(text)) or text in ("-1", "auto")
    return True


def _is_json(value: Any) -> bool:
    try:
        json.loads(str(value))
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
