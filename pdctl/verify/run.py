"""Run a verification: swaps through the engines' own ports, equality through the proxy, figures from their metrics."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pdctl.connectors.base import HandOverError, Peer
from pdctl.connectors.registry import find_connector
from pdctl.events import Event, Sink
from pdctl.verify.client import AskFailed, EngineClient
from pdctl.verify.judge import (
    Judgement,
    Swap,
    covering_pairs,
    judge_pair,
    judge_unnamed,
    leading_equal,
    tells_apart,
)
from pdctl.verify.prompts import lengths, prompt_pair, random_prompt
from pdctl.verify.report import FINE, Equality, PairReport, VerifyReport
from pdctl.vllm.metrics import Metrics, growth

if TYPE_CHECKING:
    from pdctl.connectors.base import HandOver
    from pdctl.plan.model import InstancePlan, Plan

Dial = Callable[[str, str, int, float], Any]
_OUTPUT = 8
_TRIES = 5
"""New prompts for a swap whose prompts go on with the same token."""
_CONTACTS = 3
"""Tries for the first hand-over of two engines."""
_EQUALITY_PROMPTS = 4
_FRONT_S = 10.0
"""How long a proxy gets to see that all engines are there."""
_SLOW_GB_PER_S = 2.0
_UNNAMED_LENGTH = 141
"""Tokens of the prompt for connectors that find KV by the prompt: some blocks and a remainder."""
_BIG_BYTES = 50e6
_OPTIONS: dict[str, Any] = {
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "logprobs": 1,
    "return_tokens_as_token_ids": True,
}


def verify_cluster(
    plan: Plan,
    *,
    api_key: str | None = None,
    timeout_s: float = 120.0,
    seed: int | None = None,
    sink: Sink | None = None,
    dial: Dial | None = None,
) -> VerifyReport:
    """Probe a covering set of producer-consumer pairs and the proxy. Never raises for what engines do: that is the report.

    `dial(host, address, port, timeout_s)` opens connections from a host; without it they go out from here.
    """
    began = time.monotonic()
    producers, consumers = plan.by_role("producer"), plan.by_role("consumer")
    if not producers or not consumers or plan.connector is None:
        return VerifyReport((), None, seconds=time.monotonic() - began)
    connector = find_connector(plan.connector)
    if connector.handover is None:
        reason = f"pdctl does not speak the protocol of {connector.class_names[0]} ({connector.protocol})"
        return VerifyReport((), None, seconds=time.monotonic() - began, unverified=reason)
    probe = _Probe(plan, connector.handover, timeout_s, random.Random(seed), api_key, dial)  # noqa: S311 - prompts, no secrets
    names = covering_pairs([one.name for one in producers], [one.name for one in consumers])
    pairs: list[PairReport] = []
    for wave in _waves(names):
        with ThreadPoolExecutor(max_workers=len(wave)) as pool:
            pairs += pool.map(lambda pair: probe.pair(*pair), wave)
        for report in pairs[-len(wave) :]:
            if sink is not None:
                sink.emit(Event("verify", plan.cluster, f"{report.producer} -> {report.consumer}: {report.verdict}"))
    fine = all(pair.verdict in FINE for pair in pairs)
    equality, problem = probe.equality() if fine and plan.url else (None, "")
    met_late = [
        f"{pair.producer} -> {pair.consumer}: the first hand-over failed ({pair.first_contact}); tried again, it worked"
        for pair in pairs
        if pair.first_contact
    ]
    warnings = [*met_late, *probe.slow_paths(pairs), *([problem] if problem else [])]
    return VerifyReport(tuple(pairs), equality, tuple(warnings), time.monotonic() - began)


def _waves(pairs: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return the pairs in groups in which no engine stands twice, so that metrics are one pair's own."""
    waves: list[list[tuple[str, str]]] = []
    for pair in pairs:
        wave = next((one for one in waves if not any(name in other for other in one for name in pair)), None)
        if wave is None:
            waves.append([pair])
        else:
            wave.append(pair)
    return waves


@dataclass(frozen=True)
class _Ends:
    """One producer and one consumer, with their clients."""

    producer: EngineClient
    consumer: EngineClient
    p: Peer
    d: Peer


