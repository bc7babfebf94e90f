"""A plan as JSON and back, so that a running cluster can be known without its topology file."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pdctl.plan.model import GpuSum, HostPlan, InstancePlan, Plan, PortRange, Rank

if TYPE_CHECKING:
    from collections.abc import Mapping


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return the whole plan as plain data; it holds no secret by construction."""
    return asdict(plan)


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Read back what `plan_to_json` wrote; KeyError or TypeError if it is something else."""
    fields = dict(data)
    fields["gpus"] = GpuSum(**data["gpus"])
    fields["hosts"] = tuple(HostPlan(**{**host, "gpus": tuple(host["gpus"])}) for host in data["hosts"])
    fields["instances"] = tuple(_instance_from_json(instance) for instance in data["instances"])
    fields["warnings"] = tuple(data["warnings"])
    return Plan(**fields)


def _instance_from_json(data: Mapping[str, Any]) -> InstancePlan:
    fields = dict(data)
    for name in ("gpus", "argv", "secret_env", "after"):
        fields[name] = tuple(data[name])
    fields["ranks"] = tuple(Rank(**rank) for rank in data["ranks"])
    fields["ports"] = {use: PortRange(**port_range) for use, port_range in data["ports"].items()}
    return InstancePlan(**fields)
