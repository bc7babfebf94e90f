"""One answer out of the answers to a request that was split. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pdctl.proxy.body import Unit

_DONE = b"[DONE]"


def merge_answers(answers: list[dict[str, Any]], units: list[Unit]) -> dict[str, Any]:
    """Return the answer that one engine would have given: choices in order, usage summed."""
    merged = dict(answers[0])
    choices = [
        {**choice, "index": unit.index}
        for answer, unit in zip(answers, units, strict=True)
        for choice in answer.get("choices") or ()
    ]
    merged["choices"] = sorted(choices, key=lambda choice: choice["index"])
    usage = sum_usage([(answer.get("usage"), unit) for answer, unit in zip(answers, units, strict=True)])
    if usage is not None:
        merged["usage"] = usage
    return merged


def sum_usage(usages: list[tuple[Any, Unit]]) -> dict[str, Any] | None:
    """Return the usage of all units: a prompt counts once, however many choices it has."""
    known = [(usage, unit) for usage, unit in usages if isinstance(usage, dict)]
    if not known:
        return None
    total = dict(known[0][0])
    prompts = [usage for usage, unit in known if unit.counts_prompt]
    total["prompt_tokens"] = sum(usage.get("prompt_tokens") or 0 for usage in prompts)
    total["completion_tokens"] = sum(usage.get("completion_tokens") or 0 for usage, _ in known)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    details = [
        usage["prompt_tokens_details"] for usage in prompts if isinstance(usage.get("prompt_tokens_details"), dict)
    ]
    if details:
        cached = sum(detail.get("cached_tokens") or 0 for detail in details)
        total["prompt_tokens_details"] = {**details[0], "cached_tokens": cached}
    return total


class EventMerger:
    """Turns the units' event streams into one."""

    def __init__(self, identity: str, *, include_usage: bool) -> None:
        self._id = identity
        self._include_usage = include_usage
        self._usages: list[tuple[Any, Unit]] = []
        self._last: dict[str, Any] = {}
        self._created: Any = None

    def take(self, unit: Unit, events: bytes) -> bytes:
        """Return what goes to the client for complete events of one unit: right index, one id, no usage, no end."""
        out = []
        for block in events.replace(b"\r\n", b"\n").split(b"\n\n"):
            payload = b"".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
            if not payload:
                if block.strip():
                    out.append(block + b"\n\n")  # comments keep a connection alive
                continue
            if payload != _DONE:
                out.append(self._event(unit, payload))
        return b"".join(out)

    def end(self) -> bytes:
        """Return the usage of all, if the client asked for it, and the end of the stream."""
        usage = sum_usage(self._usages) if self._include_usage else None
        last = b""
        if usage is not None:
            last = b"data: " + orjson.dumps({**self._last, "choices": [], "usage": usage}) + b"\n\n"
        return last + b"data: " + _DONE + b"\n\n"

    def _event(self, unit: Unit, payload: bytes) -> bytes:
        try:
            body = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return b"data: " + payload + b"\n\n"
        if not isinstance(body, dict) or "error" in body:
            return b"data: " + payload + b"\n\n"
        if self._created is None:
            self._created = body.get("created")
        body["id"] = self._id
        if "created" in body:
            body["created"] = self._created
        choices = body.get("choices")
        if not choices and body.get("usage") is not None:
            self._usages.append((body["usage"], unit))
            self._last = {key: value for key, value in body.items() if key not in ("choices", "usage")}
            return b""
        for choice in choices or ():
            choice["index"] = unit.index
        return b"data: " + orjson.dumps(body) + b"\n\n"
