"""The ordinary way: prefill on a producer, decode on a consumer, one answer."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from .engine import words_of
from .running import eventually

if TYPE_CHECKING:
    from .conftest import Bench

BODY = {"model": "m", "prompt": "hello", "max_tokens": 5}


def text(prompt: object, count: int, choice: int = 0) -> str:
    return "".join(words_of(prompt, choice, count))


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
def test_completion_goes_through_producer_and_consumer(bench: Bench, connector: str) -> None:
    p, d = (bench.engine(role, connector=connector) for role in ("producer", "consumer"))
    proxy = bench.front([p, d], connector=connector)
    answer = proxy.post(BODY)
    assert answer.status == 200
    assert answer.json["choices"][0]["text"] == text("hello", 5)
    assert "kv_transfer_params" not in answer.json
    assert (p.tokens, d.tokens) == (1, 5)
    assert d.faults == []
    assert bench.kv == {}


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
@pytest.mark.parametrize("pieces", [False, True])
def test_stream_shows_no_internal_address(bench: Bench, connector: str, pieces: bool) -> None:
    p, d = (bench.engine(role, connector=connector, split_bytes=pieces) for role in ("producer", "consumer"))
    proxy = bench.front([p, d], connector=connector)
    answer = proxy.post({**BODY, "stream": True, "stream_options": {"include_usage": True}}, x_request_id="mine-1")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.text == text("hello", 5)
    assert answer.events[-1] == "[DONE]"
    assert answer.events[-2]["usage"]["completion_tokens"] == 5
    assert {one["id"] for one in answer.events[:-1]} == {"cmpl-mine-1"}
    for hidden in (b"10.1.2.3", b"prefill_addr", b"kv_transfer_params", str(p.port).encode()):
        assert hidden not in answer.body
        assert hidden.decode() not in str(answer.headers)
    assert d.faults == []


def test_client_bytes_reach_the_consumer_unchanged(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    raw = (
        b'{ "model":"m","prompt":"hi", "temperature":0.70,"top_p":1e-2,"x":12345678901234567890123,"max_tokens":2 } \n'
    )
    assert proxy.post(raw).status == 200
    seen = d.seen[0].raw
    assert seen.startswith(raw.rstrip()[:-1])
    assert json.loads(seen)["kv_transfer_params"]["remote_host"] == "10.1.2.3"


def test_client_cannot_name_its_own_kv(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    own = {"remote_host": "6.6.6.6", "do_remote_prefill": True}
    raw = json.dumps({**BODY, "vllm_xargs": {"kv_transfer_params": own, "keep": 1}}).replace(
        '"model"', '"kv_transfer\\u005fparams": ' + json.dumps(own) + ', "model"'
    )
    assert proxy.post(raw.encode()).status == 200
    for engine in (p, d):
        assert b"6.6.6.6" not in engine.seen[0].raw
        assert engine.seen[0].body["vllm_xargs"] == {"keep": 1}


def test_headers_travel(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    answer = proxy.post(
        BODY,
        x_request_id="a b/../c",
        authorization="Bearer sk-user",
        traceparent="00-1",
        cookie="s=1",
        connection="x-hop",
        x_hop="1",
    )
    assert answer.headers["x-request-id"] == "a_b____c"
    for engine in (p, d):
        headers = engine.seen[0].headers
        assert headers["x-request-id"] == "a_b____c"
        assert headers["authorization"] == "Bearer sk-user"
        assert headers["traceparent"] == "00-1"
        assert "cookie" not in headers
        assert "x-hop" not in headers


def test_api_key_is_checked_at_the_front(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d], "--api-key-env", "FRONT_KEY", env={"FRONT_KEY": "sk-front"})
    for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "sk-front"}):
        refused = proxy.post(BODY, **headers)
        assert refused.status == 401
        assert refused.json["error"]["type"] == "authentication_error"
    assert proxy.get("/v1/models").status == 401
    assert proxy.get("/health").status == 200
    assert p.seen == []
    assert proxy.post(BODY, authorization="Bearer sk-front").status == 200
    assert "authorization" not in p.seen[0].headers
    assert not any("sk-front" in line for line in proxy.lines)


def test_cached_tokens_are_those_of_the_producer(bench: Bench) -> None:
    p, d = bench.engine("producer", details=3), bench.engine("consumer", details=900)
    proxy = bench.front([p, d])
    assert proxy.post(BODY).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    streamed = proxy.post({**BODY, "stream": True, "stream_options": {"include_usage": True}})
    assert streamed.events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


def test_other_paths_go_to_one_engine(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    answer = proxy.post({"model": "m", "input": "x"}, "/v1/responses?a=1")
    assert answer.json == {"path": "/v1/responses?a=1", "engine": "consumer"}
    assert answer.headers["x-pdctl-route"] == "plain"
    for path in ("/reset_prefix_cache", "/sleep", "/v1/load_lora_adapter", "/remove_worker"):
        assert proxy.post({}, path).status == 404
    assert len(d.seen) == 1


def test_p2p_engines_get_no_plain_request(bench: Bench) -> None:
    p, d = (bench.engine(role, connector="p2p_nccl") for role in ("producer", "consumer"))
    proxy = bench.front([p, d], connector="p2p_nccl")
    for path in ("/v1/responses", "/v1/embeddings", "/tokenize", "/v1/messages"):
        refused = proxy.post({"model": "m"}, path)
        assert refused.status == 501
        assert refused.json["error"]["code"] == 501
    assert p.seen == []
    assert d.seen == []
    assert proxy.get("/v1/models").json["data"][0]["id"] == "m"


def test_aggregated_is_picked_by_header_or_prefix(bench: Bench) -> None:
    p, d, a = (bench.engine(role) for role in ("producer", "consumer", "aggregated"))
    proxy = bench.front([p, d, a])
    for answer in (proxy.post(BODY, x_pdctl_route="aggregated"), proxy.post(BODY, "/aggregated/v1/completions")):
        assert answer.json["choices"][0]["text"] == text("hello", 5)
        assert answer.headers["x-pdctl-route"] == "aggregated"
    assert len(a.seen) == 2
    assert a.seen[1].path == "/v1/completions"
    assert p.seen == []
    proxy.post(BODY)
    assert len(p.seen) == 1


def test_aggregated_alone_serves_everything(bench: Bench) -> None:
    a = bench.engine("aggregated")
    proxy = bench.front([a], connector="none")
    assert proxy.post({**BODY, "stream": True}).text == text("hello", 5)
    assert proxy.post({"model": "m"}, "/tokenize").status == 200
    assert proxy.get("/health").json["instances"]["aggregated"] == {"healthy": 1, "known": 1}


def test_requests_spread_over_the_least_loaded(bench: Bench) -> None:
    engines = [bench.engine("producer"), bench.engine("producer"), bench.engine("consumer"), bench.engine("consumer")]
    proxy = bench.front(engines)
    for _ in range(20):
        assert proxy.post(BODY).status == 200
    assert [len(engine.seen) for engine in engines] == [10, 10, 10, 10]


def test_prompt_logits_need_one_engine(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    for extra in ({"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}, {"use_beam_search": True}):
        refused = proxy.post({**BODY, **extra})
        assert refused.status == 400
        assert refused.json["error"]["param"] in extra
    assert p.seen == []
    a = bench.engine("aggregated")
    with_plain = bench.front([p, d, a])
    assert with_plain.post({**BODY, "prompt_logprobs": 0}).headers["x-pdctl-route"] == "aggregated"


def test_metrics_and_instances(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d], "--model", "m")
    proxy.post(BODY)
    page = proxy.get("/metrics").body.decode()
    assert 'pdctl_proxy_requests_total{route="completions",status="200"} 1' in page
    assert "pdctl_proxy_prefill_seconds_count 1" in page
    assert 'pdctl_proxy_healthy_instances{role="producer"} 1' in page
    listed = proxy.get("/pdctl/instances").json["instances"]
    assert [(one["role"], one["served"]) for one in listed] == [("producer", 1), ("consumer", 1)]
    assert proxy.get("/pdctl/instances", x_forwarded_for="9.9.9.9").status == 403
    assert proxy.get("/version").json["server"] == "pdctl-proxy"


def test_stop_lets_a_stream_end(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer", gap_s=0.05)
    proxy = bench.front([p, d])
    import threading

    answers = []
    asking = threading.Thread(target=lambda: answers.append(proxy.post({**BODY, "max_tokens": 20, "stream": True})))
    asking.start()
    eventually(lambda: d.tokens > 2, "the stream to run")
    started = time.monotonic()
    assert proxy.stop() == 0
    asking.join(10)
    assert answers[0].events[-1] == "[DONE]"
    assert answers[0].text == text("hello", 20)
    assert time.monotonic() - started < 9


def test_stop_works_while_nothing_is_reachable(bench: Bench) -> None:
    """A cancelled health check that fails at that very moment must not go on."""
    p, d = bench.engine("producer"), bench.engine("consumer")
    for engine in (p, d):
        engine.stop()
    for _ in range(8):
        proxy = bench.proxy("--connector", "nixl", "--producer", p.url, "--consumer", d.url)
        started = time.monotonic()
        assert proxy.stop() == 0
        assert time.monotonic() - started < 5
