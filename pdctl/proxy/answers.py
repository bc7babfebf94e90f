"""What a client may see of an engine's answer: no internal id, no hand-over, the producer's cached tokens. Pure."""

from __future__ import annotations

from typing import Any

import orjson

_KV = b'"kv_transfer_params"'
_CACHED = b'"prompt_tokens_details"'


class Cleaner:
    """Cleans the answers of one leg.

    `internal` and `public` are the request ids: with P2pNccl the internal one holds addresses. `cached_tokens` is the
    producer's figure: the consumer counts the whole prompt as cached, because it got it (router#193).
    """

    __slots__ = ("_cached", "_carry", "_internal", "_public")

    def __init__(self, internal: bytes, public: bytes, cached_tokens: int | None = None) -> None:
        self._internal = internal if internal != public else b""
        self._public = public
        self._cached = cached_tokens
        self._carry = b""

    def whole(self, body: bytes) -> bytes:
        """Return a whole JSON answer, cleaned; bytes that need nothing are returned as they are."""
        if self._internal:
            body = body.replace(self._internal, self._public)
        if _KV in body or (self._cached is not None and _CACHED in body):
            return self._rewritten(body)
        return body

    def events(self, data: bytes) -> bytes:
        """Return the server-sent events that are complete after `data`; the rest waits for more."""
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if not data.endswith((b"\n\n", b"\r\n\r\n")):
            cut = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3)
            if cut < 3:
                self._carry = data
                return b""
            self._carry = data[cut:]
            data = data[:cut]
        if self._internal:
            data = data.replace(self._internal, self._public)
        if _KV in data or (self._cached is not None and _CACHED in data):
            return b"".join(self._event(line) for line in data.splitlines(keepends=True))
        return data

    def rest(self) -> bytes:
        """Return what is left at the end of a stream that ended in order."""
        rest, self._carry = self._carry, b""
        return rest.replace(self._internal, self._public) if self._internal else rest

    def _event(self, line: bytes) -> bytes:
        if not line.startswith(b"data:") or (_KV not in line and _CACHED not in line):
            return line
        text = line.rstrip(b"\r\n")
        return b"data: " + self._rewritten(text[5:].strip()) + line[len(text) :]

    def _rewritten(self, body: bytes) -> bytes:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return body
        return orjson.dumps(answer) if isinstance(answer, dict) and self.object(answer) else body

    def object(self, answer: dict[str, Any]) -> bool:
        """Clean a parsed answer in place; return whether anything was changed."""
        changed = "kv_transfer_params" in answer
        answer.pop("kv_transfer_params", None)
        usage = answer.get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        if self._cached is not None and isinstance(details, dict) and "cached_tokens" in details:
            changed = changed or details["cached_tokens"] != self._cached
            details["cached_tokens"] = self._cached
        return changed


def cached_tokens(answer: dict[str, Any]) -> int | None:
    """Return how many prompt tokens a producer took from its cache; None if it does not tell."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    value = details.get("cached_tokens") if isinstance(details, dict) else None
    return value if isinstance(value, int) else None


def event(payload: bytes) -> bytes:
    """Return one server-sent event."""
    return b"data: " + payload + b"\n\n"
