"""What every simulated KV connector does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence


class LoadFailed(Exception):
    """The consumer could not load a request's KV; the request ends with HTTP 500."""


class EngineDead(Exception):
    """The engine ends, as vLLM's does on such a request."""


@dataclass
class Loaded:
    """KV that came from a peer."""

    kv: array[int]
    external_tokens: int
    """Tokens that vLLM would count under source="external_kv_transfer"."""


class Link(Protocol):
    """One engine's side of a connector."""

    blocks_engine: bool
    """Whether the whole engine stands still while one request's KV is waited for."""

    async def start(self) -> None:
        """Open sockets. May never return: a clash of side-channel ports hangs vLLM's start."""
        ...

    async def close(self) -> None: ...

    def check(self, request_id: str) -> None:
        """Raise EngineDead for a request that kills the engine."""
        ...

    async def load(self, request_id: str, prompt: Sequence[int], params: dict[str, Any] | None) -> Loaded | None:
        """Return a request's KV from a peer; None if nothing is to be loaded. Raises LoadFailed."""
        ...

    async def hand_over(self, request_id: str, kv: array[int], params: dict[str, Any] | None) -> dict[str, Any] | None:
        """Keep or send the KV of a finished prefill; returns kv_transfer_params for the answer."""
        ...


def request_blocks(tokens: int, block: int = 16) -> int:
    """Return how many KV blocks some tokens take."""
    return -(-tokens // block)
