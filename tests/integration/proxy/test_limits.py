"""Limits on the prefill leg, and requests of several prompts or choices (situation 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Bench

BASE: dict[str, Any] = {"model": "m", "prompt": "hello", "temperature": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "min_tokens": {"max_tokens": 50, "min_tokens": 10},
    "newer limit": {"max_completion_tokens": 12},
    "both limits": {"max_tokens": 50, "max_completion_tokens": 9},
    "usage": {"max_tokens": 4, "stream_options": {"include_usage": True}},
    "stop": {"max_tokens": 40, "stop": ["5", "31"]},
    "n": {"max_tokens": 6, "n": 2},
    "n with seed": {"max_tokens": 6, "n": 3, "seed": 7},
    "list": {"max_tokens": 6, "prompt": ["one", "two"]},
    "list of token lists": {"max_tokens": 3, "prompt": [[1, 2, 3], [4, 5]]},
    "token list": {"max_tokens": 3, "prompt": [1, 2, 3]},
    "list and n": {"max_tokens": 3, "prompt": ["one", "two", "three"], "n": 2},
    "list of one": {"max_tokens": 3, "prompt": ["one"]},
    "no limit": {},
}


def choices_of(events: list[Any]) -> dict[int, str]:
    """Return each choice's text from a stream."""
    texts: dict[int, str] = {}
    for one in events:
        for choice in one["choices"] if one != "[DONE]" else ():
            said = choice["text"] if "text" in choice else choice["delta"]["content"]
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
@pytest.mark.parametrize("name", VARIANTS)
def test_answer_equals_that_of_one_engine(bench: Bench, name: str, connector: str) -> None:
    p, d = (bench.engine(role, connector=connector) for role in ("producer", "consumer"))
    single = bench.front([bench.engine("aggregated")], connector="none")
    proxy = bench.front([p, d], connector=connector)
    body = {**BASE, **VARIANTS[name]}
    whole = {key: value for key, value in body.items() if key != "stream_options"}
    expected, got = single.post(whole).json, proxy.post(whole).json
    assert got["choices"] == expected["choices"]
    assert got["usage"] == expected["usage"]

    expected_events, got_events = (one.post({**body, "stream": True}).events for one in (single, proxy))
    assert choices_of(got_events) == choices_of(expected_events)
    assert got_events.count("[DONE]") == 1
    assert got_events[-1] == "[DONE]"
    usages = [
        [one["usage"] for one in events if one != "[DONE]" and "usage" in one]
        for events in (expected_events, got_events)
    ]
    assert usages[0] == usages[1]
    assert len({one["id"] for one in got_events[:-1]}) == 1

    prompts = [seen.body.get("prompt") for seen in p.seen]
    assert p.tokens == len(prompts)
    for seen in p.seen:
        assert seen.finished
        assert seen.body.get("stream", False) is False
    for seen in d.seen:
        for key in ("max_tokens", "min_tokens", "max_completion_tokens", "stop"):
            assert seen.body.get(key) == body.get(key)
    assert d.faults == []
    assert bench.kv == {}


def test_chat_with_choices_and_tools(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    body = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 3, "stream": True,
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required", "logprobs": None,
    }  # fmt: skip
    answer = proxy.post(body, "/v1/chat/completions")
    assert answer.status == 200
    assert sorted(choices_of(answer.events)) == [0, 1]
    assert all(one["id"].startswith("chatcmpl-") for one in answer.events[:-1])
    assert [seen.body["tool_choice"] for seen in d.seen] == ["required", "required"]
    assert all(seen.body["tools"] == body["tools"] for seen in [*p.seen, *d.seen])


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_part_refuses_the_whole(bench: Bench, stream: bool) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    proxy = bench.front([p, d])
    bad = {"error": {"message": "too long", "code": 400}}
    p.respond = lambda seen: (400, bad) if seen.body["prompt"] == "bad" else (503, {})
    answer = proxy.post({"model": "m", "prompt": ["bad"] * 3, "stream": stream})
    assert answer.status == 400
    assert answer.json == bad
    assert d.seen == []


def test_death_in_one_part_of_a_stream(bench: Bench) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer", die_after=2)
    proxy = bench.front([p, d])
    answer = proxy.post({"model": "m", "prompt": ["a", "b"], "max_tokens": 6, "stream": True})
    assert answer.status == 200
    assert answer.events[-1]["error"]["code"] == 502
    assert "[DONE]" not in answer.events


@pytest.mark.parametrize(
    ("extra", "param"),
    [({"n": 0}, "n"), ({"n": "2"}, "n"), ({"n": 9999}, "n"), ({"best_of": 3}, "best_of"), ({"prompt": []}, "prompt")],
)
def test_what_cannot_be_split_is_refused(bench: Bench, extra: dict[str, Any], param: str) -> None:
    p, d = bench.engine("producer"), bench.engine("consumer")
    refused = bench.front([p, d]).post({**BASE, **extra})
    assert refused.status == 400
    assert refused.json["error"]["param"] == param
    assert p.seen == []
