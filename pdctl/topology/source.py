"""Where each key of a topology file stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.topology.schema import Topology

Path = tuple[str | int, ...]


def dotted(path: Path) -> str:
    """Write a path as people do: `hosts[1].address`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def below(path: Path, ancestor: Path) -> bool:
    """Tell whether a path is another one or lies under it."""
    return path[: len(ancestor)] == ancestor


@dataclass(frozen=True)
class SourceMap:
    """Line and column (both 1-based) of every key and list item of one file."""

    file: str
    places: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    overridden: frozenset[Path] = frozenset()
    """Paths set by `--set`: they have no place in the file."""

    def locate(self, path: Path) -> tuple[int, int]:
        """Return the place of `path`, or of its nearest ancestor that is written in the file; (1, 1) for none."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.overridden:
                return (0, 0)
            if path[:end] in self.places:
                return self.places[path[:end]]
        return (1, 1)

    def written(self, *paths: Path) -> Path:
        """Return the first of these paths that the file or `--set` holds, else the first: a size may stand at a role or at the top."""
        return next((path for path in paths if path in self.places or path in self.overridden), paths[0])

    def problem(self, path: Path, what: str, fix: str = "") -> Problem:
        """Make a located problem."""
        line, column = self.locate(path)
        file = "--set" if line == 0 else self.file
        return Problem(dotted(path), what, fix, file, line, column)


@dataclass(frozen=True)
class TopologyFile:
    """A loaded topology with the places of its keys."""

    topology: Topology
    source: SourceMap
