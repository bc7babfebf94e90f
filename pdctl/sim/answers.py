"""Generations to OpenAI answers, whole and streamed, in vLLM's form."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.sim.engine import Engine, Generation
    from pdctl.sim.request import Job


def whole(engine: Engine, job: Job) -> dict[str, Any]:
    """Return the answer of finished generations."""
    first = job.generations[0]
    return {
        "id": job.public_id,
        "object": "chat.completion" if job.chat else "text_completion",
        "created": int(time.time()),
        "model": engine.options.served_name,
        "choices": [_choice(engine, job, index, one) for index, one in enumerate(job.generations)],
        "usage": usage(job),
        "kv_transfer_params": first.answer_params,
    }


def usage(job: Job) -> dict[str, Any]:
    """Return token counts over all generations."""
    completion = sum(len(one.tokens) for one in job.generations)
    return {
        "prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens + completion, "completion_tokens": completion,
        "prompt_tokens_details": None,
    }  # fmt: skip


def _choice(engine: Engine, job: Job, index: int, one: Generation) -> dict[str, Any]:
    text = (engine.tokenizer.decode(one.prompt) if job.echo else "") + one.text
    choice: dict[str, Any] = {
        "index": index,
        "logprobs": _logprobs(engine, job, one.tokens),
        "finish_reason": one.finish_reason,
        "stop_reason": None,
    }
    if job.chat:
        choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
    else:
        choice |= {"text": text, "prompt_logprobs": None}
    if job.token_ids:
        choice |= {"token_ids": list(one.tokens), "prompt_token_ids": list(one.prompt)}
    return choice


def _logprobs(engine: Engine, job: Job, tokens: list[int]) -> dict[str, Any] | None:
    if not job.logprobs:
        return None
    names = [f"token_id:{one}" if job.ids_as_tokens else engine.tokenizer.decode([one]) for one in tokens]
    if job.chat:
        return {
            "content": [
                {"token": name, "logprob": -0.1, "bytes": list(name.encode()), "top_logprobs": []} for name in names
            ]
        }
    offsets, at = [], 0
    for one in tokens:
        offsets.append(at)
        at += len(engine.tokenizer.decode([one]))
    return {
        "tokens": names,
        "token_logprobs": [-0.1] * len(names),
        "top_logprobs": [{name: -0.1} for name in names],
        "text_offset": offsets,
    }


class Stream:
    """Events of one streamed answer."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine, self._job = engine, job
        self._head = {
            "id": job.public_id, "object": "chat.completion.chunk" if job.chat else "text_completion", "created": int(time.time()),
            "model": engine.options.served_name,
        }  # fmt: skip

    def opening(self, index: int) -> list[bytes]:
        """Return what comes before the first token of a choice."""
        job = self._job
        if job.chat:
            return [
                self._event(
                    [
                        {
                            "index": index,
                            "delta": {"role": "assistant", "content": ""},
                            "logprobs": None,
                            "finish_reason": None,
                        }
                    ]
                )
            ]
        if job.echo:
            return [
                self._event(
                    [
                        {
                            "index": index,
                            "text": self._engine.tokenizer.decode(job.generations[index].prompt),
                            "logprobs": None,
                            "finish_reason": None,
                            "stop_reason": None,
                        }
                    ]
                )
            ]
        return []

    def token(self, index: int, piece: str) -> bytes:
        """Return the event of a choice's newest token."""
        job, one = self._job, self._job.generations[index]
        logprobs = _logprobs(self._engine, job, one.tokens[-1:])
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": logprobs,
            "finish_reason": one.finish_reason,
            "stop_reason": None,
        }
        if job.chat:
            choice["delta"] = {"content": piece}
        else:
            choice["text"] = piece
        if job.token_ids:
            choice["token_ids"] = one.tokens[-1:]
            if len(one.tokens) == 1:
                choice["prompt_token_ids"] = list(one.prompt)
        return self._event([choice])

    def closing(self) -> bytes:
        """Return the last events."""
        end = b"data: [DONE]\n\n"
        return self._event([], usage(self._job)) + end if self._job.include_usage else end

    def _event(self, choices: list[dict[str, Any]], counts: Mapping[str, Any] | None = None) -> bytes:
        data: dict[str, Any] = {**self._head, "choices": choices}
        if counts is not None:
            data["usage"] = counts
        return b"data: " + json.dumps(data).encode() + b"\n\n"
