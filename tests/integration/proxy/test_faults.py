"""Engines that refuse, fail and die (situations 12 and 15): what clients see, and what happens to the rotation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from .engine import words_of
from .running import Answer, eventually

if TYPE_CHECKING:
    from .conftest import Bench

BODY = {"model": "m", "prompt": "hello", "max_tokens": 5}
BAD = {"error": {"message": "the prompt is too long", "type": "BadRequestError", "param": None, "code": 400}}
BROKEN = {"error": {"message": "Traceback (most recent call last): http://10.1.2.3", "code": 500}}
both = pytest.mark.parametrize("stream", [False, True])
connectors = pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])


def right(answer: Answer, stream: bool, count: int = 5) -> bool:
    text = answer.text if stream else answer.json["choices"][0]["text"]
    return answer.status == 200 and text == "".join(words_of("hello", 0, count))


def no_inside(answer: Answer, *ports: int) -> None:
    for hidden in (b"127.0.0.1", b"10.1.2.3", b"Traceback", b"prefill_addr", *(str(port).encode() for port in ports)):
        assert hidden not in answer.body


@both
@connectors
@pytest.mark.parametrize("where", ["producer", "consumer"])
def test_400_is_passed_with_its_body_and_not_retried(bench: Bench, where: str, connector: str, stream: bool) -> None:
    engines = [bench.engine(role, connector=connector) for role in ("producer", "producer", "consumer", "consumer")]
    proxy = bench.front(engines, connector=connector)
    for engine in engines:
        if engine.role == where:
            engine.fail = (400, BAD)
    answer = proxy.post({**BODY, "stream": stream})
    assert answer.status == 400
    assert answer.json == BAD
    refusing = [engine for engine in engines if engine.role == where]
    assert sum(len(engine.seen) for engine in refusing) == 1
    assert sum(len(engine.seen) for engine in engines if engine.role == "consumer") == (where == "consumer")
    assert proxy.metric("pdctl_proxy_retries_total") == 0
    assert all(one["healthy"] for one in proxy.get("/pdctl/instances").json["instances"])


@both
@connectors
@pytest.mark.parametrize("trouble", ["500", "reset"])
@pytest.mark.parametrize("where", ["producer", "consumer"])
def test_failure_before_the_first_byte_is_tried_on_another(
    bench: Bench, where: str, trouble: str, connector: str, stream: bool
) -> None:
    engines = [bench.engine(role, connector=connector) for role in ("producer", "producer", "consumer", "consumer")]
    proxy = bench.front(engines, connector=connector)
    bad = next(engine for engine in engines if engine.role == where)
    if trouble == "500":
        bad.fail = (500, BROKEN)
    else:
        bad.die_after = -1
    for _ in range(4):
        assert right(proxy.post({**BODY, "stream": stream}), stream)
    assert bad.seen
    retries = proxy.metric("pdctl_proxy_retries_total")
    assert retries >= 1
    finished = sum(seen.finished for engine in engines if engine.role == "producer" for seen in engine.seen)
    good = 4 + retries if where == "consumer" else 4 + (retries if trouble == "500" else 0)
    assert finished == good  # a new prefill for each request that failed on a consumer
    assert [engine.faults for engine in engines] == [[], [], [], []]


@both
@connectors
def test_refused_connection_is_tried_on_another(bench: Bench, connector: str, stream: bool) -> None:
    engines = [bench.engine(role, connector=connector) for role in ("producer", "consumer", "consumer")]
    proxy = bench.front(engines, connector=connector)
    engines[1].stop()
    for _ in range(3):
        assert right(proxy.post({**BODY, "stream": stream}), stream)
    eventually(lambda: proxy.get("/health").json["instances"]["consumer"]["healthy"] == 1, "D out of rotation")
    engines[1].start()
    eventually(lambda: proxy.get("/health").json["instances"]["consumer"]["healthy"] == 2, "D back in rotation")
    before = len(engines[1].seen)
    for _ in range(2):
        assert right(proxy.post({**BODY, "stream": stream}), stream)
    assert len(engines[1].seen) > before


@both
@pytest.mark.parametrize("where", ["producer", "consumer"])
def test_failure_without_another_is_an_openai_error(bench: Bench, where: str, stream: bool) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    bad = p if where == "producer" else d
    bad.fail = (500, BROKEN)
    answer = proxy.post({**BODY, "stream": stream})
    assert answer.status == 502
    assert answer.json["error"]["code"] == 502
    no_inside(answer, p.port, d.port)
    bad.fail = (503, BROKEN)
    assert proxy.post({**BODY, "stream": stream}).status == 503
    bad.fail = None
    bad.stop()
    answer = proxy.post({**BODY, "stream": stream})
    assert answer.status in (502, 503)
    no_inside(answer, p.port, d.port)
    assert b"error" in answer.body


@connectors
def test_death_mid_stream_is_an_error_event_and_the_end(bench: Bench, connector: str) -> None:
    engines = [bench.engine(role, connector=connector) for role in ("producer", "consumer", "consumer")]
    proxy = bench.front(engines, connector=connector)
    for engine in engines[1:]:
        engine.die_after = 3
        engine.health = 503
    answer = proxy.post({**BODY, "stream": True})
    assert answer.status == 200
    assert len(answer.events) == 4
    assert answer.events[3]["error"]["code"] == 502
    no_inside(answer)
    victim = next(engine for engine in engines[1:] if engine.seen)
    named = {one["url"]: one for one in proxy.get("/pdctl/instances").json["instances"]}
    assert not named[victim.url]["healthy"]
    for engine in engines[1:]:
        engine.die_after, engine.health = None, 200
    eventually(lambda: proxy.get("/health").json["instances"]["consumer"]["healthy"] == 2, "D back in rotation")
    assert right(proxy.post({**BODY, "stream": True}), True)


def test_engine_that_fails_every_request_is_avoided(bench: Bench) -> None:
    p, d, bad = bench.engine("producer"), bench.engine("consumer"), bench.engine("consumer")
    proxy = bench.front([p, d, bad])
    bad.fail = (500, BROKEN)
    for _ in range(20):
        assert right(proxy.post(BODY), False)
    assert len(bad.seen) == 5
    bad.fail = None
    eventually(lambda: proxy.post(BODY).status == 200 and len(bad.seen) > 5, "the engine to be tried again")


def test_missing_hand_over_is_no_silent_success(bench: Bench) -> None:
    p, d = bench.engine("producer", hand_over=False), bench.engine("consumer")
    proxy = bench.front([p, d])
    answer = proxy.post(BODY)
    assert answer.status == 502
    assert "KV" in answer.json["error"]["message"]
    assert d.seen == []
    assert proxy.metric("pdctl_proxy_handovers_failed_total") == 1


def test_fallback_is_counted_and_marked(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d], "--fallback", "decode")
    p.stop()
    for body in (BODY, {**BODY, "n": 2}):
        answer = proxy.post(body)
        assert answer.status == 200
        assert answer.headers["x-pdctl-fallback"] == "decode"
        assert answer.json["choices"][0]["text"] == "".join(words_of("hello", 0, 5))
    assert proxy.metric("pdctl_proxy_fallbacks_total") == 3
    assert "kv_transfer_params" not in d.seen[0].body


def test_p2p_never_falls_back(bench: Bench) -> None:
    p, d = (bench.engine(role, connector="p2p_nccl") for role in ("producer", "consumer"))
    proxy = bench.front([p, d], "--fallback", "decode", connector="p2p_nccl")
    p.stop()
    assert proxy.post(BODY).status in (502, 503)
    assert d.seen == []


@pytest.mark.parametrize("where", ["producer", "consumer"])
def test_silent_engine_is_a_504(bench: Bench, where: str) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d], "--idle-timeout", "0.5")
    bad = p if where == "producer" else d
    bad.delay_s = 30
    started = time.monotonic()
    answer = proxy.post({**BODY, "stream": True})
    assert answer.status == 504
    assert answer.json["error"]["type"] == "timeout"
    assert time.monotonic() - started < 5
    eventually(lambda: bad.open == 0, "the engine to be told")


def test_idle_timeout_is_not_a_total(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer", gap_s=0.1)
    proxy = bench.front([p, d], "--idle-timeout", "0.8")
    assert right(proxy.post({**BODY, "max_tokens": 15, "stream": True}), True, 15)


def test_front_is_healthy_only_with_both_roles(bench: Bench) -> None:
    p, d0, d1 = bench.engine("producer", health=503), bench.engine("consumer"), bench.engine("consumer")
    proxy = bench.proxy("--connector", "nixl", "--producer", p.url, "--consumer", d0.url, "--consumer", d1.url)
    eventually(lambda: proxy.get("/health").json["instances"]["consumer"]["healthy"] == 2, "both consumers")
    front = proxy.get("/health")
    assert front.status == 503
    assert front.json["missing"] == ["producer"]
    refused = proxy.post(BODY)
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "producer" in refused.json["error"]["message"]
    assert proxy.get("/v1/models").json["data"][0]["id"] == "m"
    assert d0.seen == d1.seen == []

    p.health = 200
    proxy.ready()
    assert right(proxy.post(BODY), False)

    p.stop()
    eventually(lambda: proxy.get("/health").status == 503, "the dead producer to be seen", 5)
    assert proxy.post(BODY).status == 503
    assert proxy.get("/v1/models").status == 200
    assert "producer-0 is out of rotation" in "\n".join(proxy.lines)
    p.start()
    proxy.ready()

    d0.stop()
    eventually(lambda: proxy.get("/health").json["instances"]["consumer"]["healthy"] == 1, "the dead consumer")
    assert proxy.get("/health").status == 200
    for _ in range(3):
        assert right(proxy.post(BODY), False)


def test_no_engine_at_all(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    for engine in (p, d):
        engine.stop()
    proxy = bench.proxy("--connector", "nixl", "--producer", p.url, "--consumer", d.url)
    assert proxy.get("/health").json["missing"] == ["producer", "consumer"]
    assert proxy.get("/v1/models").status == 503
    assert proxy.post(BODY).status == 503


def test_kept_connection_that_the_engine_closed_is_no_failure(bench: Bench) -> None:
    p, d = bench.engine("producer", closes=True), bench.engine("consumer", closes=True)
    proxy = bench.front([p, d])
    for _ in range(30):
        assert right(proxy.post(BODY), False)
    assert proxy.metric("pdctl_proxy_retries_total") == 0
    assert proxy.metric("pdctl_proxy_leg_failures_total") == 0


@both
def test_connections_to_engines_are_kept(bench: Bench, stream: bool) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    for _ in range(20):
        assert right(proxy.post({**BODY, "stream": stream}), stream)
    assert p.connections <= 3  # a health check may run beside a request
    assert d.connections <= 3
