"""All ports of a cluster, from one range, one allocator.

An instance's ports depend on its name only, so that adding a replica moves nobody else's: blocks of equal width, dealt out to
producer-0, consumer-0, aggregated-0, producer-1, ... The last port of the range takes the connectors' registrations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.connectors.base import PortNeed
from pdctl.plan.model import PortRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.errors import Problem
    from pdctl.plan.shapes import EngineRole, RoleShape
    from pdctl.topology.schema import Topology
    from pdctl.topology.source import SourceMap

EPHEMERAL_FROM = 32768
"""Linux hands out ports from here on by itself (ip_local_port_range), so nothing fixed may lie there."""
_ORDER: tuple[EngineRole, ...] = ("producer", "consumer", "aggregated")
_HTTP = PortNeed("http", 1, "the engine's API")


def allocate_ports(
    topology: Topology,
    roles: Sequence[RoleShape],
    needs: Mapping[str, Sequence[PortNeed]],
    *,
    registers: bool,
    source: SourceMap,
) -> tuple[dict[str, dict[str, PortRange]], int | None, list[Problem]]:
    """Return (ports of each replica by use, the registration port, problems). `needs`: connector ports by role."""
    width = max((sum(need.count for need in (_HTTP, *needs.get(role.role, ()))) for role in roles), default=0)
    base, size = topology.ports.base, topology.ports.size
    ports: dict[str, dict[str, PortRange]] = {}
    end = base
    for role in roles:
        for ordinal, name in enumerate(role.names):
            at = base + width * (len(_ORDER) * ordinal + _ORDER.index(role.role))
            mine: dict[str, PortRange] = {}
            for need in (_HTTP, *needs.get(role.role, ())):
                mine[need.use] = PortRange(at, need.count, need.why)
                at += need.count
            ports[name] = mine
            end = max(end, at)
    wanted = end - base + (1 if registers else 0)
    problems = []
    if wanted > size:
        problems.append(
            source.problem(
                ("ports", "size"),
                f"{size} ports from {base} on are too few: this layout takes {wanted}",
                f"set ports.size: {wanted} or more",
            )
        )
    if base + max(size, wanted) > EPHEMERAL_FROM:
        problems.append(
            source.problem(
                ("ports", "base"), f"ports {base} to {base + max(size, wanted) - 1} reach into those that Linux hands out by itself (from {EPHEMERAL_FROM})",
                f"set ports.base to {EPHEMERAL_FROM - max(size, wanted)} or less",
            )
        )  # fmt: skip
    proxy = topology.proxy.port
    taken = next((name for name, mine in ports.items() if any(proxy in one for one in mine.values())), None)
    if topology.proxy.kind != "none" and (taken or (registers and proxy == base + size - 1)):
        problems.append(
            source.problem(
                ("proxy", "port"), f"port {proxy} is {taken or 'the registration'}'s", "choose one outside of `ports`"
            )
        )
    return ports, base + size - 1 if registers else None, problems
