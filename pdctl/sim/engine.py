"""The engine: prompts in, tokens out, through the KV that is held."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pdctl.sim.tokens import EOS, Model, Tokenizer

if TYPE_CHECKING:
    from array import array
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from pdctl.sim.links import Link, Loaded
    from pdctl.sim.metrics import Metrics
    from pdctl.sim.options import Options


Result = TypeVar("Result")


@dataclass
class Generation:
    """One prompt on its way to one answer."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    answer_params: dict[str, Any] | None = None
    """kv_transfer_params for the answer, after the prefill."""


class Engine:
    """One simulated engine."""

    def __init__(self, options: Options, metrics: Metrics, link: Link | None) -> None:
        self.options, self.metrics, self.link = options, metrics, link
        self.tokenizer = Tokenizer(options.vocabulary)
        self._model = Model(self.tokenizer.size, options.seed)
        self._steps = asyncio.Lock()
        """Held while one request makes the whole engine wait."""
        self._step: asyncio.Task[Any] | None = None
        self._randomise_ids = options.version >= (0, 14, 0) and not (
            options.version >= (0, 17, 0) and os.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION") == "1"
        )

    def internal_id(self, public: str, index: int) -> str:
        """Return the id inside the engine; with a random suffix from vLLM 0.14 on (v1/engine/input_processor.py)."""
        suffix = f"-{uuid.uuid4().hex[:8]}" if self._randomise_ids else ""
        return f"{public}-{index}{suffix}"

    async def generate(self, sequence: Generation) -> AsyncIterator[str]:
        """Yield the text of each token; `sequence` holds tokens, finish reason and hand-over. Raises LoadFailed, EngineDead."""
        began = time.perf_counter()
        metrics = self.metrics
        if self.link is not None:
            self.link.check(sequence.request_id)
        kv = await self._alone(lambda: self._prefill(sequence))
        metrics.running += 1
        try:
            state = kv[-1]
            for step in range(sequence.max_tokens):
                await self._pause(self.options.decode_s)
                token = self._next(sequence, state, step)
                state = self._model.step(state, token)
                if step == 0:
                    metrics.observe("time_to_first_token_seconds", time.perf_counter() - began)
                    await self._hand_over(sequence, kv)
                piece = self._take(sequence, token)
                if piece or sequence.finish_reason or sequence.tokens:
                    yield piece
                if sequence.finish_reason:
                    break
            sequence.finish_reason = sequence.finish_reason or "length"
            metrics.count("request_success", labels=f'finished_reason="{sequence.finish_reason}"')
        finally:
            metrics.running -= 1
            metrics.count("generation_tokens", len(sequence.tokens))

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Do one request's work, everybody else standing still if the connector is of that kind.

        Once begun it goes on when its client has left: vLLM's worker waits inside its step (v1/p2p/p2p_nccl_engine.py, recv_tensor).
        """
        if self.link is None or not self.link.blocks_engine:
            return await work()
        await self._steps.acquire()
        self._step = asyncio.create_task(work())
        self._step.add_done_callback(lambda _: self._steps.release())
        return await asyncio.shield(self._step)

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        if self._steps.locked():  # another request makes everybody wait
            async with self._steps:
                pass

    async def _prefill(self, sequence: Generation) -> array[int]:
        prompt, count = sequence.prompt, len(sequence.prompt)
        loaded = await self.link.load(sequence.request_id, prompt, sequence.kv_transfer_params) if self.link else None
        external = loaded.external_tokens if loaded else 0
        self._count_sources(count, external)
        if loaded is not None and not self.options.ignore_kv:
            return self._model.prefill(prompt, _usable(loaded, count))
        if count > external:
            await asyncio.sleep((count - external) / self.options.prefill_tokens_per_s)
        return self._model.prefill(prompt)

    async def _hand_over(self, sequence: Generation, kv: array[int]) -> None:
        link = self.link
        if link is not None:
            sequence.answer_params = await self._alone(
                lambda: link.hand_over(sequence.request_id, kv, sequence.kv_transfer_params)
            )

    def _count_sources(self, prompt: int, external: int) -> None:
        metrics = self.metrics
        metrics.count("prompt_tokens", prompt)
        metrics.count("prompt_tokens_by_source", external, 'source="external_kv_transfer"')
        metrics.count("prompt_tokens_by_source", prompt - external, 'source="local_compute"')
        if self.link is not None:
            metrics.count("external_prefix_cache_queries", prompt)
            metrics.count("external_prefix_cache_hits", external)

    def _next(self, sequence: Generation, state: int, step: int) -> int:
        noise = 0 if sequence.temperature == 0 else (sequence.seed * 1_000_003 + step + 1)
        return self._model.next_token(
            state, noise=noise, may_end=not sequence.ignore_eos and step >= sequence.min_tokens
        )

    def _take(self, sequence: Generation, token: int) -> str:
        """Add a token; returns the text that it adds and sets the finish reason."""
        sequence.tokens.append(token)
        if (token == EOS and not sequence.ignore_eos) or token in sequence.stop_token_ids:
            sequence.finish_reason = "stop"
            return ""
        piece = self.tokenizer.decode([token])
        whole = sequence.text + piece
        for text in sequence.stop:
            at = whole.find(text)
            if at >= 0:
                sequence.finish_reason = "stop"
                piece = whole[len(sequence.text) : at] if at > len(sequence.text) else ""
                whole = whole[:at]
                break
        sequence.text = whole
        if sequence.finish_reason is None and len(sequence.tokens) >= sequence.max_tokens:
            sequence.finish_reason = "length"
        return piece


def _usable(loaded: Loaded, count: int) -> Sequence[int]:
    """Return the KV of all prompt tokens but the last, which is always computed here."""
    return loaded.kv[: count - 1]
