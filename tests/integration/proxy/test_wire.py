"""What comes over the wire from clients of all kinds, and slow ones."""

from __future__ import annotations

import gzip
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .engine import words_of
from .running import Proxy, eventually

if TYPE_CHECKING:
    from .conftest import Bench

BODY = {"model": "m", "prompt": "hello", "max_tokens": 3}
RAW = json.dumps(BODY).encode()
TEXT = "".join(words_of("hello", 0, 3))
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def talk(proxy: Proxy, *parts: bytes, host: str = "127.0.0.1") -> bytes:
    """Send parts, and return everything until the proxy closes or has been quiet."""
    with socket.create_connection((host, proxy.port), 10) as client:
        client.settimeout(1.0)
        for part in parts:
            client.sendall(part)
            time.sleep(0.02)  # so that the parts arrive apart; not waiting for anything
        got = b""
        try:
            while data := client.recv(65536):
                got += data
        except TimeoutError:
            pass
        return got


@pytest.fixture
def proxy(bench: Bench) -> Proxy:
    return bench.front([bench.engine("producer"), bench.engine("consumer")], "--max-body", "1MiB")


def test_chunked_body_in_pieces(proxy: Proxy) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(RAW[at : at + 5]), RAW[at : at + 5]) for at in range(0, len(RAW), 5))
    sent = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    got = talk(proxy, *(sent[at : at + 40] for at in range(0, len(sent), 40)))
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert TEXT.encode() in got


def test_expect_100_continue(proxy: Proxy) -> None:
    got = talk(proxy, HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(RAW), RAW)
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_expect_with_too_large_a_body_is_refused_at_once(proxy: Proxy) -> None:
    got = talk(proxy, HEAD + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in got


@pytest.mark.parametrize("chunked", [False, True])
def test_oversize_is_413(proxy: Proxy, chunked: bool) -> None:
    big = b" " * (2 << 20)
    framed = (
        b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(big) if chunked else b"content-length: %d\r\n\r\n" % len(big)
    )
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
        client.sendall(HEAD + framed)
        client.sendall(big)
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_pipelined_requests_are_answered_in_order(proxy: Proxy) -> None:
    one = HEAD + b"content-length: %d\r\n\r\n" % len(RAW) + RAW
    got = talk(proxy, one * 3 + b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert got.count(b"HTTP/1.1 200 OK") == 4
    assert got.count(TEXT.encode()) == 3
    assert got.rindex(b"pdctl-proxy") > got.rindex(TEXT.encode())


def test_keep_alive_and_head_and_options(proxy: Proxy) -> None:
    got = talk(
        proxy,
        b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\nOPTIONS /v1/completions HTTP/1.1\r\nhost: x\r\norigin: http://e\r\n\r\n"
        b"DELETE /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n"
        b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
        b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n",
    )
    heads = [line for line in got.split(b"\r\n") if b"HTTP/1.1 " in line]
    statuses = [line[line.index(b"HTTP/1.1 ") + 9 :][:3] for line in heads]
    assert statuses == [b"200", b"204", b"405", b"405", b"404"]
    assert b"access-control" not in got.lower()
    assert b'"status":"ok"' not in got  # HEAD has no body


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0(proxy: Proxy, stream: bool) -> None:
    raw = json.dumps({**BODY, "stream": stream}).encode()
    got = talk(proxy, HEAD.replace(b"1.1", b"1.0") + b"content-length: %d\r\n\r\n" % len(raw) + raw)
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {") if stream else json.loads(body)["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b"null", b'{"a":1}}', b"\xff\xfe{"])
def test_bad_json_is_an_openai_400(proxy: Proxy, raw: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        answer = proxy.ask("POST", path, raw)
        assert answer.status == 400
        assert answer.json["error"]["type"] == "invalid_request_error"


def test_encoded_body_is_415(proxy: Proxy) -> None:
    assert proxy.ask("POST", "/v1/completions", gzip.compress(RAW), {"content-encoding": "gzip"}).status == 415


def test_large_headers_are_431_and_garbage_is_400(proxy: Proxy) -> None:
    assert talk(proxy, b"GET / HTTP/1.1\r\nx: " + b"a" * 70000).startswith(b"HTTP/1.1 431 ")
    assert talk(proxy, b"\x16\x03\x01\x02\x00\x01\x00").startswith(b"HTTP/1.1 400 ")
    smuggled = HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert talk(proxy, smuggled).startswith(b"HTTP/1.1 400 ")
    assert proxy.get("/health").status == 200


@pytest.mark.slow
def test_slow_headers_are_cut_off(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), 20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        client.settimeout(20)
        started = time.monotonic()
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started < 14


def test_ipv6(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    arguments = ("--connector", "nixl", "--producer", p.url, "--consumer", d.url, "--bind", "::1")
    proxy = bench.proxy(*arguments)
    assert proxy.lines[0].endswith(f"http://[::1]:{proxy.port}")
    eventually(
        lambda: b"HTTP/1.1 200" in talk(proxy, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", host="::1"),
        "the front to be ready",
    )
    assert b'"schema":1' in talk(proxy, b"GET /pdctl/instances HTTP/1.1\r\nhost: x\r\n\r\n", host="::1")


def test_slow_reader_slows_the_engine_and_not_the_memory(bench: Bench) -> None:
    """The engine must feel a client that does not read; else every event is kept in memory."""
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    raw = json.dumps({**BODY, "max_tokens": 400000, "stream": True}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", proxy.port))
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(raw) + raw)
        assert client.recv(10)
        seen: list[int] = []

        def stands() -> bool:
            seen.append(d.tokens)
            time.sleep(0.05)
            return len(seen) > 10 and seen[-1] == seen[-8] > 0

        eventually(stands, "the engine to be stopped by the slow client", 30)
        assert d.tokens < 200000
        assert _resident(proxy) < 120 << 20
    eventually(lambda: d.open == 0, "the engine to be told")


def test_large_body_is_not_copied_many_times(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    before = _resident(proxy, "VmHWM")
    size = 24 << 20
    prompt = "a" * size
    answer = proxy.post({**BODY, "prompt": prompt})
    assert answer.json["choices"][0]["text"] == "".join(words_of(prompt, 0, 3))
    # Body, parsed prompt, the producer's body, and what the kernel has not yet taken.
    assert _resident(proxy, "VmHWM") - before < 4.5 * size


def _resident(proxy: Proxy, field: str = "VmRSS") -> int:
    lines = Path(f"/proc/{proxy.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def test_openai_client(bench: Bench) -> None:
    openai = pytest.importorskip("openai")
    p, d = bench.engine("producer"), bench.engine("consumer")
    front = bench.front([p, d])
    with openai.OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="sk-user", max_retries=0) as client:
        stream = client.completions.create(model="m", prompt="hello", max_tokens=3, stream=True)
        assert "".join(part.choices[0].text for part in stream) == TEXT
        assert client.models.list().data[0].id == "m"
        d.fail = (400, {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})
        with pytest.raises(openai.BadRequestError, match="too long"):
            client.completions.create(model="m", prompt="hello", max_tokens=3)
