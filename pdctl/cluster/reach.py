"""The hosts of one cluster, reached and called in parallel."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pdctl.errors import TransportError
from pdctl.hosts.local import LocalTransport
from pdctl.hosts.shim_client import ShimClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.cluster.known import KnownHost
    from pdctl.hosts.ssh_connection import Login

T = TypeVar("T")
_AT_ONCE = 32
"""Hosts worked on at the same time."""


class Asking:
    """What the user allows and can be asked when pdctl logs in; nothing of ssh is loaded before a host needs it."""

    def __init__(self, *, accept_new_host_keys: bool = False, ask: Callable[[str], str] | None = None) -> None:
        self._accept, self._ask = accept_new_host_keys, ask
        self._login: Login | None = None

    def shared(self) -> Login:
        """Return what all connections of one command share."""
        if self._login is None:
            from pdctl.hosts.ssh_connection import Login

            self._login = Login(accept_new_host_keys=self._accept, ask=self._ask)
        return self._login

    def close(self) -> None:
        if self._login is not None:
            self._login.close()


class Reach:
    """Shim clients by host name. A call on many hosts returns host -> value or error: one bad host hides no other."""

    def __init__(self, hosts: Iterable[KnownHost], home: Path, asking: Asking | None = None) -> None:
        """Nothing is connected before it is asked."""
        self._hosts = {host.name: host for host in hosts}
        self._home = home
        self._asking = asking or Asking()
        self._clients: dict[str, ShimClient] = {}

    def __getitem__(self, host: str) -> ShimClient:
        if host not in self._clients:
            self._clients[host] = _client(self._hosts[host], self._home, self._asking)
        return self._clients[host]

    @property
    def hosts(self) -> list[str]:
        return list(self._hosts)

    def only(self, hosts: Iterable[str]) -> Reach:
        """Return the same clients for fewer hosts."""
        names = list(hosts)
        fewer = Reach([self._hosts[name] for name in names], self._home, self._asking)
        fewer._clients = {name: self[name] for name in names}
        return fewer

    def each(
        self, call: Callable[[ShimClient], T], hosts: Iterable[str] | None = None
    ) -> dict[str, T | TransportError]:
        """Call every host (or those named) at once; an unreachable one has its error as value."""
        names = list(self._hosts if hosts is None else hosts)

        clients = {name: self[name] for name in names}

        def guarded(name: str) -> T | TransportError:
            try:
                return call(clients[name])
            except TransportError as error:
                return error

        if len(names) == 1:
            return {names[0]: guarded(names[0])}
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names) or 1)) as pool:
            return dict(zip(names, pool.map(guarded, names), strict=True))

    def dial(self, host: str, address: str, port: int, timeout_s: float) -> Any:
        """Open a TCP connection from a host, as `Transport.dial`: what listens there need not be reachable from here."""
        return self[host].transport.dial(address, port, timeout_s)

    def close(self) -> None:
        for client in self._clients.values():
            client.transport.close()
        self._asking.close()


def _client(host: KnownHost, home: Path, login: Asking) -> ShimClient:
    if host.ssh is None:
        workdir = str(home) if host.workdir == "~/.pdctl" else str(Path(host.workdir).expanduser().absolute())
        return ShimClient(LocalTransport(host.name), workdir, sys.executable)
    from pdctl.hosts.ssh import SshTransport  # paramiko takes 100 ms to load

    # Commands start in the login's home, wherever that is.
    workdir = host.workdir.removeprefix("~/") if host.workdir != "~" else "."
    return ShimClient(SshTransport(host.name, host.ssh, login.shared()), workdir, "python3", suffix=f"@{host.name}")
