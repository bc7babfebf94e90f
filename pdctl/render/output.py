"""The one renderer of results: JSON or text, on stdout."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def show(data: Mapping[str, Any], view: str, text: str | None, *, as_json: bool) -> None:
    """Print a result."""
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    elif text is not None:
        sys.stdout.write(text)
    elif view:
        from pdctl.render.views import VIEWS

        VIEWS[view](data)
    sys.stdout.flush()
