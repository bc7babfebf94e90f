"""What each request is: a route, and the answer to everything that goes wrong on it."""

from __future__ import annotations

import asyncio
import hmac
import re
from typing import TYPE_CHECKING
from uuid import uuid4

import orjson

from pdctl.proxy import admin
from pdctl.proxy.body import CHAT, COMPLETIONS, Asked, Unit, needs_one_engine, parse_asked, parse_object, strip_kv
from pdctl.proxy.delivery import deliver
from pdctl.proxy.failures import Passed, Refused
from pdctl.proxy.log import say
from pdctl.proxy.pd import Disaggregated
from pdctl.proxy.plain import open_plain
from pdctl.proxy.split import Split
from pdctl.proxy.wire import Header, error_body, forwarded

if TYPE_CHECKING:
    from pdctl.proxy.context import Context
    from pdctl.proxy.front import ClientConnection, Request

AGGREGATED = "/aggregated"
"""Path prefix that picks the aggregated replicas, as the header `x-pdctl-route: aggregated` does."""
_PD = {COMPLETIONS: "completions", CHAT: "chat"}
# An engine's other paths change it (sleep, flush, adapters): not for whoever can send a prompt.
_PLAIN = re.compile(
    r"/v1/(?!load_lora|unload_lora)[a-z0-9_/-]+|/v2/rerank|/(tokenize|detokenize|pooling|classify|score|rerank)"
)


