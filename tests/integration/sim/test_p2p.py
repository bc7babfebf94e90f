"""A P2pNccl pair by hand: pushed KV, endless waiting, and the registration with a proxy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq

from tests.conftest import eventually, free_block
from tests.integration.sim.engines import A, B, Sim, Start, p2p

EXTERNAL = {"source": "external_kv_transfer"}


def name(p: str, d: str, tail: str = "x1") -> str:
    return f"___prefill_addr_{p}___decode_addr_{d}_{tail}"


def ids(one: Sim, prompt: str, request_id: str, tokens: int, **more: Any) -> list[int]:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
    found: list[int] = one.post(body, request_id=request_id, **more)["choices"][0]["token_ids"]
    return found


@pytest.mark.parametrize(("flag", "follows"), [("--sim-ignore-kv", "b"), ("--sim-damage-kv", "neither")])
def test_unused_and_damaged_kv_show_in_the_tokens(start: Start, flag: str, follows: str) -> None:
    (producer, p), (consumer, d) = p2p(start, "kv_producer"), p2p(start, "kv_consumer", flag)
    first = {key: ids(producer, prompt, name(p, d, key), 1)[0] for key, prompt in (("a", A), ("b", B))}
    output = ids(consumer, B, name(p, d, "a"), 4)
    assert output[0] == first["b"] if follows == "b" else output[0] not in first.values()
    assert consumer.metric("vllm:prompt_tokens_by_source", **EXTERNAL) > 0, "metrics say yes all the same"


def test_one_wait_makes_the_whole_consumer_wait_and_late_kv_frees_it(start: Start) -> None:
    (producer, p), (consumer, d) = p2p(start, "kv_producer"), p2p(start, "kv_consumer")
    ids(producer, B, name(p, d, "second"), 1)
    outputs: dict[str, list[int]] = {}
    waiting = [
        threading.Thread(target=lambda key=key, prompt=prompt: outputs.update({key: ids(consumer, prompt, name(p, d, key), 2)}))
        for key, prompt in (("first", A), ("second", B))
    ]  # fmt: skip
    waiting[0].start()
    eventually(lambda: _is_asked(consumer), 5, "the first request is there")
    waiting[1].start()
    with pytest.raises(TimeoutError):
        ids(consumer, B, name(p, d, "third"), 1, timeout_s=0.5)
    assert not outputs, "the KV of the second is there, but it waits behind the first"
    first = ids(producer, A, name(p, d, "first"), 1)
    for one in waiting:
        one.join(10)
    assert outputs["first"][:1] == first
    assert len(outputs["second"]) == 2


def test_a_consumer_hangs_on_when_its_client_has_left(start: Start) -> None:
    (producer, p), (consumer, d) = p2p(start, "kv_producer"), p2p(start, "kv_consumer")
    with pytest.raises(TimeoutError):
        ids(consumer, A, name(p, d, "never"), 1, timeout_s=0.5)
    ids(producer, B, name(p, d, "there"), 1)
    with pytest.raises(TimeoutError):
        ids(consumer, B, name(p, d, "there"), 1, timeout_s=0.5)
    assert consumer.healthy(), "health says nothing of it"
    consumer.process.terminate()
    assert consumer.process.wait(5) == 0


def _is_asked(one: Sim) -> bool:
    """Whether a connection to its API is open: a request that waits for KV shows nowhere else."""
    import psutil

    port = int(one.url.rsplit(":", 1)[1])
    found = psutil.Process(one.process.pid).net_connections(kind="tcp")
    return any(link.status == psutil.CONN_ESTABLISHED and link.laddr.port == port for link in found)


def test_a_dead_decode_instance_hangs_its_prefill_instance(start: Start) -> None:
    (producer, p), (consumer, d) = p2p(start, "kv_producer"), p2p(start, "kv_consumer")
    consumer.process.kill()
    consumer.process.wait()
    with pytest.raises(TimeoutError):
        ids(producer, A, name(p, d), 1, timeout_s=1)
    assert producer.healthy()


def test_other_rank_layouts_never_meet(start: Start) -> None:
    (producer, p), (consumer, d) = p2p(start, "kv_producer"), p2p(start, "kv_consumer", "-tp", "2")
    ids(producer, A, name(p, d), 1)
    with pytest.raises(TimeoutError):
        ids(consumer, A, name(p, d), 1, timeout_s=0.5)


def test_a_plain_stream_kills_it_too(start: Start) -> None:
    one, _ = p2p(start, "kv_producer")
    assert one.status({"prompt": A, "stream": True})[0] == 500
    assert one.process.wait(10) == 1


@pytest.fixture
def proxy() -> Iterator[tuple[zmq.Socket[bytes], int]]:
    """A ROUTER as the proxy of vLLM's example opens it."""
    port = free_block()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind(f"tcp://127.0.0.1:{port}")
        yield socket, port


@pytest.mark.slow
@pytest.mark.parametrize(("role", "kind"), [("kv_producer", "P"), ("kv_consumer", "D")])
def test_engines_register_and_keep_on_registering(
    start: Start, proxy: tuple[zmq.Socket[bytes], int], role: str, kind: str
) -> None:
    socket, port = proxy
    extra = {"proxy_ip": "127.0.0.1", "proxy_port": str(port), "http_port": "8209"}
    _, address = p2p(start, role, extra=extra)
    began = time.monotonic()
    for _ in range(2):
        assert socket.poll(5000)
        identity, data = socket.recv_multipart()
        assert identity.decode() == address
        assert msgpack.unpackb(data) == {"type": kind, "http_address": "127.0.0.1:8209", "zmq_address": address}
    assert time.monotonic() - began > 1, "every three seconds, not in a loop"


def test_http_port_is_required(start: Start) -> None:
    config = {"kv_connector": "P2pNcclConnector", "kv_role": "kv_producer", "kv_port": free_block()}
    one = start("--sim-vllm-version", "0.22.1", config=config, wait=False)
    assert one.process.wait(10) == 1
    assert "kv_connector_extra_config.http_port is required" in one.log.read_text()
