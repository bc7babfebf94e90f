"""Text -> Topology, in named steps; all errors of the file at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pdctl.errors import Problem, TopologyError
from pdctl.topology.expand import expand
from pdctl.topology.rules import broken_rules
from pdctl.topology.schema import Topology
from pdctl.topology.source import Path, SourceMap, TopologyFile
from pdctl.topology.translate import translate
from pdctl.topology.yaml_text import parse_yaml

_LAYOUT = re.compile(r"(\d+)P(\d+)D")
_ROLE_OF_LAYOUT = (("prefill", "P"), ("decode", "D"))


def load_topology(
    text: str, *, file: str, default_name: str, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> TopologyFile:
    """Load a topology: parse, `--set`, expand, normalise, validate, check rules. Raises TopologyError with all problems."""
    parsed = parse_yaml(text, file)
    problems = list(parsed.problems)
    if problems and parsed.data is None:
        raise TopologyError(problems)
    if parsed.data is None:
        raise TopologyError([Problem("", "the file is empty", "write at least `model` and `layout`; `pdctl schema` describes all keys", file, 1, 1)])
    if not isinstance(parsed.data, dict):
        raise TopologyError([Problem("", "the file is not a mapping", "write `key: value` lines", file, 1, 1)])
    data, overridden, wrong = _override(parsed.data, overrides)
    source = SourceMap(file, parsed.places, overridden)
    problems += wrong

    def report(path: Path, what: str, fix: str) -> None:
        problems.append(source.problem(path, what, fix))

    expanded = expand(data, environ, report)
    normal = _normalise(expanded, default_name, report)
    topology = _validate(normal, data, report)
    if topology is not None:
        for path, what, fix in broken_rules(topology):
            report(path, what, fix)
    if problems or topology is None:
        raise TopologyError(_in_order(problems))
    return TopologyFile(topology, source)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file as people write it."""
    schema = Topology.model_json_schema(by_alias=True)
    connector = schema["properties"]["connector"]
    connector["anyOf"] = [{"type": "string", "examples": ["nixl", "p2p_nccl"]}, *connector.get("anyOf", [])]
    schema["required"] = ["model"]
    schema["properties"]["layout"]["examples"] = ["1P1D", "2P4D"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "pdctl topology"}


def _override(data: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], frozenset[Path], list[Problem]]:
    """Apply `a.b[0].c=value` settings to a copy; the values are read as YAML."""
    import copy

    result = copy.deepcopy(data)
    paths: set[Path] = set()
    problems = []
    for written in overrides:
        key, equals, text = written.partition("=")
        path = _parse_path(key)
        if not equals or path is None:
            problems.append(Problem(key, "this is no setting", "write --set key.subkey=value", "--set"))
            continue
        value = parse_yaml(f"{path[-1]}: {text}" if text else f"{path[-1]}:", "--set")
        if value.problems or not isinstance(value.data, dict):
            problems.append(Problem(key, f"the value of {key} is no YAML", "quote it", "--set"))
            continue
        what = _put(result, path, next(iter(value.data.values())))
        if what:
            problems.append(Problem(key, what, "check the path", "--set"))
        paths.add(path)
        if path == ("layout",):
            paths |= {("prefill", "replicas"), ("decode", "replicas")}
            for role, _ in _ROLE_OF_LAYOUT:  # a layout given on the command line replaces the counts of the file
                if isinstance(result.get(role), dict):
                    result[role].pop("replicas", None)
        elif path[1:] == ("replicas",) and path[0] in ("prefill", "decode"):
            _relayout(result, str(path[0]))
    return result, frozenset(paths), problems


def _relayout(data: dict[str, Any], role: str) -> None:
    """Let `--set decode.replicas=2` win over the file's layout; the other role keeps its count."""
    match = _LAYOUT.fullmatch(str(data.get("layout", "")))
    if match:
        del data["layout"]
        for (other, _), count in zip(_ROLE_OF_LAYOUT, match.groups(), strict=True):
            if other != role:
                section = data.setdefault(other, {})
                if isinstance(section, dict):
                    section.setdefault("replicas", int(count))


def _parse_path(text: str) -> Path | None:
    path: list[str | int] = []
    for part in text.strip().split("."):
        match = re.fullmatch(r"([^\[\].\s]+)((?:\[\d+\])*)", part)
        if not match:
            return None
        path.append(match[1])
        path += [int(index) for index in re.findall(r"\[(\d+)\]", match[2])]
    return tuple(path)


def _put(data: Any, path: Path, value: Any) -> str:
    """Set a value in place, making missing mappings; returns what is wrong, or nothing."""
    for part, following in zip(path, path[1:], strict=False):
        if isinstance(part, int):
            if not isinstance(data, list) or part >= len(data):
                return f"there is no item {part}"
            data = data[part]
            continue
        if not isinstance(data, dict):
            return f"`{part}` is below a value that is no mapping"
        if data.get(part) is None:
            data[part] = [] if isinstance(following, int) else {}
        elif part == "connector" and isinstance(data[part], str):
            data[part] = {"name": data[part]}
        data = data[part]
    last = path[-1]
    if isinstance(last, int):
        if not isinstance(data, list) or last > len(data):
            return f"there is no item {last}"
        data[last : last + 1] = [value]
    elif isinstance(data, dict):
        data[last] = value
    else:
        return f"`{last}` is below a value that is no mapping"
    return ""


def _normalise(data: dict[str, Any], default_name: str, report: Any) -> dict[str, Any]:
    """Fill in the name, fold the layout into the roles, and give the connector its long form."""
    result = {key: value for key, value in data.items() if value is not None or key in ("model",)}
    result.setdefault("name", default_name)
    if isinstance(result.get("connector"), str):
        result["connector"] = {"name": result["connector"]}
    match = _LAYOUT.fullmatch(result["layout"]) if isinstance(result.get("layout"), str) else None
    if match:
        for (role, letter), count in zip(_ROLE_OF_LAYOUT, match.groups(), strict=True):
            section = result.setdefault(role, {})
            if not isinstance(section, dict):
                continue
            given = section.get("replicas")
            if given is not None and given != int(count):
                report((role, "replicas"), f"{given} does not agree with layout {result['layout']} ({count}{letter})", "remove one of the two")
            result[role] = {**section, "replicas": int(count) if given is None else given}
    return result


def _validate(normal: dict[str, Any], written: Mapping[str, Any], report: Any) -> Topology | None:
    try:
        return Topology.model_validate(normal)
    except ValidationError as error:
        shown = {**normal, **{key: value for key, value in written.items() if not isinstance(value, (dict, list))}}
        if isinstance(written.get("connector"), str):
            shown["connector"] = normal["connector"]
        for path, what, fix in translate(error, Topology, shown):
            report(path, what, fix)
        return None


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    unique = list(dict.fromkeys(problems))
    return sorted(unique, key=lambda one: (one.line, one.column))
