"""A scripted engine on a real socket: answers as vLLM does, and does what a test tells it to do wrong.

Its words depend on the prompt and the choice only, so any number of engines agree. KV is a shared dictionary: a
producer puts what it prefilled under the block's name (Nixl) or the request id (P2pNccl), and a consumer takes it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Seen:
    """One request that reached an engine."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]
    closed_early: bool = False
    """The connection was closed before the answer was complete."""
    finished: bool = False


def words_of(prompt: Any, choice: int, count: int) -> list[str]:
    """Return the words that any engine writes."""
    seed = zlib.crc32(json.dumps([prompt, choice]).encode())
    return [f" w{(seed + 7919 * place) % 1000}" for place in range(count)]


class EngineThread:
    """The event loop that all engines of a test run on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.engines: list[Engine] = []

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def close(self) -> None:
        for engine in self.engines:
            self.call(engine.stop_async())
        self.call(self._settle())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    async def _settle(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass(eq=False)
class Engine:
    """One engine. What a test may set while it runs stands first."""

    threads: EngineThread
    kv: dict[str, Any]
    role: str
    """`producer`, `consumer` or `aggregated`."""
    connector: str = "nixl"
    kv_address: str = ""
    health: int = 200
    fail: tuple[int, dict[str, Any]] | None = None
    """Answer every completion with this."""
    die_after: int | None = None
    """Cut the connection after so many events, or before the head with -1."""
    delay_s: float = 0.0
    gap_s: float = 0.0
    hand_over: bool = True
    details: int | None = None
    """`cached_tokens` to report."""
    closes: bool = False
    """Close each connection after its answer, without having said so: what idle keep-alive races look like."""
    split_bytes: bool = False
    """Send events in pieces that end anywhere."""
    respond: Callable[[Seen], tuple[int, dict[str, Any]]] | None = None
    seen: list[Seen] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    tokens: int = 0
    """Tokens generated."""
    faults: list[str] = field(default_factory=list)
    """What would have hurt a real engine."""
    port: int = 0
    connections: int = 0
    blocks: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def completions(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.path.startswith("/v1/c")]

    def start(self) -> Engine:
        self.threads.call(self.start_async())
        return self

    def stop(self) -> None:
        """Die: close the port and all connections."""
        self.threads.call(self.stop_async())

    async def start_async(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_async(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        if path == "/health":
            await self._json(writer, self.health, {})
            return True
        if path == "/v1/models":
            await self._json(writer, 200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
            return True
        body = json.loads(raw) if raw[:1] == b"{" else {}
        seen = Seen(method, path, headers, raw, body)
        self.seen.append(seen)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        work = asyncio.ensure_future(self._work(seen, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                seen.closed_early = True
                return False
            try:
                return bool(work.result()) and not gone.done() and not self.closes
            except ConnectionError:
                seen.closed_early = True
                return False
        finally:
            self.open -= 1
            await self._cancel(work, gone)

    async def _cancel(self, *tasks: asyncio.Future[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.die_after == -1:
            writer.transport.abort()
            return False
        if self.fail is not None:
            await self._json(writer, *self.fail)
        elif self.respond is not None:
            await self._json(writer, *self.respond(seen))
        elif (refusal := self._refusal(seen.body)) is not None:
            await self._json(writer, 400, {"error": {"message": refusal, "type": "BadRequestError", "code": 400}})
        elif not seen.path.startswith("/v1/c"):
            await self._json(writer, 200, {"path": seen.path, "engine": self.role})
        else:
            return await self._complete(seen, writer)
        seen.finished = True
        return True

    def _refusal(self, body: dict[str, Any]) -> str | None:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        if body.get("min_tokens", 0) > limit:
            return f"min_tokens must be less than or equal to max_tokens={limit}"
        if body.get("stream_options") and not body.get("stream"):
            return "Stream options can only be defined when `stream=True`."
        if body.get("tool_choice") == "required" and limit == 1:
            return "the tool call is not complete"
        return None

    async def _complete(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        body, chat = seen.body, "chat" in seen.path
        identity = ("chatcmpl-" if chat else "cmpl-") + seen.headers.get("x-request-id", "none")
        prompts = self._prompts(body)
        self._take_kv(seen, prompts)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        count = body.get("n") or 1
        # Temperature 0: the choices of a prompt are alike, unless a seed tells them apart.
        seeds = [body["seed"] + choice for choice in range(count)] if "seed" in body else [0] * count
        texts = [words_of(prompt, seed, limit) for prompt in prompts for seed in seeds]
        texts = [self._stopped(text, body.get("stop")) for text in texts]
        usage: dict[str, Any] = {
            "prompt_tokens": sum(len(json.dumps(prompt)) for prompt in prompts),
            "completion_tokens": sum(map(len, texts)),
        }
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        if self.details is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.details}
        answer = {"id": identity, "object": "x", "created": 1, "model": "m"}
        if body.get("stream"):
            return await self._stream(seen, writer, answer, texts, usage)
        self.tokens += usage["completion_tokens"]
        key = "message" if chat else "text"
        choices = []
        for place, text in enumerate(texts):
            said: Any = "".join(text)
            choices.append({"index": place, key: {"content": said} if chat else said, "finish_reason": "length"})
        handed = self._put_kv(seen, prompts)
        await self._json(writer, 200, {**answer, "choices": choices, "usage": usage, "kv_transfer_params": handed})
        seen.finished = True
        return True

    async def _stream(
        self, seen: Seen, writer: asyncio.StreamWriter, answer: dict[str, Any], texts: list[list[str]], usage: Any
    ) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n")
        writer.write(b"x-internal: 10.1.2.3\r\ntransfer-encoding: chunked\r\n\r\n")
        sent = 0
        chat = "chat" in seen.path
        for step in range(max(map(len, texts), default=0)):
            for place, text in enumerate(texts):
                if step >= len(text):
                    continue
                if self.die_after is not None and sent >= self.die_after:
                    await asyncio.sleep(0.01)
                    writer.transport.abort()
                    return False
                said: dict[str, Any] = {"delta": {"content": text[step]}} if chat else {"text": text[step]}
                await self._event(writer, {**answer, "choices": [{"index": place, **said}]})
                sent += 1
                self.tokens += 1
                if self.gap_s:
                    await asyncio.sleep(self.gap_s)
        if (seen.body.get("stream_options") or {}).get("include_usage"):
            await self._event(writer, {**answer, "choices": [], "usage": usage, "kv_transfer_params": {"a": 1}})
        await self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        seen.finished = True
        return True

    async def _event(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        await self._chunk(writer, b"data: " + json.dumps(body).encode() + b"\n\n")

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        pieces = [data[at : at + 17] for at in range(0, len(data), 17)] if self.split_bytes else [data]
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            if self.split_bytes:
                await asyncio.sleep(0)

    async def _json(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nx-internal: 10.1.2.3\r\n" % status
        writer.write(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()

    def _prompts(self, body: dict[str, Any]) -> list[Any]:
        if "messages" in body:
            return [body["messages"]]
        prompt = body.get("prompt")
        return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]

    def _stopped(self, text: list[str], stop: Any) -> list[str]:
        stops = [stop] if isinstance(stop, str) else stop or []
        place = next((place for place, word in enumerate(text) if any(mark in word for mark in stops)), len(text))
        return text[:place]

    def _put_kv(self, seen: Seen, prompts: list[Any]) -> dict[str, Any] | None:
        if self.role != "producer" or not self.hand_over:
            return None
        identity = seen.headers["x-request-id"]
        if self.connector == "p2p_nccl":
            self.kv[identity] = prompts
            return None
        if not (seen.body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            return None
        self.blocks += 1
        block = f"{self.port}/{self.blocks}"
        self.kv[block] = prompts
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[self.blocks]],
            "remote_engine_id": block,
            "remote_request_id": identity,
            "remote_host": "10.1.2.3",
            "remote_port": 5600,
            "tp_size": 1,
        }

    def _take_kv(self, seen: Seen, prompts: list[Any]) -> None:
        if self.role != "consumer":
            return
        if self.connector == "p2p_nccl":
            key = seen.headers["x-request-id"]
        else:
            params = seen.body.get("kv_transfer_params")
            if params is None:
                return
            key = params["remote_engine_id"]
        if self.kv.pop(key, None) != prompts:
            self.faults.append(f"the KV of {key} is not that of {prompts!r}")
