"""The roles of a topology with their sizes filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pdctl.connectors.base import Shape
from pdctl.vllm.flags import normal_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.topology.schema import RoleSpec, Topology

EngineRole = Literal["producer", "consumer", "aggregated"]
KEY_OF_ROLE: dict[EngineRole, str] = {"producer": "prefill", "consumer": "decode", "aggregated": "aggregated"}
"""Role -> its key in the file."""


@dataclass(frozen=True)
class RoleShape:
    """One role: how many replicas of what size, with what arguments."""

    role: EngineRole
    shape: Shape
    args: Mapping[str, Any]
    """engine.args and the role's own, which win; names are vLLM's long ones."""
    env: Mapping[str, str]
    hosts: tuple[str, ...]

    @property
    def key(self) -> str:
        return KEY_OF_ROLE[self.role]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.role}-{ordinal}" for ordinal in range(self.shape.replicas))


def role_shapes(topology: Topology) -> tuple[RoleShape, ...]:
    """Return the roles that have replicas: producer, consumer, aggregated."""
    specs: tuple[tuple[EngineRole, RoleSpec], ...] = (
        ("producer", topology.prefill), ("consumer", topology.decode), ("aggregated", topology.aggregated),
    )  # fmt: skip
    return tuple(_shape(topology, role, spec) for role, spec in specs if spec.replicas)


def _shape(topology: Topology, role: EngineRole, spec: RoleSpec) -> RoleShape:
    return RoleShape(
        role,
        Shape(spec.replicas or 0, spec.tp or topology.tp, spec.pp or topology.pp, spec.dp or topology.dp),
        {normal_flag(name): value for args in (topology.engine.args, spec.args) for name, value in args.items()},
        {**topology.engine.env, **spec.env},
        tuple(spec.hosts),
    )
