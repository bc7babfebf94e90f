"""A Nixl pair by hand: who is read from, how long, and what a failure costs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import eventually, free_block
from tests.integration.sim.engines import NIXL, A, B, Sim, Start, nixl


def prefill(producer: Sim, prompt: str = A) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    params: dict[str, Any] = producer.post(body)["kv_transfer_params"]
    return params


def decode(consumer: Sim, params: Mapping[str, Any], prompt: str = B) -> tuple[int, str]:
    return consumer.status({"prompt": prompt, "max_tokens": 6, "kv_transfer_params": dict(params)})


def usable(one: Sim) -> bool:
    return decode(one, {})[0] == 200 and one.healthy()


def test_kv_is_read_once(start: Start) -> None:
    producer, consumer = nixl(start, "kv_producer"), nixl(start, "kv_consumer")
    params = prefill(producer)
    assert decode(consumer, params)[0] == 200
    assert decode(consumer, params)[0] == 500, "the blocks were freed after the first read"
    assert "holds no blocks" in consumer.log.read_text()
    assert consumer.metric("vllm:nixl_num_failed_transfers") == 1
    assert usable(consumer)


def test_the_wrong_engine_takes_nothing_away(start: Start) -> None:
    producer, consumer = nixl(start, "kv_producer"), nixl(start, "kv_consumer")
    params = prefill(producer)
    code, body = decode(consumer, {**params, "remote_engine_id": "somebody-else"})
    assert code == 500
    assert json.loads(body)["error"]["type"] == "InternalServerError"
    assert "engine ID mismatch. Expected somebody-else" in consumer.log.read_text()
    assert decode(consumer, params)[0] == 200, "the KV is still there for whoever was meant"


@pytest.mark.slow
def test_a_dead_producer_fails_the_request_within_seconds(start: Start) -> None:
    producer, consumer = nixl(start, "kv_producer"), nixl(start, "kv_consumer")
    params = prefill(producer)
    producer.process.kill()
    producer.process.wait()
    began = time.monotonic()
    assert decode(consumer, params)[0] == 500
    assert 4 < time.monotonic() - began < 6.5, "vLLM's receive time-out is 5 s"
    assert "does not answer" in consumer.log.read_text()
    assert usable(consumer)


def test_other_weights_are_refused_by_the_hash(start: Start) -> None:
    producer, consumer = nixl(start, "kv_producer"), nixl(start, "kv_consumer", "--sim-seed", "1")
    assert decode(consumer, prefill(producer))[0] == 500
    assert "NIXL compatibility hash mismatch" in consumer.log.read_text()


def test_dropped_kv_can_be_computed_again_on_request(start: Start) -> None:
    producer = nixl(start, "kv_producer", "--sim-drop-kv")
    recompute = {**NIXL, "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_block())}
    consumer = start(config=recompute, env=env)
    alone = consumer.post({"prompt": B, "max_tokens": 6})["choices"][0]["text"]
    answer = consumer.post({"prompt": B, "max_tokens": 6, "kv_transfer_params": prefill(producer)})
    assert answer["choices"][0]["text"] == alone
    assert "Recovered from KV load failure" in consumer.log.read_text()
    assert consumer.metric("vllm:prompt_tokens_by_source", source="external_kv_transfer") == 0


def test_a_lease_that_ends_frees_the_blocks(start: Start) -> None:
    config = {**NIXL, "kv_role": "kv_producer", "kv_connector_extra_config": {"kv_lease_duration": 0.2}}
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_block())}
    producer, consumer = start(config=config, env=env), nixl(start, "kv_consumer")
    params = prefill(producer)
    eventually(lambda: producer.metric("vllm:nixl_num_kv_expired_reqs") == 1, 5, "the lease has ended")
    assert decode(consumer, params)[0] == 500


def test_params_that_name_nobody_park_the_request(start: Start) -> None:
    consumer = nixl(start, "kv_consumer")
    with pytest.raises(TimeoutError):
        consumer.post({"prompt": B, "kv_transfer_params": {"do_remote_prefill": True}}, timeout_s=0.5)
    assert "Got invalid KVTransferParams" in consumer.log.read_text()
    assert usable(consumer), "only that request waits"


def test_a_hung_start_still_ends_on_request(start: Start) -> None:
    first = nixl(start, "kv_producer")
    port = prefill(first)["remote_port"]
    second = nixl(start, "kv_consumer", env={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}, wait=False)
    eventually(lambda: "Address already in use" in second.log.read_text(), 15)
    second.process.terminate()
    assert second.process.wait(5) == 0


@pytest.mark.parametrize(("version", "known"), [("0.23.0", False), ("0.24.0", True)])
def test_the_pull_connector_has_a_first_version(start: Start, version: str, known: bool) -> None:
    config = {"kv_connector": "NixlPullConnector", "kv_role": "kv_producer"}
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_block())}
    one = start("--sim-vllm-version", version, config=config, env=env, wait=known)
    if known:
        assert prefill(one)["do_remote_prefill"] is True
    else:
        assert one.process.wait(10) == 1
        assert "Unsupported connector type: NixlPullConnector" in one.log.read_text()
