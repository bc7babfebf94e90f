"""Why engines died and how far they are, from logs of real runs and from vLLM's own messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pdctl.vllm.milestones import PHASES
from pdctl.vllm.root_causes import find_root_cause
from tests.conftest import ROOT

LOGS = ROOT / "tests" / "data" / "logs"
FAILED = sorted(LOGS.glob("*.json"))


@pytest.mark.parametrize("case", FAILED, ids=lambda path: path.stem)
def test_the_cause_is_found_not_the_wrapper(case: Path) -> None:
    wanted = json.loads(case.read_text())
    lines = case.with_suffix(".txt").read_text().splitlines()
    found = find_root_cause(lines)
    assert found is not None
    assert wanted["cause"] in found.cause
    assert wanted["fix"] in found.fix
    assert 1 <= len(found.evidence) <= 12
    assert set(found.evidence) <= set(lines)
    assert not any("Engine core initialization failed" in line for line in found.evidence)


@pytest.mark.parametrize("log", sorted(LOGS.glob("healthy-*.txt")), ids=lambda path: path.stem)
def test_a_healthy_start_has_no_cause_of_failure(log: Path) -> None:
    assert find_root_cause(log.read_text().splitlines()) is None


def phases_of(lines: list[str]) -> list[str]:
    """Return the phases as the shim would show them, one after another."""
    shown: list[str] = []
    for line in lines:
        for pattern, template in PHASES:
            match = re.search(pattern, line)
            if match:
                phase = re.sub(r"\d[\d,]*", "N", match.expand(template))
                if not shown or shown[-1] != phase:
                    shown.append(phase)
                break
    return shown


def test_the_phases_of_a_real_start_come_in_order() -> None:
    shown = phases_of((LOGS / "healthy-0.22.1-h200.txt").read_text().splitlines())
    milestones = [
        "reading arguments",
        "starting engine",
        "joining ranks",
        "loading weights N/N",
        "weights loaded",
        "compiling",
        "profiling memory",
        "KV cache of N tokens",
        "starting KV connector",
        "capturing graphs N%",
        "graphs captured",
        "starting HTTP server",
        "serving",
    ]
    places = [shown.index(phase) for phase in milestones if phase in shown]
    assert set(milestones) - set(shown) <= {"compiling", "profiling memory"}, shown
    assert places == sorted(places), shown
    assert shown[-1] == "serving"
