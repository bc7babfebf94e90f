"""OpenAI request bodies to generations, refused in vLLM's words where vLLM would refuse them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdctl.sim.engine import Engine, Generation


class BadRequest(Exception):
    """HTTP 400 with this message."""


@dataclass
class Job:
    """One HTTP request: its generations in answer order."""

    public_id: str
    chat: bool
    stream: bool
    include_usage: bool
    echo: bool
    logprobs: bool
    token_ids: bool
    ids_as_tokens: bool
    generations: list[Generation]
    prompt_tokens: int
    """Of all prompts, each counted once."""


def read_job(engine: Engine, body: Mapping[str, Any], *, chat: bool, request_id: str) -> Job:
    """Return what a body asks for. Raises BadRequest."""
    prompts = [_chat_prompt(engine, body)] if chat else _prompts(engine, body)
    count = _whole(body, "n", 1, low=1)
    stream = bool(body.get("stream"))
    stream_options = _mapping(body, "stream_options") or {}
    if stream_options and not stream:
        raise BadRequest("Stream options can only be defined when `stream=True`.")
    public = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
    generations: list[Generation] = []
    for prompt in prompts:
        for _ in range(count):
            generations.append(
                _generation(engine, body, prompt, engine.internal_id(public, len(generations)), chat=chat)
            )
    return Job(
        public_id=public,
        chat=chat,
        stream=stream,
        include_usage=bool(stream_options.get("include_usage")),
        echo=bool(body.get("echo")) and not chat,
        logprobs=bool(body.get("logprobs")) if chat else body.get("logprobs") is not None,
        token_ids=bool(body.get("return_token_ids")),
        ids_as_tokens=bool(body.get("return_tokens_as_token_ids")),
        generations=generations,
        prompt_tokens=sum(len(prompt) for prompt in prompts),
    )


def _generation(
    engine: Engine, body: Mapping[str, Any], prompt: list[int], request_id: str, *, chat: bool
) -> Generation:
    limit = engine.options.max_model_len
    if not prompt:
        raise BadRequest("The decoder prompt cannot be empty")
    if len(prompt) >= limit:
        raise BadRequest(
            f"This model's maximum context length is {limit} tokens. However, your request has {len(prompt)} input tokens. "
            "Please reduce the length of the input messages."
        )
    default = limit - len(prompt) if chat else 16
    given = body.get("max_completion_tokens") if chat else None
    max_tokens = _whole(
        {"max_tokens": given if given is not None else body.get("max_tokens")}, "max_tokens", default, low=1
    )
    min_tokens = _whole(body, "min_tokens", 0, low=0)
    if min_tokens > max_tokens:
        raise BadRequest(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")
    if len(prompt) + max_tokens > limit:
        if body.get("max_tokens") is not None or given is not None:
            raise BadRequest(
                f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length is {limit} tokens "
                f"and your request has {len(prompt)} input tokens ({max_tokens} > {limit} - {len(prompt)})."
            )
        max_tokens = limit - len(prompt)
    stop = body.get("stop") or []
    stop = _list(body, "stop", [stop] if isinstance(stop, str) else stop, str)
    if "" in stop:
        raise BadRequest("stop cannot contain an empty string.")
    temperature = body.get("temperature")
    if temperature is not None and (not _is_number(temperature) or not 0 <= temperature < math.inf):
        raise BadRequest(f"temperature must be non-negative, got {temperature}.")
    seed = body.get("seed")
    if seed is not None and not _is_whole(seed):
        raise BadRequest(f"seed must be an integer, got {seed!r}.")
    return Generation(
        request_id=request_id, prompt=prompt, max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=bool(body.get("ignore_eos")),
        stop=tuple(stop), stop_token_ids=tuple(_list(body, "stop_token_ids", body.get("stop_token_ids") or [], int)),
        temperature=1.0 if temperature is None else float(temperature), seed=random.getrandbits(32) if seed is None else seed,
        kv_transfer_params=_mapping(body, "kv_transfer_params"),
    )  # fmt: skip


def _prompts(engine: Engine, body: Mapping[str, Any]) -> list[list[int]]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [engine.tokenizer.encode(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(_is_whole(one) for one in prompt):
            return [_ids(engine, prompt)]
        return [engine.tokenizer.encode(one) if isinstance(one, str) else _ids(engine, one) for one in prompt]
    raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.")


def _ids(engine: Engine, ids: Any) -> list[int]:
    if not isinstance(ids, list) or not all(_is_whole(one) for one in ids):
        raise BadRequest(
            "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
        )
    beyond = next((one for one in ids if not 0 <= one < engine.tokenizer.size), None)
    if beyond is not None:
        raise BadRequest(f"Token id {beyond} is out of vocabulary")
    return ids


def _chat_prompt(engine: Engine, body: Mapping[str, Any]) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a non-empty list")
    text = ""
    for message in messages:
        if not isinstance(message, Mapping):
            raise BadRequest(f"messages must be objects with a role, got {message!r}")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        text += f"<|{message.get('role', 'user')}|>\n{content or ''}\n"
    return engine.tokenizer.encode(f"{text}<|assistant|>\n")


def _whole(body: Mapping[str, Any], key: str, default: int, *, low: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if not _is_whole(value) or value < low:
        raise BadRequest(f"{key} must be at least {low}, got {value}.")
    return int(value)


def _mapping(body: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"{key} must be an object, got {value!r}")
    return value


def _list(body: Mapping[str, Any], key: str, value: Any, kind: type[int | str]) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise BadRequest(f"{key} must be a list of {'integers' if kind is int else 'strings'}, got {body.get(key)!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    """Say whether a JSON value is an integer: `true` is one only to Python."""
    return isinstance(value, int) and not isinstance(value, bool)
