"""Consoles: colours and width only where a terminal is."""

from __future__ import annotations

import shutil
import sys
from typing import IO, TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

_PIPE_WIDTH = 250
"""Columns when nobody's terminal limits them: a pipe must not lose text."""
_GAP = 3
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


def console(stream: IO[str] | None = None, *, at_least: int = 0) -> Console:
    """Return a console for a stream, `at_least` so many columns wide; NO_COLOR is honoured by rich itself."""
    stream = stream or sys.stdout
    width = max(shutil.get_terminal_size().columns, at_least) if stream.isatty() else max(_PIPE_WIDTH, at_least)
    return Console(file=stream, highlight=False, soft_wrap=True, width=width, emoji=False, markup=False)


def plain_table(*columns: str) -> Table:
    """Return a table like docker's: upper-case heads, no lines, no cell folded."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="", show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ignore")
    return table


def print_rows(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, first_to_go: Sequence[str] = ()
) -> None:
    """Print a table on stdout. Where the terminal is too narrow, columns go in the order given; what is still too wide runs over."""
    width = console().width
    shown = list(range(len(columns)))
    widths = [max(len(column), *(cell_len(str(row[at])) for row in rows)) for at, column in enumerate(columns)]
    for name in first_to_go:
        if sum(widths[at] + _GAP for at in shown) - _GAP <= width:
            break
        shown.remove(columns.index(name))
    table = plain_table(*(columns[at] for at in shown))
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    console(at_least=sum(widths) + _GAP * len(widths)).print(table)
