"""The hosts of one cluster, reached and called in parallel."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pdctl.errors import TransportError, UsageError
from pdctl.hosts.local import LocalTransport
from pdctl.hosts.shim_client import ShimClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.cluster.known import KnownHost

T = TypeVar("T")
_AT_ONCE = 32
"""Hosts worked on at the same time."""


class Reach:
    """Shim clients by host name. A call on many hosts returns host -> value or error: one bad host hides no other."""

    def __init__(self, hosts: Iterable[KnownHost], home: Path) -> None:
        self._clients = {host.name: _client(host, home) for host in hosts}

    def __getitem__(self, host: str) -> ShimClient:
        return self._clients[host]

    @property
    def hosts(self) -> list[str]:
        return list(self._clients)

    def each(
        self, call: Callable[[ShimClient], T], hosts: Iterable[str] | None = None
    ) -> dict[str, T | TransportError]:
        """Call every host (or those named) at once; an unreachable one has its error as value."""
        names = list(self._clients if hosts is None else hosts)

        def guarded(name: str) -> T | TransportError:
            try:
                return call(self._clients[name])
            except TransportError as error:
                return error

        if len(names) == 1:
            return {names[0]: guarded(names[0])}
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names) or 1)) as pool:
            return dict(zip(names, pool.map(guarded, names), strict=True))

    def close(self) -> None:
        for client in self._clients.values():
            client.transport.close()


def _client(host: KnownHost, home: Path) -> ShimClient:
    if host.ssh is not None:
        raise UsageError(
            f"host {host.name} is reached over ssh, which this version cannot do yet",
            fix="use hosts without `ssh` for now",
        )
    workdir = str(home) if host.workdir == "~/.pdctl" else str(Path(host.workdir).expanduser().absolute())
    return ShimClient(LocalTransport(host.name), workdir, sys.executable)
