"""Text -> Topology, in named steps; all errors of the file at once."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pdctl.errors import Problem, TopologyError
from pdctl.topology.editor_schema import json_schema
from pdctl.topology.environment import broken_environment
from pdctl.topology.expand import expand
from pdctl.topology.fields import model_at
from pdctl.topology.normal import normalise
from pdctl.topology.override import override
from pdctl.topology.rules import broken_rules
from pdctl.topology.schema import Topology
from pdctl.topology.source import Path, SourceMap, TopologyFile, below
from pdctl.topology.translate import translate
from pdctl.topology.written import Written
from pdctl.topology.yaml_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["json_schema", "load_topology"]

_MOST_ROUNDS = 8
"""Validation is repeated without what was wrong; the second round finds everything unless a key hid another's error."""


def load_topology(
    text: str, *, file: str, default_name: str, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> TopologyFile:
    """Load a topology: parse, `--set`, expand, normalise, validate, check. Raises TopologyError with all problems.

    `environ` fills in `${VAR}`; secrets are named in the file, not read. No value of it is ever part of a message.
    """
    parsed = parse_yaml(text, file)
    if not parsed.readable:
        raise TopologyError(parsed.problems)
    if parsed.data is None and not overrides and not parsed.problems:
        what = "the file is empty"
        fix = "write at least `model`, `layout` and `connector`; `pdctl schema` describes all keys"
        raise TopologyError([Problem("", what, fix, file, 1, 1)])
    data = {} if parsed.data is None else parsed.data
    if not isinstance(data, dict):
        first = Problem("", "the file is no mapping", "write `key: value` lines", file, 1, 1)
        raise TopologyError([*parsed.problems, first])
    return _Loading(file, data, parsed.places, parsed.problems, parsed.broken).load(default_name, environ, overrides)


class _Loading:
    """One file on its way: what is wrong so far, and of which keys nothing is known because they are wrong."""

    def __init__(
        self,
        file: str,
        data: dict[str, Any],
        places: dict[Path, tuple[int, int]],
        problems: list[Problem],
        broken: list[Path],
    ) -> None:
        self._data, self._places = data, places
        self._problems, self._broken = list(problems), list(broken)
        self._source = SourceMap(file, places)
        self._written = Written(data)

    def load(self, default_name: str, environ: Mapping[str, str], overrides: Sequence[str]) -> TopologyFile:
        done = override(self._data, self._places, overrides)
        self._problems += done.problems
        self._broken += done.broken
        self._source = SourceMap(self._source.file, self._places, frozenset(done.made))
        expanded = expand(self._data, environ, self._report)
        normal = normalise(_pruned(expanded, self._broken), default_name, done.paths, self._written, self._report)
        self._place_replicas()
        topology = self._validate(normal)
        if topology is not None:
            self._check(topology)
        if topology is None and not self._problems:  # cannot be, but an error without a word would be worse
            self._report((), "the file cannot be understood", "compare it with `pdctl schema`")
        if self._problems or topology is None:
            raise TopologyError(_in_order(self._problems))
        return TopologyFile(topology, self._source)

    def _report(self, path: Path, what: str, fix: str, *broken: Path) -> None:
        self._problems.append(self._source.problem(path, what, fix))
        self._broken += broken or (path,)

    def _place_replicas(self) -> None:
        """Let counts that come from the layout stand where the layout does, for the planner's messages."""
        for role in ("prefill", "decode"):
            path: Path = (role, "replicas")
            if ("layout",) in self._places and path not in self._places and not self._written.has(path):
                self._places[path] = self._places[("layout",)]

    def _validate(self, normal: dict[str, Any]) -> Topology | None:
        """Validate, then again without what was wrong, so that rules are checked on the rest."""
        data = _pruned(normal, self._broken)
        for _ in range(_MOST_ROUNDS):
            try:
                return Topology.model_validate(data)
            except ValidationError as error:
                for one in translate(error, data, self._written):
                    if not self._is_doubtful(one.path):
                        self._report(one.path, one.what, one.fix, *one.broken)
                    self._broken += one.broken
                data = _pruned(data, self._broken)
        return None

    def _check(self, topology: Topology) -> None:
        found = list(chain(broken_rules(topology, self._written), broken_environment(topology, self._written)))
        doubtful = [any(map(self._is_doubtful, (one.path, *one.rests_on))) for one in found]
        for one, doubt in zip(found, doubtful, strict=True):
            if not doubt:
                self._report(one.path, one.what, one.fix)

    def _is_doubtful(self, path: Path) -> bool:
        """Tell whether a key, one around it or one below it, is known to be wrong."""
        return any(below(path, wrong) or below(wrong, path) for wrong in self._broken)


def _pruned(data: dict[str, Any], broken: Sequence[Path]) -> dict[str, Any]:
    """Return the data without the keys that are wrong; a list goes as a whole, so that no index changes."""
    cuts = {_cut(path) for path in broken}
    kept = _without(data, (), cuts)
    result: dict[str, Any] = kept if isinstance(kept, dict) else {}
    if ("name",) in cuts:
        result["name"] = "unnamed"
    if ("model",) in cuts:
        result["model"] = "unknown"
    return result


def _cut(path: Path) -> Path:
    """Return the nearest key, at or above a path, that a topology can be without."""
    while len(path) > 1:
        model = model_at(path[:-1]) if isinstance(path[-1], str) else None
        field = model.model_fields.get(str(path[-1])) if model is not None else None
        if isinstance(path[-1], str) and (field is None or not field.is_required()):
            return path
        path = path[:-1]
    return path


def _without(value: Any, path: Path, cuts: set[Path]) -> Any:
    if isinstance(value, dict):
        return {key: _without(one, (*path, key), cuts) for key, one in value.items() if (*path, key) not in cuts}
    if isinstance(value, list):
        return [_without(one, (*path, index), cuts) for index, one in enumerate(value)]
    return value


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda one: (one.line, one.column))
