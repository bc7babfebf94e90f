"""Engines that others run, as a plan that `verify_cluster` can probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from pdctl.connectors.registry import SHORT_NAMES, UnknownConnector, find_connector
from pdctl.errors import UsageError
from pdctl.plan.model import GpuSum, HostPlan, InstancePlan, Plan, PortRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.plan.model import Role


def plan_of_engines(
    connector: str, producers: Sequence[str], consumers: Sequence[str], *, url: str, model: str
) -> Plan:
    """Return a plan of running engines, each written `[NAME=]URL[,kv=HOST:PORT]`. Raises UsageError."""
    try:
        name = find_connector(connector).name
    except UnknownConnector as error:
        near = f"did you mean `{error.nearest}`?" if error.nearest else f"use one of {', '.join(SHORT_NAMES)}"
        raise UsageError(f"--connector: unknown connector `{connector}`", fix=near) from None
    if not producers or not consumers:
        raise UsageError("a probe needs both sides", fix="give at least one --producer and one --consumer")
    engines = [
        _engine(role, ordinal, written)
        for role, given in (("producer", producers), ("consumer", consumers))
        for ordinal, written in enumerate(given)
    ]
    if name == "p2p_nccl" and any(one.kv_address is None for one in engines):
        raise UsageError("P2pNccl engines are named by their KV address too", fix="write URL,kv=HOST:PORT")
    front = [_engine("proxy", 0, url)] if url else []
    return Plan(
        cluster="engines",
        model=model,
        served_model_name=model,
        engine_kind="vllm",
        device="gpu",
        vllm_version="",
        version_assumed=True,
        connector=name,
        gpus=GpuSum(0, "", 0),
        hosts=(HostPlan("there", "", "", None, ()),),
        instances=(*engines, *front),
        warnings=(),
    )


def _engine(role: str, ordinal: int, written: str) -> InstancePlan:
    target, *options = written.split(",")
    name, equals, url = target.partition("=")
    if not equals:
        name, url = "proxy" if role == "proxy" else f"{role}-{ordinal}", target
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise UsageError(f"{written!r} is no engine", fix="write [NAME=]http://HOST:PORT[,kv=HOST:PORT]")
    ports = {"http": PortRange(port)}
    for option in options:
        key, _, value = option.partition("=")
        kv_port = value.rpartition(":")[2]
        if key != "kv" or not kv_port.isdigit():
            raise UsageError(f"{option!r} is no option of an engine", fix="write kv=HOST:PORT")
        ports["kv"] = PortRange(int(kv_port))
    return InstancePlan(
        name=name, role=cast("Role", role), host="there", address=parts.hostname, gpus=(), ranks=(), ports=ports, argv=(), env={},
        secret_env=(), kv_transfer_config=None,
    )  # fmt: skip