class _Probe:
    def __init__(
        self,
        plan: Plan,
        handover: HandOver,
        timeout_s: float,
        rng: random.Random,
        api_key: str | None,
        dial: Dial | None,
    ) -> None:
        self._dial = dial
        self._plan, self._timeout_s, self._rng, self._api_key = plan, timeout_s, rng, api_key
        self._handover = handover

    # - swap test -

    def pair(self, producer: str, consumer: str) -> PairReport:
        """Swap a few prompts between two engines and read what their metrics say of it."""
        ends = self._ends(producer, consumer)
        asked = 0
        try:
            before = ends.consumer.metrics()
            limit = ends.producer.max_model_len()
            swaps = []
            if not self._handover.names_kv:
                return self._unnamed(ends, before)
            wanted = lengths(limit, big=self._measures_speed())
            first_contact = self._meet(ends, wanted[0])
            before = ends.consumer.metrics()
            for length in wanted:
                swap, tokens = self._swap(ends, length)
                swaps.append(swap)
                asked += tokens
            after = ends.consumer.metrics()
        except (AskFailed, HandOverError) as error:
            return PairReport(producer, consumer, "error", f"{error}{self._hang_hint(error)}")
        external = growth(before, after, "vllm:prompt_tokens_by_source", source="external_kv_transfer")
        report = self._report(producer, consumer, judge_pair(swaps, external), external, asked, before, after)
        return replace(report, first_contact=first_contact)

    def _meet(self, ends: _Ends, length: int) -> str:
        """Hand one prompt over so that the two engines know each other; returns what failed before it worked. Raises AskFailed.

        Nixl engines shake hands on their first request, with 5 s that nobody can change (0.32.0, v1/nixl/base_worker.py:
        RCVTIMEO): where an engine is busy, that request gets HTTP 500 and the next one is fine. No figure counts this prompt.
        """
        if self._handover.plain_requests_kill:
            return ""
        failed = ""
        for left in reversed(range(_CONTACTS)):
            prompt = random_prompt(self._rng, length)
            try:
                self._hand_over(ends, prompt, prompt, tokens=1)
            except AskFailed as error:
                if left == 0 or error.status is None or error.status < 500:
                    raise
                failed = failed or str(error)
            else:
                break
        return failed

    def _unnamed(self, ends: _Ends, before: Metrics) -> PairReport:
        """Probe a connector that finds KV by the prompt: no other prompt's KV can be handed over, so there is no swap.

        Metrics must claim the prompt's tokens, and the answer must be that of a plain run.
        """
        prompt = random_prompt(self._rng, _UNNAMED_LENGTH)
        truth = self._plainly(ends.producer, prompt)
        _, output = self._hand_over(ends, prompt, prompt, tokens=_OUTPUT)
        after = ends.consumer.metrics()
        external = growth(before, after, "vllm:prompt_tokens_by_source", source="external_kv_transfer")
        return self._report(
            ends.p.name, ends.d.name, judge_unnamed(truth, output, external), external, len(prompt), before, after
        )

    def _ends(self, producer: str, consumer: str) -> _Ends:
        p, d = self._plan.instance(producer), self._plan.instance(consumer)
        return _Ends(
            self._client(p), self._client(d), Peer(p.name, p.url, p.kv_address), Peer(d.name, d.url, d.kv_address)
        )

    def _client(self, instance: InstancePlan) -> EngineClient:
        return self._asker(instance.name, instance.url, instance.host)

    def _asker(self, name: str, url: str, host: str, api_key: str | None = None) -> EngineClient:
        dial = None if self._dial is None else partial(self._dial, host)
        model = self._plan.served_model_name
        return EngineClient(name, url, model, timeout_s=self._timeout_s, api_key=api_key, dial=dial)

    def _swap(self, ends: _Ends, length: int) -> tuple[Swap, int]:
        """Return one swap whose prompts can be told apart, and how many tokens its transfers should have moved.

        The consumer must never have seen prompt B: its own prefix cache would answer instead of the KV that is tested.
        """
        asked = 0
        for _ in range(_TRIES):
            prompts = prompt_pair(self._rng, length)
            if self._handover.plain_requests_kill:
                truth_a, output = self._hand_over(ends, prompts.a, prompts.b, tokens=_OUTPUT)
                # The producer's own first token is the truth; its KV goes to a third prompt, since what is pushed must be taken.
                truth_b, _ = self._hand_over(ends, prompts.b, random_prompt(self._rng, length), tokens=1)
                asked += 2 * (length - 1)  # P2pNccl claims all tokens but the last
            else:
                truth_a, truth_b = (self._plainly(ends.producer, prompt) for prompt in (prompts.a, prompts.b))
                if not tells_apart(truth_a, truth_b):
                    continue
                _, output = self._hand_over(ends, prompts.a, prompts.b, tokens=_OUTPUT)
                asked += length
            if tells_apart(truth_a, truth_b):
                return Swap(length, truth_a, truth_b, output), asked
        return Swap(length, truth_a, truth_b, ()), asked

    def _hand_over(
        self, ends: _Ends, prefilled: list[int], asked: list[int], tokens: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prefill one prompt, ask the consumer for another with its KV; returns (producer's own token, consumer's tokens)."""
        request_id = self._handover.request_id(uuid.uuid4().hex, ends.p, ends.d)
        prefill = ends.producer.complete({**self._handover.prefill_body({"prompt": prefilled}), **_OPTIONS}, request_id)
        params = self._handover.decode_params(prefill.data)
        decode = {"prompt": asked, "max_tokens": tokens, **_OPTIONS}
        if params is not None:
            decode["kv_transfer_params"] = params
        return prefill.tokens, ends.consumer.complete(decode, request_id).tokens

    def _plainly(self, engine: EngineClient, prompt: list[int]) -> tuple[int, ...]:
        return engine.complete({"prompt": prompt, "max_tokens": _OUTPUT, **_OPTIONS}).tokens

    def _measures_speed(self) -> bool:
        return self._plan.device == "gpu" and self._plan.engine_kind == "vllm"

    def _report(
        self,
        producer: str,
        consumer: str,
        judged: Judgement,
        external: float | None,
        asked: int,
        before: Metrics,
        after: Metrics,
    ) -> PairReport:
        moved = growth(before, after, "vllm:nixl_bytes_transferred_sum")
        seconds = growth(before, after, "vllm:nixl_xfer_time_seconds_sum")
        speed = moved / seconds / 1e9 if moved and seconds else None
        failures = growth(before, after, "vllm:nixl_num_failed_transfers")
        tokens = None if external is None else int(external)
        return PairReport(
            producer, consumer, judged.verdict, judged.reason, tokens, asked, moved, seconds, speed, failures
        )

    def _hang_hint(self, error: Exception) -> str:
        if "did not answer within" in str(error) and self._handover.plain_requests_kill:
            return ": it waits for KV that does not come (request ids that differ, a dead peer, or a wrong role)"
        return ""

    # - equality -

    def equality(self) -> tuple[Equality | None, str]:
        """Compare answers through the proxy with plain ones where a plain run is possible."""
        plain = self._plain_engine()
        url = self._plan.url
        if plain is None or url is None:
            return None, ""
        front = self._asker("the proxy", url, self._plan.proxy.host if self._plan.proxy else "", self._api_key)
        equal = wrong = 0
        try:
            front.wait_healthy(min(self._timeout_s, _FRONT_S))
            for _ in range(_EQUALITY_PROMPTS):
                prompt = random_prompt(self._rng, 61)
                body = {"prompt": prompt, "max_tokens": _OUTPUT, **_OPTIONS}
                through, alone = front.complete(body).tokens, self._client(plain).complete(body).tokens
                same = leading_equal(through, alone)
                equal += same == len(alone)
                wrong += same == 0
        except AskFailed as error:
            return Equality(_EQUALITY_PROMPTS, 0, _EQUALITY_PROMPTS, plain.name), str(error)
        return Equality(_EQUALITY_PROMPTS, equal, wrong, plain.name), ""

    def _plain_engine(self) -> InstancePlan | None:
        aggregated = self._plan.by_role("aggregated")
        if aggregated:
            return aggregated[0]
        return None if self._handover.plain_requests_kill else self._plan.by_role("producer")[0]

    # - figures -

    def slow_paths(self, pairs: Sequence[PairReport]) -> list[str]:
        """Name a transport that is far slower than the machine: UCX falls back to TCP without a word."""
        if not self._measures_speed():
            return []
        slow = [
            pair
            for pair in pairs
            if pair.gb_per_s is not None and pair.gb_per_s < _SLOW_GB_PER_S and (pair.bytes or 0) >= _BIG_BYTES
        ]
        return [
            f"{pair.producer} -> {pair.consumer} moved KV at {pair.gb_per_s:.2f} GB/s, as over TCP: on GPUs of one host UCX needs "
            "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on where there is no NVLink; between hosts look at `interface`"
            for pair in slow
        ]
