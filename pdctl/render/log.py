"""Log lines of several instances on one screen."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")


class LogPrinter:
    """Prints lines with the instance's name before them, one colour each, aligned."""

    def __init__(self, names: Sequence[str], *, prefix: bool, timestamps: bool, as_json: bool) -> None:
        self._width = max((len(name) for name in names), default=0)
        self._prefix = prefix
        self._timestamps = timestamps
        self._as_json = as_json
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)} if colours else {}

    def line(self, instance: str, stamp: str, text: str) -> None:
        """Print one line at once: a follower waits for it."""
        if self._as_json:
            out = json.dumps({"instance": instance, "time": stamp, "text": text})
        else:
            out = f"{self._head(instance)}{stamp + ' ' if self._timestamps else ''}{text}"
        sys.stdout.write(out + "\n")
        sys.stdout.flush()

    def _head(self, instance: str) -> str:
        if not self._prefix:
            return ""
        name = f"{instance:<{self._width}}"
        colour = self._colours.get(instance)
        return f"\x1b[{colour}m{name}\x1b[0m | " if colour else f"{name} | "
