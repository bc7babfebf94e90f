"""Plan a topology from text, as tests write it."""

from __future__ import annotations

from typing import Any

from pdctl.errors import PlanError, Problem
from pdctl.plan.facts import Facts, Gpu, HostFacts
from pdctl.plan.model import Plan
from pdctl.plan.planner import plan_cluster
from pdctl.topology.load import load_topology

FACTS = Facts(pdctl_python="python3", directory="/srv", home="/home/u")


def facts(version: str | None = None, gpus: int | None = None, **more: Any) -> Facts:
    """Return facts of a local host."""
    found = None if gpus is None else tuple(Gpu(index, f"GPU-{index}") for index in range(gpus))
    return Facts(
        {"local": HostFacts(version, gpus=found)}, pdctl_python="python3", directory="/srv", home="/home/u", **more
    )


def plan_of(text: str, known: Facts = FACTS, *overrides: str) -> Plan:
    """Plan a file's text."""
    loaded = load_topology(text, file="t.yaml", default_name="t", environ={}, overrides=overrides)
    return plan_cluster(loaded.topology, known, loaded.source)


def problems_of(text: str, known: Facts = FACTS) -> list[Problem]:
    """Return what the planner refuses."""
    try:
        plan_of(text, known)
    except PlanError as error:
        return list(error.problems)
    return []
