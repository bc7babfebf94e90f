"""${VAR} and ${VAR:-default} in values, never in keys; `$$` is a dollar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pdctl.topology.fields import is_text
from pdctl.topology.scalars import plain_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.topology.source import Path

    Report = Callable[[Path, str, str], None]

_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_MOST_CHARACTERS = 128 * 1024
"""What Linux takes as one argument or variable (MAX_ARG_STRLEN)."""


def expand(value: Any, environ: Mapping[str, str], report: Report, path: Path = ()) -> Any:
    """Return `value` with its references filled in; what cannot be is reported as (path, what, fix), without values."""
    if isinstance(value, dict):
        return {key: expand(one, environ, report, (*path, key)) for key, one in value.items()}
    if isinstance(value, list):
        return [expand(one, environ, report, (*path, index)) for index, one in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    text = _Filling(environ, report, path).fill(value)
    if "${" not in value or is_text(path):
        return text
    return plain_value(text)  # `tp: ${TP:-2}` is a number, in quotes too, which { } asks for


class _Filling:
    """One value's references, with where to complain."""

    def __init__(self, environ: Mapping[str, str], report: Report, path: Path) -> None:
        self._environ, self._report, self._path = environ, report, path

    def fill(self, text: str) -> str:
        filled = _REFERENCE.sub(self._replace, text)
        if len(filled) > _MOST_CHARACTERS:
            self._report(self._path, f"the variables make it {len(filled)} characters long", "use shorter values")
            return ""
        return filled

    def _replace(self, match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if not match[2]:
            self._report(self._path, "`${` without its `}`", "write ${NAME}, or `$$` for a plain dollar")
            return ""
        reference = _NAME.fullmatch(match[1])
        if reference is None or "${" in (reference[2] or ""):
            nested = reference is not None
            what = "a default holds another reference" if nested else f"`{match[0]}` is no reference to a variable"
            self._report(self._path, what, "write ${NAME} or ${NAME:-default}; `$$` is a plain dollar")
            return ""
        name, default = reference[1], reference[2]
        if self._environ.get(name) or (name in self._environ and default is None):
            return self._environ[name]
        if default is None:
            fix = f"set it, or write a default: ${{{name}:-...}}"
            self._report(self._path, f"the environment has no variable {name}", fix)
            return ""
        return default.replace("$$", "$")
