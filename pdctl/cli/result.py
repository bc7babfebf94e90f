"""What a command returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Result:
    """A command's outcome; one renderer makes text or JSON of it."""

    data: Mapping[str, Any] = field(default_factory=dict)
    """The JSON form, with `schema`."""
    view: str = ""
    """Name of the view in `pdctl.render.views` that shows `data` to people."""
    text: str | None = None
    """Finished text for stdout, for formats that are text by nature (a shell script, YAML)."""
    exit_code: int = 0
    quiet: bool = False
    """True when everything was already shown while it happened (a followed log)."""
