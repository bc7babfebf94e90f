"""MultiConnector: one connector that disaggregates, with caches around it (vLLM 0.9.2 on)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, PortNeed, RuleProblem, Seat
from pdctl.vllm.releases import release
from pdctl.vllm.version import format_version

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Child:
    """One connector inside."""

    connector: Connector
    extra: Mapping[str, Any] = field(default_factory=dict)


class Multi(Connector):
    """See `pdctl.connectors.base.Connector`. Each child's config is a whole KVTransferConfig (0.33.0, v1/multi_connector.py)."""

    name = "multi"
    class_names = ("MultiConnector",)
    own_keys = ("connectors",)

    def __init__(self, children: tuple[Child, ...] = ()) -> None:
        self.children = children
        inner = next((child.connector for child in children if child.connector.disaggregates), None)
        self.inner = inner
        """The child that hands KV over; its protocol is the whole one's."""
        self.disaggregates = inner is not None
        self.handover = inner.handover if inner else None
        self.protocol = inner.protocol if inner else "that of the connector inside that disaggregates"

    @property
    def wire_name(self) -> str:
        return self.inner.name if self.inner else self.name

    @property
    def title(self) -> str:
        return f"multi ({' + '.join(child.connector.name for child in self.children)})"

    def problems(self, ask: Ask) -> list[RuleProblem]:
        if not self.children:
            fix = "write connector: {name: multi, connectors: [nixl, offloading]}"
            return [RuleProblem(("connector",), "MultiConnector without connectors inside", fix)]
        path = ("connector", "connectors")
        found = []
        movers = [child.connector.class_names[0] for child in self.children if child.connector.disaggregates]
        if len(movers) != 1:
            what = f"{len(movers)} of the connectors inside MultiConnector hand KV over ({', '.join(movers) or 'none'}): it must be one"
            found.append(
                RuleProblem(path, what, "keep one of nixl, nixl_push, p2p_nccl, mooncake, moriio, lmcache, example")
            )
        for index, child in enumerate(self.children):
            class_name = child.connector.class_name(ask.version)
            if child.connector.name == "multi":
                found.append(
                    RuleProblem((*path, index), "MultiConnector inside MultiConnector", "name its connectors here")
                )
            elif class_name not in release(ask.version).connectors:
                what = f"vLLM {format_version(ask.version)} has no {class_name}"
                found.append(RuleProblem((*path, index), what, "use another connector, or another vLLM"))
            else:
                found += child.connector.problems(_inside(ask, child))
        return found

    def warnings(self, ask: Ask) -> list[str]:
        return [
            warning
            for child in self.children
            if child.connector.disaggregates
            for warning in child.connector.warnings(_inside(ask, child))
        ]

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        return [need for child in self.children for need in child.connector.ports(_inside(ask, child), role)]

    def registers(self, ask: Ask) -> bool:
        return any(child.connector.registers(_inside(ask, child)) for child in self.children)

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        inside = [child.connector.kv_transfer_config(_inside(ask, child), seat) for child in self.children]
        return self._config(ask, KV_ROLES[seat.role], {**ask.extra, "connectors": inside})

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:
        env: dict[str, str] = {}
        for child in self.children:
            env |= child.connector.env(_inside(ask, child), seat)
        return env

    def args(self, ask: Ask, role: str) -> dict[str, Any]:
        args: dict[str, Any] = {}
        for child in self.children:
            args |= child.connector.args(_inside(ask, child), role)
        return args


def _inside(ask: Ask, child: Child) -> Ask:
    return replace(ask, extra=child.extra)
