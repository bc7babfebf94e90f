"""One line a happening on standard output; never a body, a key or a prompt."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a line; a closed or full output must not stop the data plane."""
    try:
        sys.stdout.write(text.replace("\n", " ") + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass
