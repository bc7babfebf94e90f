"""A simulated engine behaves as vLLM does, also where vLLM fails."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any

import pytest

from tests.conftest import eventually
from tests.integration.sim.engines import NIXL, A, B, Sim, Start, nixl, p2p


def hand_over(producer: Sim, consumer: Sim, changes: dict[str, Any] | None = None, **options: Any) -> Any:
    prefill = producer.post({"prompt": A, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})
    params = {**prefill["kv_transfer_params"], **(changes or {})}
    return consumer.status({"prompt": B, "max_tokens": 6, "kv_transfer_params": params}, **options), consumer.post(
        {
            "prompt": B,
            "max_tokens": 6,
            "kv_transfer_params": producer.post(
                {"prompt": A, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
            )["kv_transfer_params"],
        }
    )["choices"][0]["text"]


@pytest.mark.parametrize(
    ("flags", "follows"), [((), "a"), (("--sim-ignore-kv",), "b"), (("--sim-damage-kv",), "neither")]
)
def test_tokens_follow_the_kv_that_is_held(start: Start, flags: tuple[str, ...], follows: str) -> None:
    producer, consumer = nixl(start, "kv_producer"), nixl(start, "kv_consumer", *flags)
    texts = {
        name: producer.post({"prompt": prompt, "max_tokens": 6})["choices"][0]["text"]
        for name, prompt in (("a", A), ("b", B))
    }
    assert texts["a"] != texts["b"]
    _, text = hand_over(producer, consumer)
    assert text == texts[follows] if follows in texts else text not in texts.values()
    tokens = producer.post({"prompt": A, "max_tokens": 1})["usage"]["prompt_tokens"]
    assert consumer.metric("vllm:prompt_tokens_by_source", source="external_kv_transfer") == 2 * tokens
    assert consumer.metric("vllm:nixl_bytes_transferred_sum") > 0


def test_a_wrong_engine_id_fails_the_request_and_not_the_engine(start: Start) -> None:
    producer, consumer = nixl(start, "kv_producer"), nixl(start, "kv_consumer")
    (code, body), text = hand_over(producer, consumer, {"remote_engine_id": "somebody-else"})
    assert code == 500
    assert json.loads(body)["error"]["code"] == 500
    assert text, "the engine stays usable"
    assert consumer.metric("vllm:nixl_num_failed_transfers") == 1


def test_a_side_channel_clash_hangs_the_start(start: Start) -> None:
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        one = nixl(start, "kv_producer", env={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(taker.getsockname()[1])}, wait=False)
        eventually(lambda: "Exception in thread nixl_handshake_listener" in one.log.read_text(), 15)
        assert "Address already in use" in one.log.read_text()
        assert one.process.poll() is None
        assert not one.healthy()


def test_p2p_moves_kv_by_the_request_id(start: Start) -> None:
    (producer, p), (consumer, d) = p2p(start, "kv_producer", "-tp", "2"), p2p(start, "kv_consumer", "-tp", "2")
    request_id = f"___prefill_addr_{p}___decode_addr_{d}_x1"
    first = producer.post({"prompt": A, "max_tokens": 1}, request_id=request_id)["choices"][0]["text"]
    text = consumer.post({"prompt": B, "max_tokens": 4}, request_id=request_id)["choices"][0]["text"]
    assert text.startswith(first)
    assert (
        consumer.metric("vllm:prompt_tokens_by_source", source="external_kv_transfer")
        == consumer.metric("vllm:prompt_tokens") - 1
    )


def test_p2p_dies_of_a_plain_request(start: Start) -> None:
    one, _ = p2p(start, "kv_consumer")
    assert one.status({"prompt": A})[0] == 500
    assert one.process.wait(10) == 1
    assert "does not contain hostname and port" in one.log.read_text()


def test_p2p_with_random_request_ids_hangs_with_good_health(start: Start) -> None:
    plain = {"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "0"}
    (producer, p), (consumer, d) = p2p(start, "kv_producer", env=plain), p2p(start, "kv_consumer", env=plain)
    request_id = f"___prefill_addr_{p}___decode_addr_{d}_x1"
    producer.post({"prompt": A, "max_tokens": 1}, request_id=request_id)
    with pytest.raises(TimeoutError):
        consumer.post({"prompt": A, "max_tokens": 4}, request_id=request_id, timeout_s=1)
    assert consumer.healthy()
    assert consumer.metric("vllm:num_requests_running") == 0


@pytest.mark.parametrize(
    ("extra", "says"),
    [({"proxy_ip": "127.0.0.1", "proxy_port": 30001}, 'can only concatenate str (not "int") to str'), ({}, "")],
)
def test_p2p_start_failures(start: Start, extra: dict[str, Any], says: str) -> None:
    if says:
        one, _ = p2p(start, "kv_producer", extra=extra, wait=False)
    else:
        _, address = p2p(start, "kv_producer")
        taken = {
            "kv_connector": "P2pNcclConnector",
            "kv_role": "kv_producer",
            "kv_port": int(address.rsplit(":", 1)[1]),
            "kv_connector_extra_config": {"http_port": "1"},
        }
        one = start("--sim-vllm-version", "0.22.1", config=taken, env={"VLLM_HOST_IP": "127.0.0.1"}, wait=False)
        says = "Address already in use (addr='tcp://127.0.0.1"
    assert one.process.wait(15) == 1
    assert says in one.log.read_text()
    assert "Engine core initialization failed" in one.log.read_text(), "the wrapper comes last, as with vLLM"


@pytest.mark.parametrize(
    ("config", "version", "code", "says"),
    [
        ({**NIXL, "kv_role": "kv_producer", "kv_rank": 0}, "0.33.0", 2, "Unexpected keyword argument"),
        ({**NIXL, "kv_role": "prefill"}, "0.33.0", 2, "Input should be 'kv_producer', 'kv_consumer' or 'kv_both'"),
        (NIXL, "0.33.0", 1, "Please specify kv_role"),
        (
            {"kv_connector": "P2pNcclConnector", "kv_role": "kv_producer"},
            "0.24.0",
            1,
            "Unsupported connector type: P2pNcclConnector",
        ),
    ],
)
def test_configs_are_refused_in_vllms_words(
    start: Start, config: dict[str, Any], version: str, code: int, says: str
) -> None:
    one = start("--sim-vllm-version", version, config=config, wait=False)
    assert one.process.wait(15) == code
    assert says in one.log.read_text()


def test_answers_in_all_their_forms(start: Start) -> None:
    one = start()
    several = one.post(
        {"prompt": [A, B], "n": 2, "max_tokens": 3, "echo": True, "logprobs": 1, "return_token_ids": True}
    )
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert several["choices"][0]["text"].startswith(A)
    assert several["choices"][2]["text"].startswith(B)
    assert several["choices"][0]["token_ids"] == several["choices"][1]["token_ids"], "temperature 0"
    assert len(several["choices"][0]["logprobs"]["tokens"]) == 3
    assert several["usage"]["completion_tokens"] == 12
    words = several["choices"][0]["text"][len(A) :].split()
    cut = one.post({"prompt": A, "max_tokens": 9, "stop": [words[1]]})["choices"][0]
    assert (cut["finish_reason"], cut["text"].strip()) == ("stop", words[0])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_openai_client_reads_the_streams(start: Start) -> None:
    import openai

    one = start()
    with openai.OpenAI(base_url=f"{one.url}/v1", api_key="x") as client:
        whole = client.completions.create(model="tiny", prompt=A, max_tokens=5, temperature=0).choices[0].text
        events = list(client.completions.create(model="tiny", prompt=A, max_tokens=5, temperature=0, stream=True))
        assert "".join(event.choices[0].text for event in events) == whole
        chat = list(
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=4,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert chat[0].choices[0].delta.role == "assistant"
    assert chat[-1].usage is not None
    assert chat[-1].usage.completion_tokens == 4
    with urllib.request.urlopen(f"{one.url}/version", timeout=5) as answer:
        assert json.load(answer)["version"].startswith("sim "), "it never pretends to be vLLM"
