"""Read a topology from where the user says it is."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import Problem, TopologyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.topology.source import TopologyFile

_DEFAULT = "topology.yaml"


def read_topology(file: str, overrides: Sequence[str]) -> TopologyFile:
    """Load and validate a topology file. Raises UsageError if it cannot be read, TopologyError if it is wrong."""
    from pdctl.topology.load import load_topology

    text = sys.stdin.read() if file == "-" else _read_text(file)
    name = "cluster" if file == "-" else default_name(Path(file))
    return load_topology(
        text, file="<stdin>" if file == "-" else file, default_name=name, environ=os.environ, overrides=overrides
    )


def default_name(path: Path) -> str:
    """Return the cluster name that a file's stem stands for: lower case, other characters as dashes."""
    return re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:40] or "cluster"


def named_by_file(path: Path | None = None) -> str | None:
    """Return the cluster's name according to a topology file (default ./topology.yaml), without validating it."""
    path = path or Path(_DEFAULT)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():  # a top-level scalar: no need for a YAML parser, which costs 20 ms
        match = re.match(r"""name\s*:\s*["']?([a-z0-9-]{1,40})["']?\s*(#.*)?$""", line)
        if match:
            return match[1]
    return default_name(path)


def _read_text(file: str) -> str:
    path = Path(file)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = ", ".join(sorted(str(one) for one in path.parent.glob("*.y*ml"))[:5]) if path.parent.is_dir() else ""
        raise UsageError(
            f"{file}: no such file", fix=f"topology files here: {near}" if near else "give the path of a topology file"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{file} is a directory", fix="give the path of a topology file") from None
    except UnicodeDecodeError as error:
        raise TopologyError(
            [Problem("", f"byte {error.start} is no UTF-8", "save the file as UTF-8", file=file)]
        ) from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
