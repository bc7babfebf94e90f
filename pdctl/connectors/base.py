"""What pdctl asks of a KV connector.

A connector module has one value, `CONNECTOR`, a `Connector`. The planner calls `problems`, `ports`,
`kv_transfer_config`, `env` and `warnings`; the proxy and `verify` call `handover`. Nothing here does I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pdctl.vllm.releases import release

if TYPE_CHECKING:
    from collections.abc import Mapping

Version = tuple[int, ...]
KV_ROLES = {"producer": "kv_producer", "consumer": "kv_consumer"}
"""vLLM's word for a role; kv_both is never written: Nixl deprecates it from 0.23 on, P2pNccl takes it for a producer."""


@dataclass(frozen=True)
class PortNeed:
    """`count` adjacent ports that an instance opens for `use`."""

    use: str
    count: int
    why: str


@dataclass(frozen=True)
class RuleProblem:
    """A connector's rule that the topology breaks, with the reason."""

    path: tuple[str | int, ...]
    """Path of the topology key to blame, such as ("decode", "tp")."""
    what: str
    fix: str


@dataclass(frozen=True)
class Shape:
    """Parallel sizes of one role's replicas."""

    replicas: int
    tp: int
    pp: int
    dp: int

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Ask:
    """What the planner knows when it asks a connector about the cluster."""

    version: Version
    prefill: Shape
    decode: Shape
    device: str
    """`gpu` or `cpu`."""
    engine_kind: str
    share_gpus: int
    hosts: int
    """Number of hosts in use."""
    model_config: Mapping[str, Any] | None
    model: str
    extra: Mapping[str, Any]
    """The user's kv_connector_extra_config."""
    nvlink: bool | None = None
    prefill_args: Mapping[str, Any] | None = None
    decode_args: Mapping[str, Any] | None = None

    def shape(self, role: str) -> Shape:
        """Return a role's sizes; `role` is producer or consumer."""
        return self.prefill if role == "producer" else self.decode


@dataclass(frozen=True)
class Seat:
    """One instance, placed: what its config and env are made from."""

    name: str
    role: str
    """`producer` or `consumer`."""
    address: str
    http_port: int
    ports: Mapping[str, int]
    """First port of each PortNeed, by use."""
    registration: tuple[str, int] | None
    """Address and port where the proxy takes registrations, for connectors that register."""
    interface: str | None = None


class HandOverError(Exception):
    """A producer's answer does not hand over usable KV; `str()` says what is missing."""


@dataclass(frozen=True)
class Peer:
    """An engine as the proxy and `verify` see it."""

    name: str
    url: str
    kv_address: str | None = None
    """`host:port` of rank 0's KV endpoint (P2pNccl)."""


class HandOver(Protocol):
    """The messages that carry one request from producer to consumer. Pure: bodies in, bodies out."""

    one_prompt_per_request: bool
    """True where a request's KV is named once per HTTP request, so lists of prompts and n > 1 must be split."""
    plain_requests_kill: bool
    """True where an engine dies of a request that was not prepared by `request_id` (P2pNccl)."""
    names_kv: bool
    """True where the messages say which KV is meant, so that a consumer can be given another prompt's (the swap test)."""

    def request_id(self, unique: str, producer: Peer, consumer: Peer) -> str:
        """Return the X-Request-Id for both legs. `unique` is a token of letters, digits, `-` and `_`."""
        ...

    def prefill_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the producer's body for a client's body: one token, not streamed, and the connector's parameters."""
        ...

    def decode_params(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the consumer's kv_transfer_params from the producer's answer; None if it needs none.

        Raises HandOverError if the answer lacks what the consumer needs; the consumer must then not be given any.
        """
        ...


class Connector(ABC):
    """One KV connector of vLLM. A subclass overrides what differs from the answers here, which most connectors give."""

    name: str
    """Short name in a topology, such as `nixl`."""
    class_names: tuple[str, ...]
    """vLLM's names for it, the newest first; any of them is understood in a topology."""
    disaggregates: bool = True
    """Whether it hands KV from producer to consumer; False for caches, which are passed through."""
    handover: HandOver | None = None
    """The messages of a request; None where pdctl's proxy does not speak the protocol."""
    protocol: str
    """What a proxy has to do for it, in one line."""
    own_keys: tuple[str, ...] = ()
    """Keys of kv_connector_extra_config that pdctl sets for each instance."""
    simulated: bool = False
    """Whether the simulated engine can stand in for it."""

    @property
    def wire_name(self) -> str:
        """Short name of the connector whose messages the proxy and `verify` speak: its own, or that of the one inside."""
        return self.name

    @property
    def title(self) -> str:
        """What a plan calls it."""
        return self.name

    def class_name(self, version: Version) -> str:  # noqa: ARG002 - SharedStorageConnector was renamed
        """Return the name to write for this release, whether or not it has it."""
        return self.class_names[0]

    def problems(self, ask: Ask) -> list[RuleProblem]:  # noqa: ARG002 - for subclasses
        """Return the rules that the cluster breaks with this vLLM version."""
        return []

    def warnings(self, ask: Ask) -> list[str]:  # noqa: ARG002 - for subclasses
        """Return what will work but deserves a word."""
        return []

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:  # noqa: ARG002 - for subclasses
        """Return the ports that one instance of `role` opens for the connector."""
        return []

    def registers(self, ask: Ask) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the engines register with the proxy, which then needs a port for it."""
        return False

    @abstractmethod
    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        """Return the --kv-transfer-config of one instance."""

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:  # noqa: ARG002 - for subclasses
        """Return the environment that one instance needs for the connector."""
        return {}

    def args(self, ask: Ask, role: str) -> dict[str, Any]:  # noqa: ARG002 - for subclasses
        """Return engine flags that the connector needs for right results and the user has not set."""
        return {}

    def _config(self, ask: Ask, kv_role: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return a --kv-transfer-config; a failed load is an error where the release lets one choose.

        Computed again in silence it would look like a transfer (vLLM's default up to 0.16).
        """
        config: dict[str, Any] = {"kv_connector": self.class_name(ask.version), "kv_role": kv_role}
        if "kv_load_failure_policy" in release(ask.version).kv_config_fields:
            config["kv_load_failure_policy"] = "fail"
        if extra:
            config["kv_connector_extra_config"] = dict(extra)
        return config
