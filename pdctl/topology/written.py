"""The file's values as written, for messages: a value that came from a variable is shown as `${NAME}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.topology.scalars import shown

if TYPE_CHECKING:
    from pdctl.topology.source import Path

_ABSENT = object()
_HIDDEN = "this value"
"""Said instead of what may be a key."""


@dataclass(frozen=True)
class Written:
    """Data with references not yet filled in; what a variable holds must never reach a message."""

    data: Any

    def has(self, path: Path) -> bool:
        """Tell whether a path stands in the file or in a setting."""
        return self._get(path) is not _ABSENT

    def show(self, path: Path, otherwise: Any = None) -> str:
        """Return a value for a message; `otherwise`: the value of a default that is not written."""
        if path and path[-1] == "api_key_env":
            return _HIDDEN
        value = self._get(path)
        return shown(otherwise if value is _ABSENT else value)

    def text(self, path: Path, otherwise: str) -> str:
        """Return a name for a message, without quotes."""
        value = self._get(path)
        return value if isinstance(value, str) else otherwise

    def keys(self, path: Path) -> tuple[str, ...]:
        """Return the keys of a mapping."""
        value = self._get(path)
        return tuple(value) if isinstance(value, dict) else ()

    def _get(self, path: Path) -> Any:
        value = self.data
        for part in path:
            if isinstance(value, str) and path == ("connector", "name"):  # the short form
                return value
            if not (
                (isinstance(value, dict) and part in value)
                or (isinstance(value, list) and isinstance(part, int) and part < len(value))
            ):
                return _ABSENT
            value = value[part]  # type: ignore[index]
        return value
