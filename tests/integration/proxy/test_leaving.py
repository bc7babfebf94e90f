"""Clients that leave (situation 14): engines are told, nothing stays open, others are unharmed."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .engine import Engine, words_of
from .running import Proxy, eventually

if TYPE_CHECKING:
    from .conftest import Bench

BODY = {"model": "m", "prompt": "hello", "max_tokens": 40, "stream": True}


def connect(proxy: Proxy, body: dict[str, object]) -> socket.socket:
    raw = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", proxy.port), 10)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    client.sendall(head % len(raw) + raw)
    return client


def descriptors(proxy: Proxy) -> int:
    return len(list(Path(f"/proc/{proxy.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
def test_leaving_during_prefill_ends_it_and_decode_is_not_asked(bench: Bench, connector: str) -> None:
    p, d = bench.engine("producer", connector=connector, delay_s=30), bench.engine("consumer", connector=connector)
    proxy = bench.front([p, d], connector=connector)
    with connect(proxy, BODY):
        eventually(lambda: p.open == 1, "prefill to run")
    started = time.monotonic()
    eventually(lambda: p.open == 0, "the producer to be told")
    assert time.monotonic() - started < 2
    assert p.seen[0].closed_early
    assert d.seen == []
    assert proxy.metric("pdctl_proxy_client_disconnects_total") == 1
    assert proxy.metric("pdctl_proxy_in_flight") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_during_decode_ends_it(bench: Bench, stream: bool) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer", gap_s=0.2, delay_s=0 if stream else 30)
    proxy = bench.front([p, d])
    with connect(proxy, {**BODY, "stream": stream}) as client:
        eventually(lambda: d.open == 1, "decode to run")
        if stream:
            assert client.recv(1)
    started = time.monotonic()
    eventually(lambda: d.open == 0, "the consumer to be told")
    assert time.monotonic() - started < 2
    assert d.seen[0].closed_early


def test_leaving_ends_all_parts_of_a_split_request(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer", gap_s=0.2)
    proxy = bench.front([p, d])
    with connect(proxy, {**BODY, "n": 5}) as client:
        assert client.recv(1)
        eventually(lambda: d.open == 5, "all parts to run")
    eventually(lambda: d.open == 0, "the consumer to be told", 2)


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
def test_leaving_between_the_legs(bench: Bench, connector: str) -> None:
    """A consumer whose port accepts nobody holds the request between the legs."""
    p, d = (bench.engine(role, connector=connector) for role in ("producer", "consumer"))
    proxy = bench.front([p, d], "--connect-timeout", "30", connector=connector)
    blocker = _block_port(d)
    try:
        # Kept connections of the health check must not be used: they go within seconds.
        clients = [connect(proxy, BODY) for _ in range(2)]
        eventually(lambda: len(bench.kv) == 2, "prefill to be done")
        for client in clients:
            client.close()
        what = "pdctl_proxy_handovers_abandoned_held" if connector == "nixl" else "pdctl_proxy_drains_total"
        left = eventually(lambda: proxy.metric(what), "the hand-over to be noted")
        assert left >= 1
    finally:
        blocker()
    if connector == "p2p_nccl":
        eventually(lambda: bench.kv == {}, "the consumer to take what was pushed")
        assert all(seen.body["max_tokens"] == 1 for seen in d.seen if not seen.closed_early)


def _block_port(engine: Engine):  # type: ignore[no-untyped-def]
    """Replace an engine's port by one whose queue is full; return what undoes it."""
    engine.threads.call(engine.stop_async())
    gate = socket.socket()
    gate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    gate.bind(("127.0.0.1", engine.port))
    gate.listen(0)
    fill = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", engine.port))
        fill.append(filler)

    def undo() -> None:
        for one in [*fill, gate]:
            one.close()
        engine.start()

    return undo


@pytest.mark.slow
@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
def test_many_clients_leave_at_random_moments(bench: Bench, connector: str) -> None:
    p = bench.engine("producer", connector=connector, delay_s=0.05)
    d = bench.engine("consumer", connector=connector, gap_s=0.01)
    proxy = bench.front([p, d], connector=connector)
    wrong: list[str] = []

    def stays() -> None:
        for _ in range(3):
            answer = proxy.post({**BODY, "max_tokens": 10})
            if answer.text != "".join(words_of("hello", 0, 10)):
                wrong.append(answer.body.decode())

    stays()
    before = descriptors(proxy)
    dice = random.Random(14)
    others = [threading.Thread(target=stays) for _ in range(3)]
    for other in others:
        other.start()
    leaving = [(dice.random() * 0.4, connect(proxy, {**BODY, "prompt": f"p{n}"})) for n in range(60)]
    started = time.monotonic()
    for moment, client in sorted(leaving, key=lambda pair: pair[0]):
        time.sleep(max(0.0, started + moment - time.monotonic()))
        client.close()
    eventually(
        lambda: not any(seen.body.get("prompt") != "hello" and not _over(seen) for seen in d.seen), "decode told", 3
    )
    for other in others:
        other.join(20)
    assert wrong == []
    eventually(lambda: p.open == d.open == 0, "no open request", 3)
    eventually(lambda: proxy.metric("pdctl_proxy_in_flight") == 0, "nothing in flight", 3)
    eventually(lambda: descriptors(proxy) <= before + 4, "descriptors to be back", 10)
    assert proxy.metric("pdctl_proxy_leg_failures_total") == 0
    asked = {seen.body["prompt"] for seen in d.seen}
    assert len(asked) < 61  # somebody left in prefill, and decode was not asked
    assert d.faults == []
    held = proxy.metric("pdctl_proxy_handovers_abandoned_held") + sum(seen.closed_early for seen in p.seen)
    assert len(bench.kv) <= held


def _over(seen) -> bool:  # type: ignore[no-untyped-def]
    return bool(seen.finished or seen.closed_early)