class Service:
    """Serves requests, whichever connection they come on."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._models = admin.Models(context)

    async def serve(self, request: Request, connection: ClientConnection) -> None:
        """Answer a request; never raises but for cancellation, which means that the client has left."""
        context = self._context
        path, aggregated = self._path(request)
        route = _PD.get(path) or ("other" if request.method == b"POST" else "admin")
        public = _public_id(request.header(b"x-request-id"))
        context.metrics.in_flight += route != "admin"
        extra: list[Header] = [(b"x-request-id", public.encode())]
        try:
            await self._answer(request, connection, path, aggregated, extra)
        except Refused as error:
            _refuse(connection, error, extra)
        except Passed as error:
            connection.respond(error.status, error.body, [*error.headers, *extra])
        except asyncio.CancelledError:
            context.metrics.disconnects.add(connection.phase)
            raise
        except Exception as error:  # noqa: BLE001 - a client must not be left without an answer
            say(f"internal error: {type(error).__name__} while serving {path}")
            if connection.answered:
                request.keep_alive = False
            else:
                _refuse(connection, Refused(500, "the proxy failed"), extra)
        finally:
            context.metrics.in_flight -= route != "admin"
            context.metrics.requests.add(route, str(connection.status or 499))
            if route != "admin":
                context.metrics.duration.observe(context.loop.time() - request.arrived)

    def _path(self, request: Request) -> tuple[str, bool]:
        aggregated = request.header(b"x-pdctl-route") == b"aggregated"
        if request.path.startswith(AGGREGATED + "/"):
            return request.path[len(AGGREGATED) :], True
        return request.path, aggregated

    async def _answer(
        self, request: Request, connection: ClientConnection, path: str, aggregated: bool, extra: list[Header]
    ) -> None:
        if request.error is not None:
            raise Refused(*request.error)
        if request.method == b"OPTIONS":
            connection.respond(204, b"", [(b"allow", b"GET, HEAD, POST, OPTIONS"), *extra])
            return
        self._check_key(request, path)
        if request.method in (b"GET", b"HEAD"):
            await admin.answer(self._context, self._models, request, connection, path=path, extra=extra)
        elif request.method != b"POST" or path in admin.PATHS:
            raise Refused(405, "the method is not allowed")
        elif aggregated or not self._context.disaggregated:
            await self._plain(request, connection, path, roles=("aggregated",), extra=extra)
        elif path in _PD:
            await self._disaggregated(request, connection, path, extra)
        else:
            handover = self._context.handover
            if handover is not None and handover.plain_requests_kill:
                if not self._context.fleet.count("aggregated")[1]:
                    raise Refused(501, "this path needs an aggregated replica: the connector's engines cannot serve it")
                await self._plain(request, connection, path, roles=("aggregated",), extra=extra)
            else:
                await self._plain(request, connection, path, roles=("aggregated", "consumer", "producer"), extra=extra)

    def _check_key(self, request: Request, path: str) -> None:
        key = self._context.options.api_key
        if key is None or (request.method != b"POST" and not path.startswith("/v1/")):
            return
        scheme, _, given = request.header(b"authorization").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), key.encode()):
            raise Refused(401, "the API key is missing or wrong")

    async def _disaggregated(
        self, request: Request, connection: ClientConnection, path: str, extra: list[Header]
    ) -> None:
        context = self._context
        if context.handover is None:
            raise Refused(500, "no connector is set")
        asked = parse_asked(path, request.body)
        work = Disaggregated(
            context,
            context.handover,
            connection,
            asked,
            target=request.target,
            common=self._common(request),
            public=extra[0][1].decode(),
        )
        reason = needs_one_engine(path, asked.body)
        if reason is not None:
            await self._one_engine(work, request, connection, reason, extra)
            return
        if asked.split:
            await Split(work, connection, path, extra).deliver()
            return
        opened = await work.open(asked.units[0])
        try:
            await deliver(opened, connection, _marked(work, extra))
        finally:
            opened.close()

    async def _one_engine(
        self, work: Disaggregated, request: Request, connection: ClientConnection, reason: str, extra: list[Header]
    ) -> None:
        """Serve what a consumer cannot answer with KV that it got: the prompt's own logits, and beams."""
        context = self._context
        if context.fleet.count("aggregated")[0]:
            await self._plain(request, connection, request.path, roles=("aggregated",), extra=extra, asked=work.asked)
            return
        kills = context.handover is not None and context.handover.plain_requests_kill
        if context.options.fallback != "decode" or kills:
            raise Refused(
                400, f"`{reason}` needs an engine that does prefill and decode: an aggregated replica", param=reason
            )
        opened = await work.decode_alone(Unit(0, True, {}), reason)
        try:
            await deliver(opened, connection, _marked(work, extra))
        finally:
            opened.close()

    async def _plain(
        self,
        request: Request,
        connection: ClientConnection,
        path: str,
        *,
        roles: tuple[str, ...],
        extra: list[Header],
        asked: Asked | None = None,
    ) -> None:
        if not _PLAIN.fullmatch(path):
            raise Refused(404, "there is no such path")
        context = self._context
        if asked is None:
            parts = _plain_parts(request, path)
        else:
            parts = [bytes(asked.raw) if asked.spliceable else orjson.dumps(asked.body)]
        query = request.target.partition(b"?")
        target = path.encode("latin-1") + query[1] + query[2]
        connection.phase = "plain"
        opened = await open_plain(
            context, roles, target=target, common=self._common(request), public=extra[0][1].decode(), parts=parts
        )
        try:
            routed = b"aggregated" if opened.instance.role == "aggregated" else b"plain"
            await deliver(opened, connection, [(b"x-pdctl-route", routed), *extra])
        finally:
            opened.close()

    def _common(self, request: Request) -> bytes:
        return forwarded(request.headers, keep_authorization=self._context.options.api_key is None)


def _plain_parts(request: Request, path: str) -> list[bytes]:
    """Return a body for one engine: as it came, but without hand-over parameters of the client's own."""
    if request.header(b"content-type").lower().startswith(b"multipart/"):
        if path in _PD:
            raise Refused(415, "the body must be JSON")
        return [bytes(request.body)]
    body = parse_object(request.body)
    return [bytes(request.body) if strip_kv(body) else orjson.dumps(body)]


def _marked(work: Disaggregated, extra: list[Header]) -> list[Header]:
    return [*extra, (b"x-pdctl-fallback", b"decode")] if work.fallback else extra


def _public_id(given: bytes) -> str:
    """Return the request's id for the client and the logs: its own, as far as the engines take its letters."""
    text = re.sub(r"[^A-Za-z0-9_-]", "_", given.decode("latin-1"))[:128]
    return text or uuid4().hex


def _refuse(connection: ClientConnection, error: Refused, extra: list[Header]) -> None:
    headers = list(extra)
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    connection.respond(error.status, error_body(error.status, error.message, param=error.param), headers)
