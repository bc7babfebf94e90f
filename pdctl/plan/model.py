"""The plan: every process with its host, GPUs, ports, ranks, argv and env. A frozen, JSON-serialisable value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Role = Literal["producer", "consumer", "aggregated", "proxy"]


@dataclass(frozen=True)
class PortRange:
    """`count` TCP ports from `first`, with the reason for the range's width."""

    first: int
    count: int = 1
    why: str = ""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def __contains__(self, port: object) -> bool:
        return isinstance(port, int) and self.first <= port <= self.last


@dataclass(frozen=True)
class Rank:
    """One worker process of a replica."""

    rank: int
    """World rank inside its replica: dp_rank * tp * pp + pp_rank * tp + tp_rank."""
    dp: int
    pp: int
    tp: int
    gpu: str | None
    """GPU id or UUID on the host; None without GPUs."""


@dataclass(frozen=True)
class InstancePlan:
    """One launched unit."""

    name: str
    role: Role
    host: str
    address: str
    """What peers connect to."""
    gpus: tuple[str, ...]
    ranks: tuple[Rank, ...]
    ports: Mapping[str, PortRange]
    """By use: `http`, and what the connector needs (`kv`, `side_channel`, `registration`)."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Set for the process on top of the host's own environment; never a secret."""
    secret_env: tuple[str, ...]
    """Names of variables that are passed through from the operator's environment."""
    kv_transfer_config: Mapping[str, Any] | None
    health_path: str = "/health"
    after: tuple[str, ...] = ()
    """Instances that must be ready before this one starts (they share a GPU and profile its memory)."""

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.ports['http'].first}"

    @property
    def kv_address(self) -> str | None:
        """`host:port` of rank 0's KV endpoint, for connectors whose request ids name it (P2pNccl)."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.ports['kv'].first}" if "kv" in self.ports else None


@dataclass(frozen=True)
class GpuSum:
    """The GPU arithmetic, with the user's own numbers in `formula`."""

    needed: int
    formula: str
    """Such as `(1 + 1) x 2 x 1 = 4`; the sum over roles where their sizes differ."""
    available: int


@dataclass(frozen=True)
class HostPlan:
    """One host of the plan."""

    name: str
    address: str
    workdir: str
    ssh: Mapping[str, Any] | None
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The fully resolved cluster; a pure function of (topology, facts)."""

    cluster: str
    model: str
    served_model_name: str
    engine_kind: str
    device: str
    vllm_version: str
    version_assumed: bool
    connector: str | None
    """Short name of the connector whose messages are spoken, such as `nixl`."""
    gpus: GpuSum
    hosts: tuple[HostPlan, ...]
    instances: tuple[InstancePlan, ...]
    """Producers, consumers, aggregated replicas, then the proxy."""
    warnings: tuple[str, ...]
    connector_title: str | None = None
    """What people are shown: `nixl`, `multi (nixl + offloading)`."""
    fit: Mapping[str, Any] | None = None
    """Memory figures of each role and the KV that crosses; None without a config.json: pdctl.plan.fit.FitReport.to_dict."""
    health: Mapping[str, Any] = field(default_factory=dict)
    restart: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, Any] = field(default_factory=dict)

    def instance(self, name: str) -> InstancePlan:
        """Return an instance by its full name; KeyError if there is none."""
        found: InstancePlan = next_or_key_error(self.instances, name)
        return found

    def by_role(self, role: Role) -> tuple[InstancePlan, ...]:
        return tuple(instance for instance in self.instances if instance.role == role)

    @property
    def proxy(self) -> InstancePlan | None:
        return next(iter(self.by_role("proxy")), None)

    @property
    def url(self) -> str | None:
        """Where clients send requests; None with `proxy.kind: none`."""
        return self.proxy.url if self.proxy else None

    def host(self, name: str) -> HostPlan:
        found: HostPlan = next_or_key_error(self.hosts, name)
        return found


def next_or_key_error(values: tuple[Any, ...], name: str) -> Any:
    """Return the value whose `name` matches; KeyError if there is none."""
    for value in values:
        if value.name == name:
            return value
    raise KeyError(name)
