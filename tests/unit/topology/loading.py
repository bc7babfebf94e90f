"""Shared by the loader's tests: a good file, and loading that returns the problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.errors import Problem, TopologyError
from pdctl.topology.load import load_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.topology.source import TopologyFile

GOOD = "model: /data/models/m\nlayout: 1P1D\nconnector: nixl\n"
"""Three lines: what a test adds begins in line 4."""


def load(text: str, *overrides: str, environ: Mapping[str, str] | None = None) -> TopologyFile:
    return load_topology(text, file="t.yaml", default_name="t", environ=environ or {}, overrides=overrides)


def problems(text: str, *overrides: str, environ: Mapping[str, str] | None = None) -> list[Problem]:
    """Return what is wrong with a file; fails if nothing is."""
    with pytest.raises(TopologyError) as caught:
        load(text, *overrides, environ=environ)
    assert caught.value.problems
    assert all(problem.what and problem.file for problem in caught.value.problems)
    return list(caught.value.problems)


def only(text: str, *overrides: str, environ: Mapping[str, str] | None = None) -> Problem:
    """Return the one thing that is wrong with a file."""
    found = problems(text, *overrides, environ=environ)
    assert len(found) == 1, [str(one) for one in found]
    return found[0]


def place(problem: Problem) -> tuple[str, int, int]:
    return problem.path, problem.line, problem.column
