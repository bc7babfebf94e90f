"""P2pNccl's registration: engines say every 3 s who they are (vLLM 0.22.1, p2p_nccl_engine.py:575-587).

Anybody who reaches the port can send such a message. With a list of engines it therefore only marks those of the list;
without one, what registers is an engine, so the port must not be open to strangers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack
import zmq

from pdctl.proxy.log import say
from pdctl.proxy.options import Target, split_address

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pdctl.proxy.fleet import Fleet, Instance

SILENCE_S = 15.0
MAX_MESSAGE = 4096
MAX_ENGINES = 1024
_ROLES = {"P": "producer", "D": "consumer"}


@dataclass(frozen=True)
class Announcement:
    """One registration message."""

    role: str
    http_address: str
    zmq_address: str


def parse_announcement(frames: list[bytes]) -> Announcement:
    """Return what a message says; raises ValueError for anything but identity and a map of three addresses."""
    if len(frames) != 2:
        raise ValueError(f"{len(frames)} frames instead of 2")
    try:
        body: Any = msgpack.unpackb(frames[1])
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError("the payload is not msgpack") from error
    if not isinstance(body, dict):
        raise ValueError("the payload is not a map")  # noqa: TRY004 - one error for any malformed message
    role = _ROLES.get(str(body.get("type")))
    if role is None:
        raise ValueError("the type is neither P nor D")
    return Announcement(role, _address(body, "http_address"), _address(body, "zmq_address"))


def _address(body: dict[Any, Any], key: str) -> str:
    address = body.get(key)
    if not isinstance(address, str):
        raise ValueError(f"{key} is missing")  # noqa: TRY004 - one error for any malformed message
    split_address(address)
    return address


class Registry:
    """Takes announcements into the fleet."""

    def __init__(self, fleet: Fleet, count: Callable[[str], None], *, dynamic: bool) -> None:
        self._fleet = fleet
        self._count = count
        self._dynamic = dynamic
        self._heard: dict[Instance, float] = {}
        self._told: set[str] = set()

    def take(self, frames: list[bytes]) -> None:
        """Take one message; what is wrong with it is counted, and logged once."""
        try:
            said = parse_announcement(frames)
        except ValueError as error:
            self._reject("malformed", f"a registration was not understood: {error}")
            return
        name = f"{said.role} {said.http_address} with KV at {said.zmq_address}"
        same = [
            one
            for one in self._fleet.instances
            if one.target.kv_address == said.zmq_address or one.target.url == f"http://{said.http_address}"
        ]
        for one in same:
            if one.target.kv_address != said.zmq_address or one.target.url != f"http://{said.http_address}":
                continue
            if one.role == said.role:
                self._accept(one)
                return
        if same and not self._dynamic:
            self._reject("mismatch", f"{name} registered, but differs from {same[0].name} of the list")
        elif not self._dynamic:
            self._reject("unknown", f"{name} registered, but is not in the list")
        elif len(self._fleet.instances) >= MAX_ENGINES:
            self._reject("full", "too many engines register")
        else:
            for old in same:  # restarted with another role or port
                self._forget(old, "it registered anew")
            self._accept(self._fleet.add(self._target(said)))

    def expire(self) -> None:
        """Forget engines that have been silent."""
        if not self._dynamic:
            return
        now = self._fleet.loop.time()
        for instance, heard in list(self._heard.items()):
            if now - heard > SILENCE_S:
                self._forget(instance, f"no registration for {SILENCE_S:g} s")

    def _accept(self, instance: Instance) -> None:
        if not instance.registered:
            say(f"{instance.name} registered: {instance.target.url}, KV at {instance.target.kv_address}")
        instance.registered = True
        self._heard[instance] = self._fleet.loop.time()
        self._count("accepted")

    def _forget(self, instance: Instance, why: str) -> None:
        say(f"{instance.name} is gone: {why}")
        self._heard.pop(instance, None)
        self._fleet.remove(instance)

    def _reject(self, result: str, text: str) -> None:
        self._count(result)
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            say(text)

    def _target(self, said: Announcement) -> Target:
        taken = {one.name for one in self._fleet.instances}
        name = next(f"{said.role}-{n}" for n in range(MAX_ENGINES + 1) if f"{said.role}-{n}" not in taken)
        host, port = split_address(said.http_address)
        return Target(name, said.role, f"http://{said.http_address}", host, port, said.zmq_address)


class Listener:
    """The ROUTER socket that engines dial."""

    def __init__(self, address: tuple[str, int], registry: Registry, loop: asyncio.AbstractEventLoop) -> None:
        """Bind; raises OSError."""
        host, port = address
        self._registry = registry
        self._loop = loop
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        try:
            self._socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"cannot take registrations on {host}:{port}: {error}") from error
        self._fd = int(self._socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self.read)
        loop.call_soon(self.read)

    def read(self) -> None:
        """Take all messages that are there: the descriptor tells only of changes."""
        for _ in range(1000):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._registry.take(frames)
        self._loop.call_soon(self.read)

    def close(self) -> None:
        """Unbind."""
        self._loop.remove_reader(self._fd)
        self._context.destroy(linger=0)
