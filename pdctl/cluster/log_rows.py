"""A log line as the shim sends it."""

from __future__ import annotations

Row = tuple[str, str, str]
"""Instance, time stamp (UTC, such as 2026-01-31T12:00:00.000000Z; stamps sort as text), text."""


def row_of(line: bytes) -> Row:
    """Read `<instance> <stamp> <text>`."""
    instance, stamp, text = ([*line.decode(errors="replace").split(" ", 2), "", ""])[:3]
    return instance, stamp, text
