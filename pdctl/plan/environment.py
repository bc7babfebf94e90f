"""What users put into `env`, against the release that will read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.topology.source import dotted
from pdctl.vllm.environment import environment_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.errors import Problem
    from pdctl.plan.shapes import RoleShape
    from pdctl.plan.versions import EngineVersion
    from pdctl.topology.schema import Topology
    from pdctl.topology.source import Path, SourceMap


def check_environment(
    topology: Topology,
    roles: Sequence[RoleShape],
    version: EngineVersion,
    connector: str | None,
    source: SourceMap,
) -> tuple[list[Problem], list[str]]:
    """Return (problems, warnings) of the `env` of engine, roles and hosts; `connector` is vLLM's class name, None without one.

    A variable that ends the engine is a problem only where the release is known for sure, as with arguments.
    """
    problems: list[Problem] = []
    warnings: list[str] = []
    for path, env, flags, uses in _places(topology, roles):
        for fault in environment_faults(env, version.version, connector=connector if uses else None, args=flags):
            where = (*path, "env", fault.name)
            if fault.fatal and version.certain:
                problems.append(source.problem(where, fault.what, fault.fix))
            else:
                warnings.append(f"{dotted(where)}: {fault.what}; {fault.fix}")
    return problems, warnings


def _places(
    topology: Topology, roles: Sequence[RoleShape]
) -> Iterator[tuple[Path, Mapping[str, str], frozenset[str], bool]]:
    """Yield (path, variables, flags of the engines that read them, whether these have a connector)."""
    flags = {role.key: frozenset(name for name, value in role.args.items() if value is not False) for role in roles}
    everywhere = frozenset.intersection(*flags.values()) if flags else frozenset()
    disaggregated = any(role.role != "aggregated" for role in roles)
    yield ("engine",), topology.engine.env, everywhere, disaggregated
    for role in roles:
        yield (role.key,), getattr(topology, role.key).env, flags[role.key], role.role != "aggregated"
    for index, host in enumerate(topology.hosts):
        yield ("hosts", index), host.env, everywhere, disaggregated
