"""Which vLLM the plan is for, and which connector of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.connectors.multi import Child, Multi
from pdctl.connectors.registry import PD_NAMES, UnknownConnector, connector_spans, find_connector, newest_with
from pdctl.vllm.releases import known_releases, newest_known, release
from pdctl.vllm.version import Version, format_version, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.connectors.base import Connector
    from pdctl.errors import Problem
    from pdctl.plan.facts import Facts
    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import Path, SourceMap


@dataclass(frozen=True)
class EngineVersion:
    """The version that the plan is made for."""

    version: Version
    text: str
    assumed: bool

    @property
    def certain(self) -> bool:
        """Whether what the facts say of it holds for sure: somebody said the version, and it is not newer than the facts."""
        return not self.assumed and not release(self.version).is_newer_than_known


def engine_version(
    topology: Topology, hosts: Sequence[Host], facts: Facts, connector: Connector | None, source: SourceMap
) -> tuple[EngineVersion, list[Problem]]:
    """Return engine.version, else what the hosts said, else the newest known release, said to be assumed.

    A simulated engine stands in for the newest release that has the connector.
    """
    newest = (newest_with(connector) if connector else None) or newest_known()
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
    spec = topology.connector
    if spec is None:
        return None, []
    connector, problems = _find(spec.name, ("connector",), source)
    if not spec.connectors:
        return connector, problems
    if connector is not None and connector.name != "multi":
        what = f"only `multi` has connectors inside, this is `{spec.name}`"
        problems.append(
            source.problem(("connector", "connectors"), what, "write name: multi, and this one among its connectors")
        )
        return connector, problems
    children = []
    for index, one in enumerate(spec.connectors):
        child, more = _find(one.name, ("connector", "connectors", index), source)
        problems += more
        if child is not None:
            children.append(Child(child, one.extra))
    return Multi(tuple(children)), problems


def _find(name: str, path: Path, source: SourceMap) -> tuple[Connector | None, list[Problem]]:
    try:
        return find_connector(name), []
    except UnknownConnector as error:
        fix = f"did you mean `{error.nearest}`?" if error.nearest else f"use one of {', '.join(PD_NAMES)}"
        return None, [source.problem(path, f"unknown connector `{name}`", fix)]


def version_problems(connector: Connector, engine: EngineVersion, source: SourceMap) -> list[Problem]:
    """Return a problem if the release does not have the connector; a release newer than the known ones is taken for the newest."""
    if connector.class_name(engine.version) in release(engine.version).connectors:
        return []
    spans = connector_spans(connector)
    name = connector.class_names[0]
    later = [span for span in spans if engine.version < span.first]
    if later:
        what = f"{name} came with vLLM {format_version(later[0].first)}, this is {engine.text}"
        return [source.problem(("connector",), what, "use a newer vLLM")]
    last = newest_with(connector)
    assert last is not None
    gone = next(one for one in known_releases() if one > last)
    instead = "write `connector: nixl`, or use" if connector.name != "nixl" else "use"
    what = f"{name} went away in vLLM {format_version(gone)}, this is {engine.text}"
    return [source.problem(("connector",), what, f"{instead} vLLM {format_version(last)}")]
