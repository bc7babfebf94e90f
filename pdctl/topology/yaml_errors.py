"""PyYAML's syntax errors in plain words, with the place that people would look at."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.errors import Problem

if TYPE_CHECKING:
    import yaml

_QUOTE = "put the value in quotes"
_INDENT = ("this line does not fit the indentation of those above", "align it with its siblings")
_TAG = ("`!` begins a YAML tag", _QUOTE)
_SAID: dict[str, tuple[str, str]] = {
    "mapping values are not allowed": ("a `:` where no key can be", f"align the line with its siblings, or {_QUOTE}"),
    "expected a single document": ("a second YAML document begins here", "keep one; a topology is one document"),
    "could not find expected ':'": ("a key without `:`", "write `key: value`"),
    "found undefined alias": (
        "`*` names an anchor that is not there",
        f"{_QUOTE}, or define the anchor above with `&`",
    ),
    "scanning a quoted scalar": ("a quote that is not closed", "close it, or use the other kind of quotes"),
    "scanning a double-quoted scalar": ("an escape that YAML does not know", "use single quotes"),
    "parsing a flow mapping": (
        "a `{` that is not closed, or a comma is missing",
        "close it, with `, ` between the keys",
    ),
    "parsing a flow sequence": (
        "a `[` that is not closed, or a comma is missing",
        "close it, with `, ` between the items",
    ),
    "parsing a flow node": ("a value is missing inside { } or [ ]", "write a value, or remove the comma"),
    "parsing a block": _INDENT,
    "expected '<document start>'": _INDENT,
    "sequence entries are not allowed": (
        "a list item cannot begin here",
        "put `- ` on a line of its own, below its key",
    ),
    "scanning an alias": ("`*` without a name", _QUOTE),
    "scanning an anchor": ("`&` without a name", _QUOTE),
    "that cannot start any token": ("the value begins with a character that YAML keeps for itself", _QUOTE),
    "scanning a block scalar": ("`|` or `>` begins a text block, and this is none", f"indent the block, or {_QUOTE}"),
    "scanning a tag": _TAG,
    "parsing a tag": _TAG,
    "tag handle": _TAG,
    "duplicate anchor": ("two anchors have one name", "rename one of them"),
    "directive": ("`%` begins a YAML directive", f"remove it, or {_QUOTE}"),
    "incompatible": ("the file asks for another version of YAML", "remove the %YAML line"),
}
"""What PyYAML says, in its problem or its context -> what is wrong, and the fix; the first that fits counts."""
_AT_CONTEXT = (
    "scanning a quoted scalar",
    "could not find expected ':'",
    "parsing a flow mapping",
    "parsing a flow sequence",
)
"""Where the beginning says more than the place at which the parser gave up."""
_OPEN_REFERENCE = re.compile(r"[{\[,][^'\"#]*\$\{")


def syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    """Return what keeps the text from being YAML."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text)  # PyYAML's line breaks
    for number in (line, line - 1, line + 1):  # the parser may notice a tab one line late
        at = _tab_column(lines[number - 1], column if number == line else 0) if 0 < number <= len(lines) else 0
        if at:
            return Problem(
                "", "a tab cannot indent or separate YAML", "use spaces instead of the tab", file, number, at
            )
    said = f"{error.context or ''} | {error.problem or ''}"
    written = lines[line - 1] if line <= len(lines) else ""
    if "flow" in said and (reference := _OPEN_REFERENCE.search(written)):
        column = reference.end() - 1
        what = "a reference to a variable inside { } or [ ] needs quotes"
        return Problem("", what, 'write "${NAME}"', file, line, column)
    if "parsing a flow node" in said and written[column - 1 : column] == ":":
        return Problem("", "a value that begins with `:` needs quotes inside { } or [ ]", _QUOTE, file, line, column)
    for part, (what, fix) in _SAID.items():
        if part in said:
            if error.context_mark and part in _AT_CONTEXT:
                line, column = error.context_mark.line + 1, error.context_mark.column + 1
            return Problem("", what, fix, file, line, column)
    return Problem(
        "", f"this is no YAML: {error.problem}", "check quotes, colons and indentation here", file, line, column
    )


def reader_problem(error: yaml.reader.ReaderError, text: str, file: str) -> Problem:
    """Return the place of a character that YAML does not allow."""
    before = text[: error.position]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    code = error.character if isinstance(error.character, int) else ord(error.character)
    return Problem("", f"the character U+{code:04X} is not allowed in YAML", "remove it", file, line, column)


def _tab_column(line: str, column: int) -> int:
    """Return the 1-based column of a tab in the indentation or where the parser stopped; 0 for none."""
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    if "\t" in indent:
        return indent.index("\t") + 1
    return column if column and line[column - 1 : column] == "\t" else 0
