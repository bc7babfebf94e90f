"""The client's body: the few knobs that matter, splitting, and splicing. Pure; engines judge all the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pdctl.proxy.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
KV = "kv_transfer_params"
MAX_UNITS = 1024
"""Prompts x n of one request."""


@dataclass(frozen=True)
class Unit:
    """One prompt with one choice: what one prefill and one decode serve."""

    index: int
    """Of its choice in the client's answer."""
    counts_prompt: bool
    """Whether its prompt tokens count in the usage: a prompt's first choice."""
    overrides: Mapping[str, Any]
    """What replaces the client's keys; None removes one."""


@dataclass
class Asked:
    """A client's request, parsed once."""

    raw: bytes | bytearray
    """Body as it came."""
    body: dict[str, Any]
    stream: bool
    include_usage: bool
    units: list[Unit]
    spliceable: bool
    """Whether `raw` can go to an engine as it is: no kv_transfer_params of the client's own in it."""

    @property
    def split(self) -> bool:
        return len(self.units) > 1


def parse_object(raw: bytes | bytearray) -> dict[str, Any]:
    """Return a body that must be a JSON object; raises Refused(400)."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def parse_asked(path: str, raw: bytes | bytearray) -> Asked:
    """Return a completion or chat request; raises Refused(400) for what cannot be split or is not an object."""
    body = parse_object(raw)
    clean = strip_kv(body)
    options = body.get("stream_options")
    include = isinstance(options, dict) and bool(options.get("include_usage"))
    stream = body.get("stream") is True
    return Asked(raw, body, stream, stream and include, split(path, body), clean)


def strip_kv(body: dict[str, Any]) -> bool:
    """Remove the client's own hand-over parameters; return whether there were none.

    With them a client could have an engine read from an address of its choice. `vllm_xargs` is the other way in
    (vLLM 0.22.1, entrypoints/openai/chat_completion/protocol.py: both end in `extra_args`).
    """
    clean = KV not in body
    body.pop(KV, None)
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and KV in extra:
        body["vllm_xargs"] = {key: value for key, value in extra.items() if key != KV}
        clean = False
    return clean


def needs_one_engine(path: str, body: Mapping[str, Any]) -> str | None:
    """Return the option that only an engine that does prefill and decode itself can serve; None if there is none."""
    if body.get("use_beam_search"):
        return "use_beam_search"
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    if path == COMPLETIONS and body.get("echo") and body.get("logprobs") is not None:
        return "echo"
    return None


def split(path: str, body: Mapping[str, Any]) -> list[Unit]:
    """Return the units of a request: prompts in order, each with its n choices (vLLM: index = prompt * n + choice)."""
    count = _choices(body)
    prompts = _prompts(body) if path == COMPLETIONS else [{}]
    if len(prompts) * count > MAX_UNITS:
        raise Refused(400, f"prompts x n is {len(prompts)} x {count}; at most {MAX_UNITS} are taken", param="n")
    if len(prompts) * count == 1:
        return [Unit(0, True, {})]
    seed = body.get("seed")
    units = []
    for number, prompt in enumerate(prompts):
        for choice in range(count):
            overrides = {**prompt, "n": 1, "best_of": None}
            if count > 1 and isinstance(seed, int):
                overrides["seed"] = seed + choice  # as vLLM's ParentRequest does for its children
            units.append(Unit(number * count + choice, choice == 0, overrides))
    return units


def _choices(body: Mapping[str, Any]) -> int:
    count = body.get("n")
    count = 1 if count is None else count
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise Refused(400, "`n` must be a whole number of at least 1", param="n")
    best_of = body.get("best_of")
    if isinstance(best_of, int) and best_of > count:
        raise Refused(400, "`best_of` above `n` is not supported", param="best_of")
    return count


def _prompts(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    embeds, prompt = body.get("prompt_embeds"), body.get("prompt")
    found: list[dict[str, Any]] = []
    if embeds:
        found += [{"prompt_embeds": one, "prompt": None} for one in (embeds if isinstance(embeds, list) else [embeds])]
        if prompt is None or prompt == "":
            return found if len(found) > 1 else [{}]
    if not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int)):
        return [*found, {"prompt": prompt, "prompt_embeds": None}] if found else [{}]
    if not prompt:
        raise Refused(400, "`prompt` must not be an empty list", param="prompt")
    if not found and len(prompt) == 1:
        return [{}]
    return [*found, *({"prompt": one, "prompt_embeds": None} for one in prompt)]


def unit_body(asked: Asked, unit: Unit) -> dict[str, Any]:
    """Return the client's body for one unit."""
    if not unit.overrides:
        return asked.body
    body = {**asked.body, **unit.overrides}
    return {key: value for key, value in body.items() if value is not None or key not in unit.overrides}


def decode_parts(asked: Asked, unit: Unit, params: Mapping[str, Any] | None) -> list[bytes]:
    """Return the consumer's body as parts to write one after the other; the client's bytes stay as they are.

    `params` are spliced in before the last brace; a key that stands twice counts the second time.
    """
    if unit.overrides or not asked.spliceable:
        body = unit_body(asked, unit)
        return [orjson.dumps({**body, KV: params} if params is not None else body)]
    raw = asked.raw
    if params is None:
        return [bytes(raw)]
    end = raw.rindex(b"}")
    comma = b"," if asked.body else b""
    splice = b'%b"%b":%b}' % (comma, KV.encode(), orjson.dumps(params))
    if len(raw) < 65536:
        return [bytes(raw[:end]) + splice]
    return [bytes(memoryview(raw)[:end]), splice]
