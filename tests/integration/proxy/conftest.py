from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .engine import Engine, EngineThread
from .running import Proxy, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


class Bench:
    """Makes engines and proxies, and ends them after the test."""

    def __init__(self) -> None:
        self.threads = EngineThread()
        self.kv: dict[str, Any] = {}
        self.proxies: list[Proxy] = []

    def engine(self, role: str, **settings: Any) -> Engine:
        engine = Engine(self.threads, self.kv, role, **settings).start()
        if not engine.kv_address:
            engine.kv_address = f"10.1.2.3:{engine.port}"
        self.threads.engines.append(engine)
        return engine

    def proxy(self, *arguments: str, env: dict[str, str] | None = None) -> Proxy:
        proxy = Proxy(*arguments, env=env)
        self.proxies.append(proxy)
        return proxy

    def front(self, engines: list[Engine], *arguments: str, connector: str = "nixl", **settings: Any) -> Proxy:
        """Return a ready proxy before these engines."""
        named = []
        for engine in engines:
            kv = f",kv={engine.kv_address}" if connector == "p2p_nccl" and engine.role != "aggregated" else ""
            named += [f"--{engine.role}", engine.url + kv]
        proxy = self.proxy("--connector", connector, *named, *arguments, **settings).ready()

        def instances() -> list[dict[str, Any]]:
            return list(proxy.get("/pdctl/instances").json["instances"])

        eventually(lambda: all(one["healthy"] for one in instances()), "all engines to be in rotation")
        return proxy

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.stop()
        self.threads.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        made.close()
