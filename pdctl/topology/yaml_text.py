"""YAML text to plain data with the place of every key and item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from pdctl.errors import Problem
from pdctl.topology.fields import is_text
from pdctl.topology.scalars import is_null, plain_value
from pdctl.topology.source import Path, dotted
from pdctl.topology.yaml_errors import reader_problem, syntax_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_CHARACTERS = 256 * 1024
_MOST_NODES = 20_000
"""A topology has some hundreds of values; more is a mistake or aliases of aliases of aliases."""
_MOST_DEPTH = 32
_TAG = "tag:yaml.org,2002:"


@dataclass
class Parsed:
    """Data with places; `problems` says what is wrong with it as YAML."""

    data: Any
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: list[Path] = field(default_factory=list)
    """Paths whose value could not be made out."""
    readable: bool = True
    """False: this is no YAML, and `data` is nothing."""


class _TooMuch(yaml.MarkedYAMLError):
    """More than any topology holds."""


class _Composer(yaml.SafeLoader):
    """Makes nodes, not values. The pure Python loader, so that messages don't depend on libyaml being there."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooMuch(problem=f"nested more than {_MOST_DEPTH} levels deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse_yaml(text: str, file: str, base: Path = ()) -> Parsed:
    """Parse one document. Never raises for what a file may hold.

    `base` is where the text stands in a topology: text keys are taken as written, whatever YAML makes of them.
    """
    if len(text) > _MOST_CHARACTERS:
        what = f"{len(text)} characters are more than any topology has"
        return _unreadable(Problem("", what, f"keep it under {_MOST_CHARACTERS}", file, 1, 1))
    try:
        loader = _Composer(text)
    except yaml.reader.ReaderError as error:
        return _unreadable(reader_problem(error, text, file))
    walk = _Walk(loader, file)
    try:
        node = loader.get_single_node()
        data = walk.value(node, base, ()) if node is not None else None
    except _TooMuch as error:
        line, column = (error.problem_mark.line + 1, error.problem_mark.column + 1) if error.problem_mark else (1, 1)
        return _unreadable(Problem("", str(error.problem), "simplify it", file, line, column))
    except yaml.MarkedYAMLError as error:
        return _unreadable(syntax_problem(error, text, file))
    except (ValueError, OverflowError) as error:  # PyYAML on `"\U00110000"` and the like
        mark = loader.get_mark()
        said = f"this is no YAML: {error}"
        return _unreadable(Problem("", said, "check the escapes here", file, mark.line + 1, mark.column + 1))
    finally:
        loader.dispose()
    return Parsed(data, walk.places, walk.problems, walk.broken)


def _unreadable(problem: Problem) -> Parsed:
    return Parsed(None, problems=[problem], readable=False)


class _Walk:
    """Builds data from composed nodes, since only nodes know where they stand."""

    def __init__(self, loader: _Composer, file: str) -> None:
        self._loader, self._file = loader, file
        self.places: dict[Path, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.broken: list[Path] = []
        self._nodes = 0

    def value(self, node: yaml.Node, path: Path, inside: tuple[yaml.Node, ...]) -> Any:
        """Return a node's data; `inside`: the nodes around it."""
        self._nodes += 1
        if self._nodes > _MOST_NODES or len(inside) > _MOST_DEPTH:
            what = f"more than {_MOST_NODES} values, or aliases in aliases: more than any topology has"
            raise _TooMuch(problem=what, problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if any(node is one for one in inside):
            self._problem(node, path, "this anchor contains itself", "write the value out")
            return None
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._problem(node, path, f"the tag {_tag(node)} means nothing here", "remove the tag")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, inside)
        return self._sequence(node, path, inside)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = str(node.value)
        implicit = self._loader.resolve(yaml.ScalarNode, text, (not node.style, bool(node.style)))  # type: ignore[no-untyped-call]
        if node.tag == implicit:
            if node.style or (is_text(path) and not is_null(text)):
                return text
            return plain_value(text)
        kind = node.tag.removeprefix(_TAG)
        if kind == "str" or node.tag == "!":
            return text
        value = plain_value(text)
        wanted: Mapping[str, tuple[type, ...]] = {
            "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),),
        }  # fmt: skip
        if type(value) in wanted.get(kind, ()):
            return float(value) if kind == "float" else value
        self._problem(node, path, f"the tag {_tag(node)} means nothing here", "remove the tag")
        return None

    def _sequence(self, node: yaml.Node, path: Path, inside: tuple[yaml.Node, ...]) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            at = (*path, index)
            self.places[at] = _place(item)
            items.append(self.value(item, at, (*inside, node)))
        return items

    def _mapping(self, node: yaml.MappingNode, path: Path, inside: tuple[yaml.Node, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in self._pairs(node, path):
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(
                    key_node, path, "a key must be a single word", "write `key: value`; quote what has { or ["
                )
                continue
            key = str(key_node.value)
            at = (*path, key)
            if key in lines:
                first = f"`{key}` stands twice, first in line {lines[key]}"
                self._problem(key_node, at, f"{first} and again in line {_place(key_node)[0]}", "keep one of them")
                continue
            lines[key] = _place(key_node)[0]
            self.places[at] = _place(key_node)
            result[key] = self.value(value_node, at, (*inside, node))
        return result

    def _pairs(self, node: yaml.MappingNode, path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the pairs with `<<: *anchor` merged in: own keys win, then earlier sources."""
        own = [pair for pair in node.value if not _is_merge(pair[0])]
        names = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        waiting = [(key, value, 0) for key, value in node.value if _is_merge(key)]
        while waiting:
            key, value, depth = waiting.pop(0)
            if isinstance(value, yaml.SequenceNode):
                waiting = [(key, one, depth + 1) for one in value.value] + waiting
                continue
            if not isinstance(value, yaml.MappingNode) or depth > _MOST_DEPTH:
                self._problem(key, path, "`<<` merges mappings only", "name an anchor of a mapping: `<<: *name`")
                continue
            nested = []
            for pair in value.value:
                self._nodes += 1
                if self._nodes > _MOST_NODES:
                    raise _TooMuch(problem="more merged keys than any topology has", problem_mark=key.start_mark)
                if _is_merge(pair[0]):
                    nested.append((key, pair[1], depth + 1))
                elif isinstance(pair[0], yaml.ScalarNode) and pair[0].value not in names:
                    names.add(pair[0].value)
                    merged.append(pair)
            waiting = nested + waiting
        return own + merged

    def _problem(self, node: yaml.Node, path: Path, what: str, fix: str) -> None:
        line, column = _place(node)
        self.problems.append(Problem(dotted(path), what, fix, self._file, line, column))
        if path:
            self.broken.append(path)


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}merge"


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
