"""The clients' side: HTTP/1.1 connections, one request at a time on each, with limits on size and time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

import httptools

from pdctl.proxy.wire import CONTINUE, JSON_TYPE, LAST_CHUNK, Header, chunk, error_body, response_head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pdctl.proxy.upstream import Leg

MAX_HEAD = 64 << 10
HEAD_S = 10.0
BODY_S = 60.0
IDLE_S = 75.0
LINGER_S = 1.0


@dataclass
class Request:
    """One client's request."""

    method: bytes
    target: bytes
    """Path and query as they came."""
    path: str
    headers: list[Header]
    body: bytearray
    old: bool
    """HTTP/1.0: no chunks."""
    keep_alive: bool
    arrived: float
    """Loop time of the last byte."""
    error: tuple[int, str] | None = None
    """Answer this instead of serving: the body was too large, say."""

    def header(self, name: bytes) -> bytes:
        """Return a header; empty if there is none."""
        return next((value for key, value in self.headers if key == name), b"")


@dataclass(eq=False)
class Front:
    """What all client connections share."""

    serve: Callable[[Request, ClientConnection], Awaitable[None]]
    max_body: int
    loop: asyncio.AbstractEventLoop
    connections: set[ClientConnection] = field(default_factory=set)
    closing: bool = False

    def sweep(self, idle_timeout_s: float) -> None:
        """Close connections that are too slow or idle."""
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_time(now, idle_timeout_s)

    def close_idle(self) -> None:
        """Stop keeping connections alive: idle ones go now, the others after their answer."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_if_idle()


class ClientConnection(asyncio.Protocol):
    """One TCP connection from a client. Its methods below `asyncio.Protocol` are what a request's task answers with."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.legs: set[Leg] = set()
        """The legs whose bytes are being relayed: paused when the client is slower."""
        self.answered = False
        """The current answer's head has been written."""
        self.status = 0
        self.phase = "queued"
        """Where the current request is, for the metrics of disconnects."""
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = "idle"
        self._since = front.loop.time()
        self._ending = False
        self._paused = False
        self._target = bytearray()
        self._headers: list[Header] = []
        self._body = bytearray()
        self._head_size = 0
        self._broken: tuple[int, str] | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.front.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.front.connections.discard(self)
        self._transport = None
        self._parser = None
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._ending or self._parser is None:
            return
        if self._state == "idle":
            self._enter("head")
        elif self._state == "body":
            self._since = self.front.loop.time()
        if self._state == "head":
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "upgrades are not supported")
        except httptools.HttpParserError as error:
            self._refuse(*(self._broken or (400, f"not HTTP: {error}")))
        else:
            if self._state == "head" and self._head_size > MAX_HEAD:
                self._refuse(431, "the headers are too large")
            elif self._broken and self._state != "idle":
                self._refuse(*self._broken)
        if self._current is not None and self._queue and self._transport is not None:
            self._transport.pause_reading()  # pipelined: one at a time

    def pause_writing(self) -> None:
        self._paused = True
        for leg in self.legs:
            leg.pause()

    def resume_writing(self) -> None:
        self._paused = False
        for leg in self.legs:
            leg.resume()

    # httptools

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._enter("body")
        length, expects, encoded = b"", False, False
        for name, value in self._headers:
            if name == b"content-length":
                length = value
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
            elif name == b"content-encoding":
                encoded = value.lower() not in (b"", b"identity")
        if length.isdigit() and int(length) > self.front.max_body:
            self._broken = (413, f"the body is larger than {self.front.max_body} bytes")
        elif encoded:
            self._broken = (415, "encoded request bodies are not taken")
        elif expects and self._current is None:
            self._write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self._broken is None and len(self._body) + len(body) > self.front.max_body:
            self._broken = (413, f"the body is larger than {self.front.max_body} bytes")
        if self._broken is None:
            self._body += body

    def on_message_complete(self) -> None:
        parser = cast("httptools.HttpRequestParser", self._parser)
        path = self._target.partition(b"?")[0].decode("latin-1")
        if path.startswith("http://"):
            path = "/" + path[7:].partition("/")[2]
        request = Request(
            method=parser.get_method(),
            target=bytes(self._target),
            path=path,
            headers=self._headers,
            body=self._body,
            old=parser.get_http_version() == "1.0",
            keep_alive=parser.should_keep_alive(),
            arrived=self.front.loop.time(),
            error=self._broken,
        )
        self._start_message()
        if self._current is None:
            self._serve(request)
        else:
            self._queue.append(request)

    # what a request's task answers with

    @property
    def loopback(self) -> bool:
        """Whether the client is on this machine, and no other proxy stands between."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        request = self._current
        if not peer or request is None or request.header(b"x-forwarded-for") or request.header(b"forwarded"):
            return False
        address = ip_address(str(peer[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    def respond(self, status: int, body: bytes, headers: Iterable[Header] = (), *, kind: bytes = JSON_TYPE) -> None:
        """Write a whole answer."""
        request = cast("Request", self._current)
        pairs = [*headers]
        if status != 204 and not any(name == b"content-type" for name, _ in pairs):
            pairs.insert(0, (b"content-type", kind))
        keep = request.keep_alive and not self.front.closing and request.error is None
        head = response_head(status, pairs, length=len(body), keep_alive=keep, old=request.old)
        request.keep_alive = keep
        self.answered, self.status = True, status
        if request.method == b"HEAD" or status == 204:
            self._write(head)
        elif len(body) < 65536:
            self._write(head + body)
        else:
            self._write(head)
            self._write(body)

    def start(self, status: int, headers: Iterable[Header]) -> None:
        """Write the head of an answer whose length is not known."""
        request = cast("Request", self._current)
        request.keep_alive = request.keep_alive and not request.old and not self.front.closing
        head = response_head(status, headers, length=None, keep_alive=request.keep_alive, old=request.old)
        self.answered, self.status = True, status
        self._write(head)

    def send(self, data: bytes) -> None:
        """Write a part of an answer's body; nothing if it is empty."""
        if data:
            self._write(data if cast("Request", self._current).old else chunk(data))

    def end(self) -> None:
        """Write the end of an answer of unknown length."""
        if not cast("Request", self._current).old:
            self._write(LAST_CHUNK)

    def follow(self, leg: Leg) -> None:
        """Make a leg as slow as the client."""
        self.legs.add(leg)
        if self._paused:
            leg.pause()
        else:
            leg.resume()

    def check_time(self, now: float, idle_timeout_s: float) -> None:
        """Close if the client has been too slow."""
        waited = now - self._since
        if self._current is not None or self._ending:
            return
        if self._state == "head" and waited > HEAD_S:
            self._refuse(408, "the headers took too long")
        elif self._state == "body" and waited > min(BODY_S, idle_timeout_s):
            self._refuse(408, "the body took too long")
        elif self._state == "idle" and waited > IDLE_S:
            self._close()

    def close_if_idle(self) -> None:
        """Close if no request is in work or on its way."""
        if self._current is None and self._state == "idle":
            self._close()

    def abort(self) -> None:
        """Close without waiting for what is being written."""
        if self._transport is not None:
            self._transport.abort()

    def _start_message(self) -> None:
        self._target = bytearray()
        self._headers = []
        self._body = bytearray()
        self._head_size = 0
        self._broken = None
        self._enter("idle")

    def _enter(self, state: str) -> None:
        self._state = state
        self._since = self.front.loop.time()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        self._ending = True
        if self._transport is not None:
            self._transport.close()

    def _serve(self, request: Request) -> None:
        self._current = request
        self.answered, self.status, self.phase = False, 0, "queued"
        self._task = self.front.loop.create_task(self._run(request))

    async def _run(self, request: Request) -> None:
        try:
            await self.front.serve(request, self)
        finally:
            self.legs.clear()
            self._task = self._current = None
        if request.error is not None:
            self._linger()
        elif not request.keep_alive or self.front.closing:
            self._close()
        elif self._transport is not None:
            self._since = self.front.loop.time()
            if self._queue:
                self._serve(self._queue.popleft())
            if not self._queue and not self._transport.is_reading():
                self._transport.resume_reading()

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that cannot be read to its end, and close."""
        if self._ending:
            return
        if self._current is None:
            headers = [(b"content-type", JSON_TYPE)]
            body = error_body(status, message)
            self._write(response_head(status, headers, length=len(body), keep_alive=False, old=False) + body)
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        # Closing while the client still sends resets the connection, and the answer may be lost with it.
        self._ending = True
        if self._transport is None:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.front.loop.call_later(LINGER_S, self._transport.close)
