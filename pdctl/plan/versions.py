"""Which vLLM the plan is for, and which connector of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.connectors.registry import SHORT_NAMES, UnknownConnector, find_connector
from pdctl.vllm.version import NEWEST_KNOWN, Version, format_version, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.connectors.base import Connector
    from pdctl.errors import Problem
    from pdctl.plan.facts import Facts
    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import SourceMap


@dataclass(frozen=True)
class EngineVersion:
    """The version that the plan is made for."""

    version: Version
    text: str
    assumed: bool


def engine_version(
    topology: Topology, hosts: Sequence[Host], facts: Facts, connector: Connector | None, source: SourceMap
) -> tuple[EngineVersion, list[Problem]]:
    """Return engine.version, else what the hosts said, else the newest known release, said to be assumed.

    A simulated engine stands in for the newest release that has the connector.
    """
    newest = NEWEST_KNOWN if connector is None or connector.last is None else connector.last
    fallback = EngineVersion(newest, format_version(newest), assumed=True)
    written = topology.engine.version
    if written:
        try:
            return EngineVersion(parse_version(written), written, assumed=False), []
        except ValueError:
            return fallback, [
                source.problem(("engine", "version"), f"{written!r} is no vLLM version", "write it as 0.22.1")
            ]
    if topology.engine.kind == "sim":
        return EngineVersion(newest, format_version(newest), assumed=False), []
    said = {host.name: version for host in hosts if (version := facts.host(host.name).vllm_version)}
    if not said:
        return fallback, []
    if len(set(said.values())) > 1:
        each = ", ".join(f"{host} {version}" for host, version in said.items())
        return fallback, [
            source.problem(
                ("hosts",),
                f"the hosts have different vLLM versions ({each}), which cannot exchange KV",
                "install one version everywhere",
            )
        ]
    text = next(iter(said.values()))
    try:
        return EngineVersion(parse_version(text), text, assumed=False), []
    except ValueError:
        return fallback, [
            source.problem(
                ("engine",),
                f"vLLM calls itself {text!r}, which is no release",
                "name the release it is nearest to with engine.version",
            )
        ]


def chosen_connector(topology: Topology, source: SourceMap) -> tuple[Connector | None, list[Problem]]:
    """Return the connector that the file names."""
    if topology.connector is None:
        return None, []
    try:
        return find_connector(topology.connector.name), []
    except UnknownConnector as error:
        fix = f"did you mean `{error.nearest}`?" if error.nearest else f"use one of {', '.join(SHORT_NAMES)}"
        return None, [source.problem(("connector",), f"unknown connector `{topology.connector.name}`", fix)]


def version_problems(connector: Connector, engine: EngineVersion, source: SourceMap) -> list[Problem]:
    """Return a problem if the release does not have the connector."""
    if engine.version < connector.first:
        return [
            source.problem(
                ("connector",),
                f"{connector.class_name} came with vLLM {format_version(connector.first)}, this is {engine.text}",
                "use a newer vLLM",
            )
        ]
    if connector.last is not None and engine.version > connector.last and engine.version[:2] != connector.last[:2]:
        gone = f"{connector.last[0]}.{connector.last[1] + 1}"
        return [
            source.problem(
                ("connector",), f"{connector.class_name} went away in vLLM {gone}, this is {engine.text}",
                f"write `connector: nixl`, or use vLLM {format_version(connector.last)}",
            )
        ]  # fmt: skip
    return []
