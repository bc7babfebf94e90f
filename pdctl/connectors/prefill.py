"""The producer's leg of a request: the same for every connector but for its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_DROPPED = (
    # The limits of the client's answer: one token is wanted here, and `min_tokens must be <= max_tokens` would be a 400.
    "min_tokens", "min_completion_tokens", "stream_options", "best_of",
    # EOS or a stop string would end the request as STOPPED; Nixl up to 0.20.2 hands KV over only for a request that reached its length.
    "stop", "stop_token_ids",
    # One token of a tool call or of JSON cannot be parsed: vLLM answers 500 to required tools on this leg (vllm#38911).
    "tool_choice", "response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
    # Work for nobody: the consumer answers the client.
    "logprobs", "top_logprobs", "prompt_logprobs", "echo", "return_token_ids",
    "kv_transfer_params",
)  # fmt: skip


def prefill_body(body: Mapping[str, Any], kv_transfer_params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the producer's body for a client's: the same prompt, exactly one token, not streamed.

    `tools` stays: it is part of a chat's prompt. vLLM reads `max_completion_tokens` before `max_tokens` in chats, so both are
    capped where the client gave the first.
    """
    prefill = {key: value for key, value in body.items() if key not in _DROPPED}
    prefill |= {"max_tokens": 1, "n": 1, "stream": False, "ignore_eos": True}
    if "max_completion_tokens" in body:
        prefill["max_completion_tokens"] = 1
    if body.get("tools"):
        prefill["tool_choice"] = "none"
    if kv_transfer_params is not None:
        prefill["kv_transfer_params"] = dict(kv_transfer_params)
    return prefill
