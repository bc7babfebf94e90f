"""Requests of several prompts or choices, served as one prefill and decode each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from pdctl.proxy.answers import event
from pdctl.proxy.body import CHAT, Unit
from pdctl.proxy.delivery import ended, relay_events, whole
from pdctl.proxy.failures import Passed, Refused
from pdctl.proxy.merge import EventMerger, merge_answers
from pdctl.proxy.wire import Header, error_body

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pdctl.proxy.front import ClientConnection
    from pdctl.proxy.pd import Disaggregated

AT_ONCE = 64
"""Units of one request in work at a time."""
_EVENTS: list[Header] = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def all_of(works: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return all results in order; on the first error the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class Split:
    """One client's request with several units."""

    def __init__(self, request: Disaggregated, connection: ClientConnection, path: str, extra: list[Header]) -> None:
        self._request = request
        self._connection = connection
        self._extra = extra
        self._id = f"{'chatcmpl' if path == CHAT else 'cmpl'}-{request.public}"
        self._units = request.asked.units
        self._places = asyncio.Semaphore(AT_ONCE)
        self._merger = EventMerger(self._id, include_usage=request.asked.include_usage)
        self._opened = 0
        self._gate = asyncio.Event()

    async def deliver(self) -> None:
        """Serve all units and bring one answer to the client."""
        if self._request.asked.stream:
            await self._stream()
            return
        answers = await all_of([self._answer(unit) for unit in self._units])
        merged = {**merge_answers(answers, self._units), "id": self._id}
        self._connection.respond(200, orjson.dumps(merged), self._headers())

    def _headers(self) -> list[Header]:
        marked: list[Header] = [(b"x-pdctl-fallback", b"decode")] if self._request.fallback else []
        return [*self._extra, *marked]

    async def _answer(self, unit: Unit) -> dict[str, Any]:
        async with self._places:
            opened = await self._request.open(unit)
            try:
                answer = orjson.loads(await whole(opened))
            except orjson.JSONDecodeError as error:
                raise Refused(502, "the decode engine did not answer with JSON") from error
            finally:
                opened.close()
        if not isinstance(answer, dict):
            raise Refused(502, "the decode engine did not answer with an object")
        return answer

    async def _stream(self) -> None:
        connection = self._connection
        try:
            await all_of([self._unit_stream(unit) for unit in self._units])
        except (Refused, Passed) as error:
            if not connection.answered:
                raise
            message = error.message if isinstance(error, Refused) else "a part of the request was refused"
            connection.send(event(error_body(error.status, message)))
        except _TroubleError as error:
            connection.send(error.event)
        else:
            connection.send(self._merger.end())
        connection.end()

    async def _unit_stream(self, unit: Unit) -> None:
        """Relay one unit; nothing goes out before all that run at once have begun, so that a 400 stays a 400."""
        async with self._places:
            opened = await self._request.open(unit)
            try:
                opened.leg.pause()
                self._opened += 1
                if self._opened >= min(AT_ONCE, len(self._units)):
                    self._gate.set()
                await self._gate.wait()
                if not self._connection.answered:
                    self._connection.start(200, [*_EVENTS, *self._headers()])
                self._connection.follow(opened.leg)
                relay_events(opened, lambda data: self._connection.send(self._merger.take(unit, data)))
                trouble = await ended(opened)
                if trouble is not None:
                    raise _TroubleError(trouble)
                self._connection.send(self._merger.take(unit, opened.cleaner.rest()))
            finally:
                self._connection.legs.discard(opened.leg)
                opened.close()


class _TroubleError(Exception):
    """A unit's engine died mid-stream."""

    def __init__(self, told: bytes) -> None:
        super().__init__("mid-stream")
        self.event = told
