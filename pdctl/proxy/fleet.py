"""The engines: which there are, which are fit, and which one is next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.connectors.base import Peer
from pdctl.proxy.log import say
from pdctl.proxy.options import ROLES
from pdctl.proxy.upstream import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from pdctl.proxy.options import Target

# An engine can answer /health and fail every request: so many failures in a row take it out of rotation.
BREAK_AFTER = 5
BREAK_S = 2.0
BREAK_MAX_S = 30.0


@dataclass(eq=False)
class Instance:
    """One engine."""

    target: Target
    pool: Pool
    host_header: bytes
    peer: Peer
    healthy: bool = False
    ever_healthy: bool = False
    registered: bool = False
    in_flight: int = 0
    served: int = 0
    failures: int = 0
    """Failed legs in a row."""
    broken_until: float = 0.0
    reason: str = "not asked yet"
    """Why it is not healthy."""
    downs: int = 0
    """How often it was taken out: a health answer asked for before the last time is stale."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have its health asked at once."""

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def role(self) -> str:
        return self.target.role


class Fleet:
    """All instances by role, with the choice among them."""

    def __init__(self, *, connect_timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.instances: list[Instance] = []
        self.pools: list[Pool] = []
        """Also those of removed instances, while legs run on them."""
        self.on_add: Callable[[Instance], None] | None = None
        self._connect_timeout_s = connect_timeout_s
        # One for each role: with a common one, producer i would always meet consumer i.
        self._turns = dict.fromkeys(ROLES, 0)

    def add(self, target: Target) -> Instance:
        """Take an engine in; it serves once its health is known."""
        pool = Pool(target.host, target.port, connect_timeout_s=self._connect_timeout_s, loop=self.loop)
        peer = Peer(target.name, target.url, target.kv_address)
        host = target.url.removeprefix("http://").encode()
        instance = Instance(target, pool, host, peer)
        self.instances.append(instance)
        self.pools.append(pool)
        if self.on_add is not None:
            self.on_add(instance)
        return instance

    def remove(self, instance: Instance) -> None:
        """Let an engine go; its running legs go on."""
        if instance in self.instances:
            self.instances.remove(instance)
            instance.healthy = False

    def sweep(self, idle_timeout_s: float) -> None:
        """End silent legs, close idle connections, forget what belonged to removed instances."""
        now = self.loop.time()
        for pool in self.pools:
            pool.sweep(now, idle_timeout_s)
        kept = {id(instance.pool) for instance in self.instances}
        self.pools = [pool for pool in self.pools if pool.active or id(pool) in kept]

    def of(self, role: str) -> list[Instance]:
        """Return the instances of a role."""
        return [instance for instance in self.instances if instance.role == role]

    def count(self, role: str) -> tuple[int, int]:
        """Return how many instances of a role are healthy, and how many there are."""
        found = self.of(role)
        return sum(instance.healthy for instance in found), len(found)

    def choose(self, role: str, tried: Container[Instance] = ()) -> Instance | None:
        """Return the healthy instance with the fewest requests in flight, in turn among equals.

        Those whose requests fail in a row come last: with no other left they are still better than nothing.
        """
        fit = [one for one in self.instances if one.role == role and one.healthy and one not in tried]
        if not fit:
            return None
        now = self.loop.time()
        whole = [one for one in fit if one.broken_until <= now] or fit
        least = min(one.in_flight for one in whole)
        equal = [one for one in whole if one.in_flight == least]
        self._turns[role] += 1
        return equal[self._turns[role] % len(equal)]

    def up(self, instance: Instance) -> None:
        """Note that an instance's health is good."""
        if not instance.healthy and instance in self.instances:
            instance.healthy = instance.ever_healthy = True
            instance.reason = ""
            say(f"{instance.name} is healthy")

    def down(self, instance: Instance, reason: str) -> None:
        """Take an instance out of rotation until its health is good, and have that asked at once."""
        if instance.healthy:
            say(f"{instance.name} is out of rotation: {reason}")
        instance.healthy = False
        instance.downs += 1
        instance.reason = reason
        instance.wake.set()

    def succeeded(self, instance: Instance) -> None:
        """Note a leg that an instance answered."""
        instance.served += 1
        if instance.failures:
            instance.failures = 0
            instance.broken_until = 0.0

    def failed(self, instance: Instance, *, hard: bool = False) -> None:
        """Note an HTTP 5xx of an instance, or with `hard` a failure that alone is reason to avoid it for a while."""
        instance.failures = max(instance.failures + 1, BREAK_AFTER if hard else 0)
        if instance.failures >= BREAK_AFTER:
            pause = min(BREAK_S * 2 ** (instance.failures - BREAK_AFTER), BREAK_MAX_S)
            if instance.broken_until <= self.loop.time():
                say(f"{instance.name} failed {instance.failures} requests in a row: avoided for {pause:g} s")
            instance.broken_until = self.loop.time() + pause
