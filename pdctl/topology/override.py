"""`--set a.b[0].c=value`: as if it stood in the file instead of what stands there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pdctl.errors import Problem
from pdctl.topology.source import below, dotted
from pdctl.topology.yaml_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.topology.source import Path

_PART = re.compile(r"""(?:"([^"]+)"|([^\s"\[\].=]+))((?:\[[0-9]{1,6}\])*)(\.|=|\Z)""")


@dataclass
class Overridden:
    """What `--set` did to a file's data, which is changed in place."""

    paths: list[Path] = field(default_factory=list)
    """The paths that were set, in the order of the command line."""
    made: set[Path] = field(default_factory=set)
    """The paths that stand in no file: those that were set, and the sections made for them."""
    problems: list[Problem] = field(default_factory=list)
    broken: list[Path] = field(default_factory=list)
    """Paths whose value could not be read."""


def override(data: dict[str, Any], places: dict[Path, tuple[int, int]], settings: Sequence[str]) -> Overridden:
    """Apply settings in order, their values read as YAML. Forgets the places of what is replaced."""
    done = Overridden()
    for setting in settings:
        path, text = _split(setting)
        if path is None:
            shown = setting.split("=", 1)[0][:60]
            done.problems.append(
                Problem("", f"`{shown}` is no setting", "write --set key=value, --set key.subkey=value", "--set")
            )
            continue
        parsed = parse_yaml(text, "--set", base=path)
        if parsed.problems:
            done.problems += [_about(path, problem) for problem in parsed.problems]
            done.broken.append(path)
            continue
        wrong = _put(data, path, parsed.data)
        if wrong:
            done.problems.append(Problem(dotted(path), wrong, "check the path", "--set"))
            done.broken.append(path[:1])
            continue
        for stale in [one for one in places if below(one, path)]:
            del places[stale]
        done.paths.append(path)
        done.made |= {path, *(path[:end] for end in range(1, len(path)) if path[:end] not in places)}
    return done


def _about(path: Path, problem: Problem) -> Problem:
    """Return a problem in the value of a setting; its line and column mean nothing to a reader of the command line."""
    return replace(problem, path=problem.path or dotted(path), line=0, column=0)


def _split(setting: str) -> tuple[Path | None, str]:
    """Return the path and the text of the value; a key with dots in it stands in double quotes."""
    path: list[str | int] = []
    text, at = setting.strip(), 0
    while match := _PART.match(text, at):
        path.append(match[1] or match[2])
        path += [int(index) for index in re.findall(r"\[([0-9]+)\]", match[3])]
        at = match.end()
        if match[4] == "=":
            return tuple(path), text[at:]
        if not match[4]:
            break
    return None, ""


def _put(data: Any, path: Path, value: Any) -> str:
    """Set a value in place, making the mappings that lack on the way; returns what is wrong, or nothing."""
    for depth, part in enumerate(path):
        last = depth + 1 == len(path)
        here = dotted(path[:depth])
        if isinstance(part, int):
            if not isinstance(data, list) or part > len(data):
                return f"`{here}` has no item {part}"
            if part == len(data):
                data.append(None)
        elif not isinstance(data, dict):
            return f"`{here}` is no mapping: nothing can be set below it"
        elif path[:depth] == () and part == "connector" and isinstance(data.get(part), str):
            data[part] = {"name": data[part]}  # so that `--set connector.extra.x=1` works on the short form
        if last:
            data[part] = value
        elif (data[part] if isinstance(part, int) else data.get(part)) is None:
            data[part] = [] if isinstance(path[depth + 1], int) else {}
        data = data[part]
    return ""
