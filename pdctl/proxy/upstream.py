"""The engines' side: keep-alive connections, and a leg for each request that runs on one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import httptools

from pdctl.proxy.failures import LegError

if TYPE_CHECKING:
    from pdctl.proxy.wire import Header

# uvicorn closes idle connections after 5 s; a request that meets the closing is reset.
KEEP_ALIVE_S = 4.0
MAX_IDLE = 512
Sink = Callable[[bytes], None]


class Leg:
    """One request to one engine, until its answer has ended."""

    __slots__ = (
        "_chunks", "_connection", "_sink", "done", "finished", "headers", "last", "opened", "paused_since", "reused",
        "started", "status", "until_close",
    )  # fmt: skip

    def __init__(self, connection: EngineConnection, loop: asyncio.AbstractEventLoop, *, reused: bool) -> None:
        self._connection: EngineConnection | None = connection
        self._chunks: list[bytes] = []
        self._sink: Sink | None = None
        self.reused = reused
        """The connection had carried another leg before."""
        self.status = 0
        self.headers: list[Header] = []
        self.started = False
        """A byte of the answer has come."""
        self.done = False
        self.until_close = False
        self.last = loop.time()
        self.paused_since: float | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()

    def header(self, name: bytes) -> bytes:
        """Return a header of the answer; empty if there is none."""
        return next((value for key, value in self.headers if key == name), b"")

    async def read(self) -> bytes:
        """Return the whole body; raises LegError."""
        await self.finished
        return b"".join(self._chunks)

    def relay(self, sink: Sink) -> None:
        """Give what has come and all that comes to `sink`, which must not block."""
        chunks, self._chunks = self._chunks, []
        self._sink = sink
        if chunks:
            sink(b"".join(chunks))

    def pause(self) -> None:
        """Stop reading from the engine: the client is slower."""
        if self._connection is not None and self.paused_since is None:
            self.paused_since = self._connection.loop.time()
            self._connection.pause()

    def resume(self) -> None:
        """Go on reading."""
        if self.paused_since is not None:
            self.paused_since = None
            if self._connection is not None:
                self.last = self._connection.loop.time()
                self._connection.resume()

    def abort(self) -> None:
        """Close the connection at once, so that the engine drops the request; nothing if the leg has ended."""
        self.fail(LegError("given up", started=self.opened.done()))

    def take(self, chunks: list[bytes]) -> None:
        """Take body bytes from the connection."""
        if self._sink is None:
            self._chunks.extend(chunks)
        else:
            self._sink(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def open(self) -> None:
        """Note that the answer has begun: its head and the first bytes of its body."""
        if not self.opened.done():
            self.opened.set_result(None)

    def finish(self) -> None:
        """Note that the answer is complete."""
        if not self.done:
            self.done = True
            self._connection = None
            self.open()
            if not self.finished.done():
                self.finished.set_result(None)

    def fail(self, error: LegError) -> None:
        """End the leg and its connection."""
        if self.done:
            return
        self.done = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        for future in (self.opened, self.finished):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever still waits gets it; nobody waiting is no fault


class EngineConnection(asyncio.Protocol):
    """One TCP connection to an engine; carries one leg at a time."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.loop = pool.loop
        self.idle_since = 0.0
        self._leg: Leg | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._headers: list[Header] = []
        self._parts: list[bytes] = []
        self._complete = False
        self._keep = False

    @property
    def usable(self) -> bool:
        """Whether a request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, head: bytes, parts: Sequence[bytes], *, reused: bool) -> Leg:
        """Send a request and return its leg."""
        leg = self._leg = Leg(self, self.loop, reused=reused)
        self._complete = False
        self.pool.active.add(leg)
        transport = cast("asyncio.Transport", self._transport)
        if len(parts) == 1 and len(parts[0]) < 65536:
            transport.write(head + parts[0])
        else:
            transport.write(head)
            for part in parts:
                transport.write(part)  # large bodies are not copied together
        return leg

    def drop(self) -> None:
        """Close without a word."""
        leg, self._leg = self._leg, None
        if leg is not None:
            self.pool.active.discard(leg)
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self.usable and cast("asyncio.Transport", self._transport).is_reading():
            cast("asyncio.Transport", self._transport).pause_reading()

    def resume(self) -> None:
        if self.usable and not cast("asyncio.Transport", self._transport).is_reading():
            cast("asyncio.Transport", self._transport).resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        leg = self._leg
        if leg is None or self._parser is None:
            self.drop()  # bytes that nobody asked for: the next answer would be wrong
            return
        leg.last = self.loop.time()
        leg.started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            leg.fail(LegError(f"the answer is not HTTP: {error}", started=True))
            return
        if self._parts:
            parts, self._parts = self._parts, []
            leg.take(parts)
            leg.open()
        if self._complete:
            self._end(leg)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        leg, self._leg = self._leg, None
        self._transport = None
        self._parser = None  # it refers back to this object
        self.pool.forget(self)
        if leg is None:
            return
        self.pool.active.discard(leg)
        if leg.until_close and exc is None:
            leg.finish()
        else:
            leg.fail(LegError(f"the connection was closed{': ' + str(exc) if exc else ''}", started=leg.opened.done()))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, leg = self._parser, self._leg
        headers, self._headers = self._headers, []
        if leg is None or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            return
        leg.status = status
        leg.headers = headers
        names = {name for name, _ in headers}
        leg.until_close = not names & {b"content-length", b"transfer-encoding"} and status not in (204, 304)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._leg is not None and self._leg.status >= 200:
            self._complete = True
            # Only here: once the parser has left the message it no longer knows.
            self._keep = self._parser is not None and self._parser.should_keep_alive()

    def _end(self, leg: Leg) -> None:
        self._leg = None
        self.pool.active.discard(leg)
        keep = self._keep and not leg.until_close
        self.resume()
        leg.finish()
        if keep and self.usable:
            self.pool.give(self)
        else:
            self.drop()


class Pool:
    """The connections to one engine."""

    def __init__(self, host: str, port: int, *, connect_timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.port = port
        self.loop = loop
        self.connect_timeout_s = connect_timeout_s
        self.active: set[Leg] = set()
        self._idle: list[EngineConnection] = []

    async def ask(self, head: bytes, parts: Sequence[bytes] = (), sent: Callable[[], None] | None = None) -> Leg:
        """Send a request and return its leg once the answer has begun; raises LegError. `sent` is called in between.

        A kept connection that is reset before any byte came had been closed by the engine: sent again on a new one.
        """
        kept = self._take()
        leg = (kept or await self._connect()).begin(head, parts, reused=kept is not None)
        if sent is not None:
            sent()
        try:
            await _begun(leg)
        except LegError as error:
            if not leg.reused or leg.started or error.timeout:
                raise
            leg = (await self._connect()).begin(head, parts, reused=False)
            await _begun(leg)
        return leg

    def give(self, connection: EngineConnection) -> None:
        """Take a connection back for the next request."""
        if len(self._idle) >= MAX_IDLE:
            connection.drop()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """Note that a connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def longest_silence(self, now: float) -> float:
        """Return for how many seconds the most silent request in work has had no byte; 0 without any.

        A P2pNccl engine that waits for KV hangs with /health 200 and all its own counters at 0: this is what shows it.
        """
        return max((now - leg.last for leg in self.active if not leg.paused_since), default=0.0)

    def sweep(self, now: float, idle_timeout_s: float) -> None:
        """Close what has been idle too long, and end legs that have been silent for `idle_timeout_s`."""
        while self._idle and now - self._idle[0].idle_since > KEEP_ALIVE_S:
            self._idle.pop(0).drop()
        for leg in [leg for leg in self.active if now - (leg.paused_since or leg.last) > idle_timeout_s]:
            who = "the client has not read" if leg.paused_since else "no byte came"
            leg.fail(LegError(f"{who} for {idle_timeout_s:g} s", started=leg.opened.done(), timeout=True))

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            connection.drop()
        self._idle.clear()
        for leg in list(self.active):
            leg.abort()

    def _take(self) -> EngineConnection | None:
        now = self.loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < KEEP_ALIVE_S:
                return connection
            connection.drop()
        return None

    async def _connect(self) -> EngineConnection:
        making = self.loop.create_task(self._dial())
        try:
            # Not wait_for: up to Python 3.11 it may swallow the cancellation that tells of a client that has left.
            done, _ = await asyncio.wait((making,), timeout=self.connect_timeout_s)
        except BaseException:
            _discard(making)
            raise
        if not done:
            _discard(making)
            raise LegError(f"no connection within {self.connect_timeout_s:g} s", refused=True)
        try:
            return making.result()
        except OSError as error:
            raise LegError(str(error), refused=True) from error

    async def _dial(self) -> EngineConnection:
        _, connection = await self.loop.create_connection(lambda: EngineConnection(self), self.host, self.port)
        return connection


def _discard(making: asyncio.Task[EngineConnection]) -> None:
    """Give up a connection that is being made."""

    def drop(task: asyncio.Task[EngineConnection]) -> None:
        if not task.cancelled() and task.exception() is None:
            task.result().drop()

    making.cancel()
    making.add_done_callback(drop)


async def _begun(leg: Leg) -> None:
    try:
        await leg.opened
    except BaseException:
        leg.abort()
        raise
