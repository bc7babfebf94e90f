"""HTTP/1.1 as bytes: heads, chunks, and which headers travel on."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""

LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON_TYPE = b"application/json"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

# Hop-by-hop (RFC 9110, 7.6.1), rewritten, or none of an engine's business.
_STAYS = frozenset(
    (
        b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
        b"upgrade expect host content-length accept-encoding x-request-id x-pdctl-route cookie forwarded"
    ).split()
)
_RETURNS = frozenset(
    b"content-type cache-control retry-after www-authenticate content-encoding content-disposition".split()
)


def response_head(status: int, headers: Iterable[Header], *, length: int | None, keep_alive: bool, old: bool) -> bytes:
    """Return a response's head. `length` None means chunked, or for HTTP/1.0 (`old`) until the connection closes."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown"))]
    lines.extend(b"%b: %b\r\n" % header for header in headers)
    if length is not None:
        if status != 204:
            lines.append(b"content-length: %d\r\n" % length)
    elif not old:
        lines.append(b"transfer-encoding: chunked\r\n")
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    elif old:
        lines.append(b"connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def forwarded(headers: Iterable[Header], *, keep_authorization: bool) -> bytes:
    """Return the client's headers that go to the engines, as lines."""
    named = b""
    for name, value in headers:
        if name == b"connection":
            named = value.lower()
    dropped = _STAYS.union(part.strip() for part in named.split(b",")) if named else _STAYS
    return b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in dropped and (keep_authorization or name not in (b"authorization", b"x-api-key"))
    )


def returned(headers: Iterable[Header]) -> list[Header]:
    """Return the engine's headers that go to the client; names and addresses of the inside are not among them."""
    return [pair for pair in headers if pair[0] in _RETURNS or pair[0].startswith((b"x-ratelimit-", b"openai-"))]


def request_head(
    method: bytes, path: bytes, host: bytes, *, common: bytes, request_id: bytes, length: int | None
) -> bytes:
    """Return the head of a request to an engine. `common`: the lines that all legs of a request share."""
    sized = b"" if length is None else b"content-length: %d\r\n" % length
    line = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, path, host)
    return b"%b%bx-request-id: %b\r\n%b\r\n" % (line, common, request_id, sized)


def error_body(status: int, message: str, kind: str | None = None, param: str | None = None) -> bytes:
    """Return an error in OpenAI's form."""
    kind = kind or _KINDS.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    501: "not_implemented",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "timeout",
}
