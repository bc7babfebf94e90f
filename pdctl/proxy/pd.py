"""Prefill on a producer, then decode on a consumer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from pdctl.connectors.base import HandOver, HandOverError
from pdctl.proxy.answers import Cleaner, cached_tokens
from pdctl.proxy.body import Asked, Unit, decode_parts, unit_body
from pdctl.proxy.context import AnotherError, Context, final
from pdctl.proxy.delivery import Opened
from pdctl.proxy.failures import LegError, Refused
from pdctl.proxy.log import say
from pdctl.proxy.plain import check_status, open_plain
from pdctl.proxy.wire import request_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.proxy.fleet import Instance
    from pdctl.proxy.front import ClientConnection
    from pdctl.proxy.upstream import Leg

DRAIN_S = 60.0
_NO_HANDOVER = "prefill did not hand over its KV cache"


@dataclass(frozen=True)
class _Handed:
    """What a producer handed over."""

    params: Mapping[str, Any] | None
    """For the consumer; None where the KV was pushed to it."""
    cached: int | None
    internal: str
    """Request id of both legs."""


class Disaggregated:
    """One client's request on its way through producer and consumer."""

    def __init__(
        self,
        context: Context,
        handover: HandOver,
        connection: ClientConnection,
        asked: Asked,
        *,
        target: bytes,
        common: bytes,
        public: str,
    ) -> None:
        self.context = context
        self.asked = asked
        self.public = public
        self.fallback = False
        """A consumer served a unit alone."""
        self._handover = handover
        self._connection = connection
        self._target = target
        self._common = common

    async def open(self, unit: Unit) -> Opened:
        """Have a unit prefilled and return its decode leg, opened; raises Refused and Passed.

        Both engines are chosen before prefill: a P2pNccl producer pushes to the consumer that the request id names and
        hangs if that one is dead.
        """
        tried: set[Instance] = set()
        failed: AnotherError | None = None
        handed: _Handed | None = None
        for attempt in range(self.context.options.retries + 1):
            producer = self.context.fleet.choose("producer", tried)
            consumer = self.context.fleet.choose("consumer", tried)
            if consumer is None or (producer is None and handed is None):
                break
            if failed is not None:
                self.context.metrics.retries.add(failed.instance.role)
            consumer.in_flight += 1
            try:
                if handed is None and producer is not None:
                    handed = await self._prefill(unit, producer, consumer, attempt)
                if handed is not None:
                    return await self._decode(unit, consumer, handed)
            except AnotherError as error:
                failed = error
                tried.add(error.instance)
                handed = self._still_good(handed, error)
                consumer.in_flight -= 1
            except BaseException:
                consumer.in_flight -= 1
                raise
        if handed is not None:
            self.context.metrics.abandon(self.context.loop.time())
        return await self._alone(unit, failed)

    def _still_good(self, handed: _Handed | None, error: AnotherError) -> _Handed | None:
        # Blocks that wait on the producer are still there if the consumer never saw the request; what was pushed to a
        # consumer is lost with it.
        if handed is None or error.instance.role != "consumer":
            return None
        return handed if error.refused and handed.params is not None else None

    async def _alone(self, unit: Unit, failed: AnotherError | None) -> Opened:
        """Let a consumer prefill too, if that is allowed and it was prefill that failed; else raises Refused."""
        missing = next((role for role in ("producer", "consumer") if not self.context.fleet.count(role)[0]), None)
        prefill_failed = failed.instance.role == "producer" if failed else missing == "producer"
        if prefill_failed and self.context.options.fallback == "decode" and not self._handover.plain_requests_kill:
            return await self.decode_alone(unit, "no_producer" if failed is None else "prefill_failed")
        if failed is not None:
            raise final(failed)
        raise self.context.unavailable(missing or "consumer")

    async def decode_alone(self, unit: Unit, reason: str) -> Opened:
        """Return the leg of a consumer that does prefill and decode itself; counted and marked."""
        self.context.metrics.fallbacks.add(reason)
        self.fallback = True
        parts = decode_parts(self.asked, unit, None)
        self._connection.phase = "decode"
        return await open_plain(
            self.context, ("consumer",), target=self._target, common=self._common, public=self.public, parts=parts
        )

    def _unique(self, unit: Unit, attempt: int) -> str:
        if self._handover.plain_requests_kill:
            return uuid4().hex  # the KV is named by it: a client's own id may come twice
        split = f"-{unit.index}" if self.asked.split else ""
        return f"{self.public}{split}{f'-r{attempt}' if attempt else ''}"

    async def _prefill(self, unit: Unit, producer: Instance, consumer: Instance, attempt: int) -> _Handed:
        context = self.context
        self._connection.phase = "prefill"
        internal = self._handover.request_id(self._unique(unit, attempt), producer.peer, consumer.peer)
        body = orjson.dumps(self._handover.prefill_body(unit_body(self.asked, unit)))
        identity = internal.encode()
        head = request_head(
            b"POST", self._target, producer.host_header, common=self._common, request_id=identity, length=len(body)
        )
        started = context.loop.time()
        producer.in_flight += 1
        try:
            leg = await context.ask(producer, head, [body])
            opened = Opened(context, producer, leg, Cleaner(identity, self.public.encode()), started)
            await check_status(opened, identity, self.public.encode())
            answer = await self._read(producer, leg)
        finally:
            producer.in_flight -= 1
        context.metrics.prefill.observe(context.loop.time() - started)
        return self._handed(producer, answer, internal)

    async def _read(self, producer: Instance, leg: Leg) -> bytes:
        """Return a prefill's answer; the client has nothing yet, so if it breaks off another producer may answer."""
        try:
            return await leg.read()
        except LegError as error:
            failed = self.context.leg_failed(producer, error)
            raise failed if error.timeout else AnotherError(producer, 502, str(failed)) from error
        except BaseException:
            leg.abort()
            raise

    def _handed(self, producer: Instance, answer: bytes, internal: str) -> _Handed:
        metrics, fleet = self.context.metrics, self.context.fleet
        try:
            parsed = parse_answer(answer)
            params = self._handover.decode_params(parsed)
        except HandOverError as error:
            metrics.handovers_failed.add()
            say(f"{producer.name}: no hand-over: {error}")
            fleet.failed(producer)
            raise AnotherError(producer, 502, _NO_HANDOVER) from error
        metrics.handovers.add()
        fleet.succeeded(producer)
        return _Handed(params, cached_tokens(parsed), internal)

    async def _decode(self, unit: Unit, consumer: Instance, handed: _Handed) -> Opened:
        """Return the opened decode leg; the caller has reserved the consumer, and `Opened.close` lets it go."""
        context = self.context
        self._connection.phase = "between"
        parts = decode_parts(self.asked, unit, handed.params)
        internal, public = handed.internal.encode(), self.public.encode()
        head = request_head(
            b"POST",
            self._target,
            consumer.host_header,
            common=self._common,
            request_id=internal,
            length=sum(map(len, parts)),
        )
        started = context.loop.time()
        sent: list[bool] = []

        def note() -> None:
            sent.append(True)
            self._connection.phase = "decode"

        try:
            leg = await context.ask(consumer, head, parts, note)
        except asyncio.CancelledError:
            if not sent:
                self._left_between(unit, consumer, handed)
            raise
        opened = Opened(context, consumer, leg, Cleaner(internal, public, handed.cached), started)
        await check_status(opened, internal, public)
        return opened

    def _left_between(self, unit: Unit, consumer: Instance, handed: _Handed) -> None:
        """Release what a producer handed over to a client that has gone.

        Pulled KV waits on the producer until its lease ends: asking a consumer only to abort would race with the pull.
        Pushed KV stays in the consumer for ever unless a request takes it (vLLM 0.22.1, p2p_nccl_engine.py:555-565).
        """
        if handed.params is not None:
            self.context.metrics.abandon(self.context.loop.time())
        else:
            self.context.metrics.drains.add()
            self.context.spawn(self._drain(unit, consumer, handed))

    async def _drain(self, unit: Unit, consumer: Instance, handed: _Handed) -> None:
        body = orjson.dumps(self._handover.prefill_body(unit_body(self.asked, unit)))
        head = request_head(
            b"POST",
            self._target,
            consumer.host_header,
            common=self._common,
            request_id=handed.internal.encode(),
            length=len(body),
        )
        consumer.in_flight += 1
        try:
            leg = await asyncio.wait_for(self.context.ask(consumer, head, [body]), DRAIN_S)
            try:
                await asyncio.wait_for(leg.read(), DRAIN_S)
            finally:
                leg.abort()
        except (AnotherError, Refused, LegError, asyncio.TimeoutError) as error:
            say(f"{consumer.name}: the KV of a client that left was not taken: {error}")
        finally:
            consumer.in_flight -= 1


def parse_answer(raw: bytes) -> dict[str, Any]:
    """Return a producer's answer; raises HandOverError if it is not an object."""
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise HandOverError("the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise HandOverError("the answer is not an object")
    return answer
