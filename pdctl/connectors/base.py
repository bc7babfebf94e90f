"""What pdctl asks of a KV connector.

A connector module has one value, `CONNECTOR`, that follows `Connector`. The planner calls `problems`, `ports`,
`kv_transfer_config`, `env` and `warnings`; the proxy and `verify` call `handover`. Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

Version = tuple[int, ...]


@dataclass(frozen=True)
class PortNeed:
    """`count` adjacent ports that an instance opens for `use`."""

    use: str
    count: int
    why: str


@dataclass(frozen=True)
class RuleProblem:
    """A connector's rule that the topology breaks."""

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


class Connector(Protocol):
    """One KV connector of vLLM."""

    name: str
    """Short name in a topology, such as `nixl`."""
    class_name: str
    """vLLM's name, such as `NixlConnector`."""
    aliases: tuple[str, ...]
    first: Version
    last: Version | None
    """Last vLLM release that has it; None if the newest known one has."""
    handover: HandOver

    def problems(self, ask: Ask) -> list[RuleProblem]:
        """Return the rules that the cluster breaks with this vLLM version."""
        ...

    def warnings(self, ask: Ask) -> list[str]:
        """Return what will work but deserves a word."""
        ...

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        """Return the ports that one instance of `role` opens for the connector."""
        ...

    def registers(self, ask: Ask) -> bool:
        """Return whether the engines register with the proxy, which then needs a port for it."""
        ...

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        """Return the --kv-transfer-config of one instance."""
        ...

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:
        """Return the environment that one instance needs for the connector."""
        ...

    def args(self, ask: Ask, role: str) -> dict[str, Any]:
        """Return engine flags that the connector needs for right results and the user has not set."""
        ...
