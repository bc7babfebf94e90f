"""Consoles: colours and width only where a terminal is."""

from __future__ import annotations

import sys
from typing import IO

from rich.console import Console
from rich.table import Table

_PIPE_WIDTH = 250
"""Columns when nobody's terminal limits them: a pipe must not lose text."""
STATE_STYLES = {
    "ready": "green",
    "starting": "cyan",
    "pending": "dim",
    "restarting": "yellow",
    "stopping": "yellow",
    "degraded": "yellow",
    "unhealthy": "bold red",
    "failed": "bold red",
    "unreachable": "bold magenta",
    "stopped": "dim",
}


def console(stream: IO[str] | None = None) -> Console:
    """Return a console for a stream; NO_COLOR is honoured by rich itself."""
    stream = stream or sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, highlight=False, soft_wrap=True, width=width, emoji=False, markup=False)


def plain_table(*columns: str) -> Table:
    """Return a table like docker's: upper-case heads, no lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("NAME", "STATE", "GPUS"))
    return table
