"""The HTTP API of a simulated engine."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pdctl import __version__
from pdctl.sim.answers import Stream, whole
from pdctl.sim.links import EngineDead, LoadFailed
from pdctl.sim.request import BadRequest, Job, read_job
from pdctl.vllm.version import format_version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pdctl.sim.engine import Engine

_MOST_BODY = 256 * 2**20
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error"}


class Api:
    """Routes over one engine. `dead` is set when a request has killed it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dead = asyncio.Event()

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=_MOST_BODY)
        get, post = app.router.add_get, app.router.add_post
        get("/health", self._health)
        get("/ping", self._health)
        get("/v1/models", self._models)
        get("/version", self._version)
        get("/metrics", self._metrics)
        post("/v1/completions", self._logged(self._completions))
        post("/v1/chat/completions", self._logged(self._chat))
        post("/tokenize", self._logged(self._tokenize))
        post("/detokenize", self._logged(self._detokenize))
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.dead.is_set() else 200)

    async def _models(self, request: web.Request) -> web.Response:
        options = self._engine.options
        card = {
            "id": options.served_name, "object": "model", "created": int(time.time()), "owned_by": "pdctl-sim", "root": options.model,
            "parent": None, "max_model_len": options.max_model_len, "permission": [],
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [card]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"version": f"sim {__version__}", "follows": format_version(self._engine.options.version)}
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self._engine.metrics.text(), content_type="text/plain", charset="utf-8")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await _body(request)
        model = body.get("model")
        if model is not None and model not in (self._engine.options.served_name, self._engine.options.model):
            return _error(404, f"The model `{model}` does not exist.", "NotFoundError")
        job = read_job(
            self._engine, body, chat=chat, request_id=request.headers.get("X-Request-Id") or uuid.uuid4().hex
        )
        return await self._streamed(request, job) if job.stream else await self._at_once(job)

    async def _at_once(self, job: Job) -> web.Response:
        async def run(index: int) -> None:
            async for _ in self._engine.generate(job.generations[index]):
                pass

        await _gather([run(index) for index in range(len(job.generations))])
        return web.json_response(whole(self._engine, job))

    async def _streamed(self, request: web.Request, job: Job) -> web.StreamResponse:
        """Stream all choices; the answer is opened with the first token, so that an error before it is an HTTP error."""
        stream = Stream(self._engine, job)
        events: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()

        async def run(index: int) -> None:
            opened = False
            async for piece in self._engine.generate(job.generations[index]):
                if not opened:
                    for event in stream.opening(index):
                        events.put_nowait(event)
                    opened = True
                events.put_nowait(stream.token(index, piece))

        async def all_of_them() -> None:
            try:
                await _gather([run(index) for index in range(len(job.generations))])
                events.put_nowait(None)
            except (LoadFailed, EngineDead) as error:
                events.put_nowait(error)

        task = asyncio.create_task(all_of_them())
        try:
            first = await events.get()
            if isinstance(first, BaseException):
                raise first
            answer = web.StreamResponse(
                headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            )
            await answer.prepare(request)
            event: bytes | BaseException | None = first
            while event is not None:
                if isinstance(event, BaseException):
                    await answer.write(
                        b"data: " + json.dumps(_error_body(500, str(event), "InternalServerError")).encode() + b"\n\n"
                    )
                    break
                await answer.write(event)
                event = await events.get()
            await answer.write(stream.closing())
            await answer.write_eof()
            return answer
        finally:
            task.cancel()

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await _body(request)
        ids = self._engine.tokenizer.encode(str(body.get("prompt", "")))
        return web.json_response(
            {"count": len(ids), "max_model_len": self._engine.options.max_model_len, "tokens": ids, "token_strs": None}
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await _body(request)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(
            isinstance(one, int) and 0 <= one < self._engine.tokenizer.size for one in tokens
        ):
            raise BadRequest("tokens must be a list of token ids")
        return web.json_response({"prompt": self._engine.tokenizer.decode(tokens)})

    def _logged(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Turn exceptions into vLLM's errors, and log each request as uvicorn does."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                answer = await handler(request)
            except BadRequest as error:
                answer = _error(400, str(error), "BadRequestError")
            except LoadFailed:
                answer = _error(500, "Internal server error", "InternalServerError")
            except EngineDead as error:
                self.dead.set()
                answer = _error(
                    500,
                    f"EngineCore encountered an issue. See stack trace (above) for the root cause. {type(error).__name__}",
                    "InternalServerError",
                )
            peer = request.transport.get_extra_info("peername") if request.transport else None
            where = f"{peer[0]}:{peer[1]}" if peer else "-"
            print(
                f'INFO:     {where} - "POST {request.path} HTTP/1.1" {answer.status} {_REASONS.get(answer.status, "")}',
                flush=True,
            )
            return answer

        return guarded


async def _gather(runs: list[Any]) -> None:
    """Run all; when one fails the others are cancelled."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise BadRequest(f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _error(status: int, message: str, kind: str) -> web.Response:
    return web.json_response(_error_body(status, message, kind), status=status)


def _error_body(status: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
