"""What users put into `env`, against the release that will read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.vllm.environment import environment_faults
from pdctl.vllm.releases import release

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.errors import Problem
    from pdctl.plan.shapes import RoleShape
    from pdctl.plan.versions import EngineVersion
    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import Path, SourceMap


def check_environment(
    topology: Topology,
    hosts: Sequence[Host],
    roles: Sequence[RoleShape],
    version: EngineVersion,
    connector: str | None,
    source: SourceMap,
) -> tuple[list[Problem], list[str]]:
    """Return (problems, warnings) of the `env` of engine, roles and hosts; `connector` is vLLM's class name, None without one.

    A variable that ends the engine is a problem only where the release is known for sure, as with arguments.
    """
    sure = not version.assumed and not release(version.version).is_newer_than_known
    problems: list[Problem] = []
    warnings: list[str] = []
    for path, env, flags, uses in _places(topology, hosts, roles):
        for fault in environment_faults(env, version.version, connector=connector if uses else None, args=flags):
            if fault.fatal and sure:
                problems.append(source.problem((*path, "env", fault.name), fault.what, fault.fix))
            else:
                warnings.append(f"{_dotted(path)}.env.{fault.name}: {fault.what}; {fault.fix}")
    return problems, warnings


def _places(
    topology: Topology, hosts: Sequence[Host], roles: Sequence[RoleShape]
) -> Iterator[tuple[Path, Mapping[str, str], frozenset[str], bool]]:
    """Yield (path, variables, flags of the engines that read them, whether these have a connector)."""
    everywhere = frozenset.intersection(*(frozenset(role.args) for role in roles)) if roles else frozenset()
    disaggregated = any(role.role != "aggregated" for role in roles)
    yield ("engine",), topology.engine.env, everywhere, disaggregated
    for role in roles:
        yield (role.key,), getattr(topology, role.key).env, frozenset(role.args), role.role != "aggregated"
    for index, host in enumerate(topology.hosts):
        if host in hosts:
            yield ("hosts", index), host.env, everywhere, disaggregated


def _dotted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
