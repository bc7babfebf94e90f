"""${VAR} and ${VAR:-default} in values, never in keys; `$$` is a dollar."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pdctl.topology.source import Path

_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)\}")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\Z", re.DOTALL)


def expand(value: Any, environ: Mapping[str, str], report: Callable[[Path, str, str], None], path: Path = ()) -> Any:
    """Return `value` with its references filled in; what cannot be is reported as (path, what, fix), never with a value."""
    if isinstance(value, dict):
        return {key: expand(one, environ, report, (*path, key)) for key, one in value.items()}
    if isinstance(value, list):
        return [expand(one, environ, report, (*path, index)) for index, one in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        reference = _NAME.match(match[1])
        if reference is None:
            report(path, f"`{match[0]}` is no reference to a variable", "write ${NAME} or ${NAME:-default}; `$$` is a plain dollar")
            return ""
        name, default = reference[1], reference[2]
        if environ.get(name):
            return environ[name]
        if default is None:
            if name in environ:
                return ""
            report(path, f"the environment has no {name}", f"set it, or write ${{{name}:-default}}")
            return ""
        return default

    text = _REFERENCE.sub(replace, value)
    return _as_number(text) if _REFERENCE.fullmatch(value) else text


def _as_number(text: str) -> Any:
    """Read a value that is one reference as YAML would have: `tp: ${TP:-2}` is a number."""
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    return {"true": True, "false": False}.get(text, text)
