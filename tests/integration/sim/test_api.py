"""The API's forms, whole and streamed, and clients that leave."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conftest import eventually, free_block
from tests.integration.sim.engines import A, B, Sim, Start, nixl

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """One engine for all: nothing here changes it."""
    import subprocess
    import sys

    port, log = free_block(), tmp_path_factory.mktemp("sim") / "log"
    argv = [sys.executable, "-m", "pdctl.sim", "--port", str(port), "--sim-startup", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    engine = Sim(process, f"http://127.0.0.1:{port}", log)
    try:
        eventually(engine.healthy, 20)
        yield engine
    finally:
        process.kill()
        process.wait()


def connect(one: Sim) -> closing[http.client.HTTPConnection]:
    parts = urlsplit(one.url)
    return closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10))


def send(connection: http.client.HTTPConnection, body: dict[str, Any], path: str = "/v1/completions") -> None:
    text = json.dumps({"temperature": 0, **body})
    connection.request("POST", path, text, {"content-type": "application/json"})


def events(one: Sim, body: dict[str, Any], path: str = "/v1/completions") -> list[dict[str, Any]]:
    with connect(one) as connection:
        send(connection, {**body, "stream": True}, path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert (answer.getheader("content-type") or "").startswith("text/event-stream")
        blocks = answer.read().decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_a_stream_adds_up_to_the_whole(one: Sim) -> None:
    body = {"prompt": [A, B], "n": 2, "max_tokens": 4, "return_token_ids": True, "logprobs": 1, "echo": True}
    whole = one.post(body)
    texts, ids, reasons = [""] * 4, [[] for _ in range(4)], [""] * 4
    for event in events(one, body):
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] += choice["text"]
            ids[index] += choice.get("token_ids", [])
            reasons[index] = choice["finish_reason"] or reasons[index]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert ids == [choice["token_ids"] for choice in whole["choices"]]
    assert reasons == ["length"] * 4


def test_a_chat_streams_role_content_and_usage(one: Sim) -> None:
    body = {**HELLO, "max_tokens": 3, "n": 2}
    whole = one.post(body, CHAT)
    streamed = events(one, {**body, "stream_options": {"include_usage": True}}, CHAT)
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 6
    for index in range(2):
        mine = [choice for event in streamed for choice in event["choices"] if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]
    assert "usage" not in events(one, body, CHAT)[-1]


def test_a_stop_text_cuts_the_stream_as_it_cuts_the_whole(one: Sim) -> None:
    words = one.post({"prompt": A, "max_tokens": 8})["choices"][0]["text"].split()
    body = {"prompt": A, "max_tokens": 8, "stop": [words[3]]}
    whole = one.post(body)["choices"][0]
    streamed = "".join(event["choices"][0]["text"] for event in events(one, body))
    assert streamed == whole["text"]
    assert whole["text"].split() == words[:3]


def test_token_prompts_and_text_prompts_are_the_same(one: Sim) -> None:
    ids = one.post({"prompt": A}, "/tokenize")["tokens"]
    assert one.post({"tokens": ids}, "/detokenize")["prompt"] == A
    by_ids, by_text = (one.post({"prompt": prompt})["choices"][0]["text"] for prompt in (ids, A))
    assert by_ids == by_text
    several = one.post({"prompt": [ids, ids[:-1]]})
    assert several["choices"][0]["text"] == by_text != several["choices"][1]["text"]
    assert several["usage"]["prompt_tokens"] == 2 * len(ids) - 1


def test_logprobs_can_name_tokens_by_id(one: Sim) -> None:
    body = {"prompt": A, "logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True}
    choice = one.post(body)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert choice["prompt_token_ids"] == one.post({"prompt": A}, "/tokenize")["tokens"]
    chat = one.post({**HELLO, "logprobs": True, "max_tokens": 2}, CHAT)["choices"][0]
    assert "".join(part["token"] for part in chat["logprobs"]["content"]) == chat["message"]["content"]


def test_seeds_decide_where_the_temperature_does_not(one: Sim) -> None:
    def ask(**more: Any) -> str:
        text: str = one.post({"prompt": A, "max_tokens": 6, **more})["choices"][0]["text"]
        return text

    assert ask() == ask()
    assert ask(temperature=1, seed=1) == ask(temperature=1, seed=1) != ask(temperature=1, seed=2)


@pytest.mark.parametrize(
    ("text", "path", "code"),
    [("{", "/v1/completions", 400), ("[]", CHAT, 400), ('{"model": "else"}', CHAT, 404), ("{}", "/v1/nothing", 404)],
)
def test_what_cannot_be_asked(one: Sim, text: str, path: str, code: int) -> None:
    with connect(one) as connection:
        connection.request("POST", path, text)
        answer = connection.getresponse()
        answer.read()
    assert answer.status == code


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": "x", "max_tokens": 1, "min_tokens": 5}, "min_tokens must be less than or equal to max_tokens"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream=True"),
        ({"prompt": [1] * 9000}, "maximum context length"),
        ({"prompt": ""}, "cannot be empty"),
        ({"prompt": "x", "n": 0}, "n must be at least 1"),
    ],
)
def test_requests_are_refused_in_vllms_form(one: Sim, body: dict[str, Any], says: str) -> None:
    code, answer = one.status(body)
    assert code == 400
    assert says in json.loads(answer)["error"]["message"]


def test_a_refusal_of_a_stream_is_an_http_error(one: Sim) -> None:
    with connect(one) as connection:
        send(connection, {"prompt": "x", "stream": True, "min_tokens": 50})
        answer = connection.getresponse()
        assert answer.status == 400
        assert "min_tokens" in json.loads(answer.read())["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(start: Start, stream: bool) -> None:
    one = start("--sim-decode-ms", "20")
    with connect(one) as connection:
        send(connection, {"prompt": A, "n": 3, "max_tokens": 2000, "ignore_eos": True, "stream": stream})
        eventually(lambda: one.metric("vllm:num_requests_running") == 3, 5, "three are running")
    eventually(lambda: one.metric("vllm:num_requests_running") == 0, 2, "none is running")
    assert one.metric("vllm:generation_tokens") < 1000, "it stopped, it did not finish"
    assert one.post({"prompt": A, "max_tokens": 1})["usage"]["completion_tokens"] == 1


def test_a_stream_whose_load_fails_is_an_http_error(start: Start) -> None:
    producer, consumer = nixl(start, "kv_producer", "--sim-drop-kv"), nixl(start, "kv_consumer")
    asked = {"prompt": A, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    params = producer.post(asked)["kv_transfer_params"]
    with connect(consumer) as connection:
        send(connection, {"prompt": A, "stream": True, "kv_transfer_params": params})
        answer = connection.getresponse()
        assert answer.status == 500
        assert json.loads(answer.read())["error"]["code"] == 500
