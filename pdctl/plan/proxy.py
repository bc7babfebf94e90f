"""The proxy's place in the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.plan.engine import pdctl_program
from pdctl.plan.model import InstancePlan, PortRange
from pdctl.vllm.flags import argv_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.plan.facts import Facts
    from pdctl.topology.schema import Host, Topology

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound
_FLAGS = {"producer": "--producer", "consumer": "--consumer", "aggregated": "--aggregated"}


def proxy_plan(
    topology: Topology, host: Host, address: str, facts: Facts, engines: Sequence[InstancePlan], *, connector: str | None,
    registration: int | None, served: str,
) -> InstancePlan:  # fmt: skip
    """Return the built-in proxy in front of `engines`."""
    spec = topology.proxy
    argv = [*pdctl_program("pdctl.proxy", topology, host, facts), "--connector", connector or "none"]
    for engine in engines:
        kv = f",kv={engine.kv_address}" if engine.kv_address else ""
        argv += [_FLAGS[engine.role], f"{engine.name}={engine.url}{kv}"]
    argv += ["--bind", spec.bind, "--port", str(spec.port), "--model", served]
    ports = {"http": PortRange(spec.port, 1, "what clients talk to")}
    if registration is not None:
        argv += ["--registration", f"[{address}]:{registration}" if ":" in address else f"{address}:{registration}"]
        ports["registration"] = PortRange(registration, 1, "where engines register (ZMQ)")
    if spec.api_key_env:
        argv += ["--api-key-env", spec.api_key_env]
    return InstancePlan(
        name="proxy", role="proxy", host=host.name, address=address if spec.bind in _WILDCARDS else spec.bind, gpus=(), ranks=(),
        ports=ports, argv=(*argv, *argv_of(spec.args)), env={}, secret_env=(spec.api_key_env,) if spec.api_key_env else (),
        kv_transfer_config=None,
    )  # fmt: skip
