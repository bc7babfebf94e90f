"""YAML text to plain data with the place of every key and item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from pdctl.errors import Problem
from pdctl.topology.source import Path, dotted

_MOST_NODES = 20_000
"""A topology has some hundreds of values; more is a mistake or an alias bomb."""
_TEXT_KEYS = frozenset({"name", "model", "served_model_name", "version", "layout", "address", "host", "user", "interface", "workdir", "python"})
"""Keys whose value is text even where YAML sees a number: `version: 0.22`, `model: 7`."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Parsed:
    """Data with places; `problems` says what is wrong with it as YAML."""

    data: Any
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def parse_yaml(text: str, file: str) -> Parsed:
    """Parse one document. Never raises for what a file may hold."""
    try:
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            walk = _Walk(loader, file)
            data = walk.value(node, (), depth=0) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        return Parsed(None, problems=[_syntax_problem(error, text, file)])
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"character {error.character!r} is not allowed in YAML"
        return Parsed(None, problems=[Problem("", what, "remove it", file, line, 1)])
    except (ValueError, RecursionError, OverflowError) as error:
        return Parsed(None, problems=[Problem("", f"the file cannot be read as YAML: {error}", "simplify it", file, 1, 1)])
    return Parsed(data, walk.places, walk.problems)


class _Walk:
    """Builds data from composed nodes, since only nodes know where they stand."""

    def __init__(self, loader: Any, file: str) -> None:
        self._loader, self._file = loader, file
        self.places: dict[Path, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > 50:
            raise ValueError("more values than any topology has (aliases in aliases?)")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, path, depth)
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if path and path[-1] in _TEXT_KEYS and node.style is None and node.tag.rsplit(":", 1)[-1] in ("int", "float", "timestamp"):
            return node.value
        try:
            return self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError, AttributeError):
            self._problem(node, path, f"{node.value!r} has a YAML tag that means nothing here", "write it without the tag")
            return None

    def _sequence(self, node: yaml.SequenceNode, path: Path, depth: int) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            self.places[(*path, index)] = _place(item)
            items.append(self.value(item, (*path, index), depth + 1))
        return items

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in self._pairs(node, path):
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key must be a single word", "write `key: value`")
                continue
            key = key_node.value
            line = key_node.start_mark.line + 1
            if key in lines:
                self._problem(key_node, (*path, key), f"`{key}` stands here and in line {lines[key]}", "keep one of them")
                continue
            lines[key] = line
            self.places[(*path, key)] = _place(key_node)
            result[key] = self.value(value_node, (*path, key), depth + 1)
        return result

    def _pairs(self, node: yaml.MappingNode, path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the pairs with `<<: *anchor` merged in: own keys win."""
        own = [pair for pair in node.value if not _is_merge(pair[0])]
        names = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if not _is_merge(key):
                continue
            sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for source in sources:
                if not isinstance(source, yaml.MappingNode):
                    self._problem(key, path, "`<<` merges mappings only", "name an anchor of a mapping")
                    continue
                for pair in source.value:
                    if isinstance(pair[0], yaml.ScalarNode) and pair[0].value not in names:
                        names.add(pair[0].value)
                        merged.append(pair)
        return own + merged

    def _problem(self, node: yaml.Node, path: Path, what: str, fix: str) -> None:
        line, column = _place(node)
        self.problems.append(Problem(dotted(path), what, fix, self._file, line, column))


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:merge"


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.splitlines()
    for number in (line, line - 1, line + 1):  # the parser may notice a tab one line late
        written = lines[number - 1] if 0 < number <= len(lines) else ""
        indent = written[: len(written) - len(written.lstrip())]
        if "\t" in indent:
            return Problem("", "a tab cannot indent YAML", "use spaces instead of the tab", file, number, indent.index("\t") + 1)
    said = (error.problem or "").strip() or "this is no YAML"
    if "found character '%'" in said or "found character '@'" in said or "found character '`'" in said:
        return Problem("", said, "put the value in quotes", file, line, column)
    if "expected a single document" in said or "expected a single document" in (error.context or ""):
        return Problem("", "the file holds more than one YAML document", "keep one; a topology is one document", file, line, column)
    context = f" {error.context.strip()}" if error.context else ""
    return Problem("", f"no valid YAML: {said}{context}", "check quotes, colons and indentation here", file, line, column)

