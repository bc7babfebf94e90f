"""P2pNccl engines that register."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

from .running import Proxy, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Bench
    from .engine import Engine

BODY = {"model": "m", "prompt": "hello", "max_tokens": 5}


class Announcer:
    """What a P2pNccl engine's rank 0 does."""

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._port = port

    def say(self, kind: str, http: str, kv: str) -> None:
        self.raw(kv, msgpack.packb({"type": kind, "http_address": http, "zmq_address": kv}))

    def raw(self, identity: str, *frames: bytes) -> None:
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt_string(zmq.IDENTITY, identity)
            dealer.setsockopt(zmq.LINGER, 2000)
            dealer.connect(f"tcp://127.0.0.1:{self._port}")
            dealer.send_multipart(frames)

    def engine(self, engine: Engine) -> None:
        self.say("P" if engine.role == "producer" else "D", f"127.0.0.1:{engine.port}", engine.kv_address)

    def close(self) -> None:
        self._context.destroy(linger=2000)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def announcer(port: int) -> Iterator[Announcer]:
    made = Announcer(port)
    yield made
    made.close()


def results(proxy: Proxy) -> dict[str, int]:
    rows = [
        row for row in proxy.get("/metrics").body.decode().splitlines() if row.startswith("pdctl_proxy_registrations")
    ]
    return {row.split('"')[1]: int(row.rsplit(" ", 1)[1]) for row in rows}


def test_engines_come_from_registrations(bench: Bench, port: int, announcer: Announcer) -> None:
    p, d = bench.engine("producer", connector="p2p_nccl", health=503), bench.engine("consumer", connector="p2p_nccl")
    proxy = bench.proxy("--connector", "p2p_nccl", "--registration", f"127.0.0.1:{port}")
    assert proxy.get("/health").json["missing"] == ["producer", "consumer"]
    announcer.raw("x", b"\xc1garbage")
    announcer.raw("y", msgpack.packb({"type": "X", "http_address": "a:1", "zmq_address": "b:2"}))
    announcer.raw("z", msgpack.packb([1]), b"more")
    for engine in (p, d):
        announcer.engine(engine)
    eventually(lambda: proxy.get("/health").json["missing"] == ["producer"], "the consumer to be healthy")
    assert proxy.post(BODY).status == 503  # registered, but its /health is not good yet
    p.health = 200
    proxy.ready()
    assert proxy.post(BODY).status == 200
    assert d.faults == []
    address = f"___prefill_addr_{p.kv_address}___decode_addr_{d.kv_address}_"
    assert p.seen[0].headers["x-request-id"].startswith(address)
    assert results(proxy) == {"accepted": 2, "malformed": 3}


def test_list_decides_who_is_an_engine(bench: Bench, port: int, announcer: Announcer) -> None:
    p, d = (bench.engine(role, connector="p2p_nccl") for role in ("producer", "consumer"))
    stranger = bench.engine("consumer", connector="p2p_nccl")
    proxy = bench.front([p, d], "--registration", f"127.0.0.1:{port}", connector="p2p_nccl")
    announcer.engine(p)
    announcer.engine(stranger)
    announcer.say("D", f"127.0.0.1:{d.port}", "10.9.9.9:1")
    eventually(lambda: sum(results(proxy).values()) == 3, "three messages to be taken")
    assert results(proxy) == {"accepted": 1, "unknown": 1, "mismatch": 1}
    listed = {one["name"]: one["registered"] for one in proxy.get("/pdctl/instances").json["instances"]}
    assert listed == {"producer-0": True, "consumer-0": False}
    for _ in range(4):
        assert proxy.post(BODY).status == 200
    assert stranger.seen == []


@pytest.mark.slow
def test_silent_engine_is_forgotten(bench: Bench, port: int, announcer: Announcer) -> None:
    p, d = (bench.engine(role, connector="p2p_nccl") for role in ("producer", "consumer"))
    proxy = bench.proxy("--connector", "p2p_nccl", "--registration", f"127.0.0.1:{port}")
    for engine in (p, d):
        announcer.engine(engine)
    proxy.ready()

    def alone() -> bool:
        announcer.engine(p)
        return bool(proxy.get("/health").json["instances"]["consumer"]["known"] == 0)

    eventually(alone, "the silent consumer to be forgotten", 25)
    assert proxy.get("/health").json["missing"] == ["consumer"]


def test_taken_port_is_an_error(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=r"exit code 1.*cannot take registrations"):
            bench.proxy("--connector", "p2p_nccl", "--registration", f"127.0.0.1:{port}")
