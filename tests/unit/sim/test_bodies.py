"""Request bodies: whatever a client sends is a job or a 400; metrics are Prometheus text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.sim.engine import Engine
from pdctl.sim.metrics import Metrics
from pdctl.sim.options import parse_options
from pdctl.sim.request import BadRequest, Job, read_job
from pdctl.vllm.metrics import parse_metrics

ENGINE = Engine(parse_options(["--max-model-len", "100"]), Metrics("tiny"), None)
SCALARS = st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "text", "x"]), inner),
    max_leaves=6,
)  # fmt: skip
KEYS = (
    "prompt", "messages", "n", "max_tokens", "min_tokens", "max_completion_tokens", "stream", "stream_options", "stop", "stop_token_ids",
    "temperature", "seed", "logprobs", "echo", "ignore_eos", "kv_transfer_params", "return_token_ids",
)  # fmt: skip


def read(body: dict[str, Any], *, chat: bool = False) -> Job:
    return read_job(ENGINE, body, chat=chat, request_id="r")


@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.booleans(), st.booleans())
def test_any_body_is_a_job_or_a_bad_request(body: dict[str, Any], chat: bool, sound: bool) -> None:
    if sound:
        body = {**body, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    try:
        job = read(body, chat=chat)
    except BadRequest as error:
        assert str(error)
        return
    for one in job.generations:
        assert one.max_tokens >= 1
        assert len(one.prompt) + one.max_tokens <= 100
        assert all(isinstance(text, str) for text in one.stop)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"seed": "x"}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x", ""]}, "empty string"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stream_options": "x", "stream": True}, "stream_options"),
        ({"kv_transfer_params": "x"}, "kv_transfer_params"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"min_tokens": 17}, "max_tokens=16"),
        ({"max_tokens": 100}, "too large"),
        ({"prompt": [1, 5000]}, "out of vocabulary"),
        ({"prompt": [[1], "x", 3]}, "prompt must be"),
        ({"prompt": [True]}, "prompt must be"),
    ],
)
def test_the_message_names_what_is_wrong(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        read({"prompt": "x", **change})


def test_messages_that_are_none_are_refused() -> None:
    with pytest.raises(BadRequest, match="messages"):
        read({"messages": ["hello"]}, chat=True)


def test_limits_and_defaults() -> None:
    (plain,) = read({"prompt": [1] * 10}).generations
    assert plain.max_tokens == 16
    (chat,) = read({"messages": [{"role": "user", "content": "x"}]}, chat=True).generations
    assert chat.max_tokens == 100 - len(chat.prompt)
    both = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "max_completion_tokens": 3}
    assert read(both, chat=True).generations[0].max_tokens == 3, "vLLM reads the newer spelling first"
    assert read({"prompt": [1] * 95}).generations[0].max_tokens == 5, "a default is cut, a wish is refused"


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), min_size=1))
def test_metrics_are_read_back(name: str) -> None:
    metrics = Metrics(name, running=3)
    metrics.count("prompt_tokens_by_source", 5, 'source="external_kv_transfer"')
    metrics.count("prompt_tokens_by_source", 2, 'source="local_compute"')
    metrics.observe("nixl_xfer_time_seconds", 0.25)
    read_back = parse_metrics(metrics.text())
    assert read_back.total("vllm:num_requests_running") == 3
    assert read_back.total("vllm:prompt_tokens_by_source") == 7
    assert read_back.total("vllm:prompt_tokens_by_source", source="external_kv_transfer") == 5
    assert read_back.total("vllm:nixl_xfer_time_seconds_sum") == 0.25
    assert read_back.total("vllm:nixl_xfer_time_seconds_bucket", le="0.1") == 0
    assert read_back.total("vllm:nixl_xfer_time_seconds_bucket", le="0.5") == 1
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    assert len(read_back.samples) == len(lines), "every line is a sample"
