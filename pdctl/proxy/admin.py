"""What the proxy answers itself: health, metrics, models, versions, instances."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from pdctl import __version__
from pdctl.proxy.context import RETRY_AFTER_S, Context
from pdctl.proxy.failures import LegError, Refused
from pdctl.proxy.metrics import label
from pdctl.proxy.options import ROLES
from pdctl.proxy.wire import Header, forwarded, request_head

if TYPE_CHECKING:
    from pdctl.proxy.front import ClientConnection, Request

PATHS = frozenset(("/health", "/ping", "/metrics", "/version", "/v1/models", "/pdctl/instances"))
_COUNTS = (("healthy_instances", "Instances in rotation."), ("known_instances", "Instances known."))
_FRESH_S = 2.0
_ASK_S = 5.0
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Models:
    """The list of models, from whichever engine can tell; kept for when none can for a moment."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = b""
        self._until = 0.0

    async def body(self, request: Request) -> bytes:
        """Return the list; raises Refused. A caller with a key of its own is judged by an engine each time."""
        now = self._context.loop.time()
        keyed = self._context.options.api_key is None and bool(request.header(b"authorization"))
        if not keyed and self._body and now < self._until:
            return self._body
        instances = sorted(self._context.fleet.instances, key=lambda one: (not one.healthy, one.in_flight))
        common = forwarded(request.headers, keep_authorization=self._context.options.api_key is None)
        for instance in instances:
            head = request_head(
                b"GET", b"/v1/models", instance.host_header, common=common, request_id=b"pdctl-models", length=None
            )
            try:
                status, body = await asyncio.wait_for(_get(instance.pool.ask(head)), _ASK_S)
            except (LegError, asyncio.TimeoutError):
                continue
            if status == 401:
                raise Refused(401, "the API key is missing or wrong")
            if status == 200:
                if not keyed:
                    self._body, self._until = body, now + _FRESH_S
                return body
        if self._body and not keyed and instances:
            return self._body
        raise Refused(503, "no engine can tell its models", retry_after_s=RETRY_AFTER_S)


async def _get(asking: Any) -> tuple[int, bytes]:
    leg = await asking
    try:
        return leg.status, await leg.read()
    finally:
        leg.abort()


async def answer(
    context: Context, models: Models, request: Request, connection: ClientConnection, *, path: str, extra: list[Header]
) -> None:
    """Answer a GET or HEAD; raises Refused."""
    if path in ("/health", "/ping"):
        body = health(context)
        good = not body["missing"]
        wait: list[Header] = [] if good else [(b"retry-after", str(RETRY_AFTER_S).encode())]
        connection.respond(200 if good else 503, orjson.dumps(body), [*extra, *wait])
    elif path == "/metrics":
        connection.respond(200, metrics(context).encode(), extra, kind=_TEXT)
    elif path == "/version":
        connection.respond(200, orjson.dumps({"version": __version__, "server": "pdctl-proxy"}), extra)
    elif path == "/v1/models":
        connection.respond(200, await models.body(request), extra)
    elif path == "/pdctl/instances":
        if not connection.loopback:
            raise Refused(403, "only for clients on this machine")
        connection.respond(200, orjson.dumps(instances(context)), extra)
    else:
        raise Refused(404, "there is no such path")


def health(context: Context) -> dict[str, Any]:
    """Return the front's health: good if the default route has a healthy instance of each role that it needs."""
    missing = context.missing()
    counts = {}
    for role in ROLES:
        healthy, known = context.fleet.count(role)
        counts[role] = {"healthy": healthy, "known": known}
    text = f"no healthy {' and no healthy '.join(missing)}" if missing else "ok"
    return {"status": "unavailable" if missing else "ok", "missing": missing, "message": text, "instances": counts}


def metrics(context: Context) -> str:
    """Return the metrics in Prometheus' text format."""
    counts = {role: context.fleet.count(role) for role in ROLES}
    rows = [
        (name, text, f'{{role="{role}"}}', float(counts[role][place]))
        for place, (name, text) in enumerate(_COUNTS)
        for role in ROLES
    ]
    for one in context.fleet.instances:
        labels = f'{{instance="{label(one.name)}",role="{one.role}"}}'
        rows.append(("instance_in_flight", "Requests in work at an instance.", labels, float(one.in_flight)))
    model = label(context.options.model or "")
    named = f'{{version="{__version__}",connector="{context.options.connector}",model="{model}"}}'
    rows.append(("build", "Always 1.", named, 1.0))
    return context.metrics.render(context.loop.time(), rows)


def instances(context: Context) -> dict[str, Any]:
    """Return every instance with its state, for people on this machine."""
    now = context.loop.time()
    return {
        "schema": 1,
        "connector": context.options.connector,
        "model": context.options.model,
        "instances": [
            {
                "name": one.name,
                "role": one.role,
                "url": one.target.url,
                "kv_address": one.target.kv_address,
                "healthy": one.healthy,
                "registered": one.registered,
                "avoided": one.broken_until > now,
                "reason": one.reason or None,
                "in_flight": one.in_flight,
                "served": one.served,
                "silent_s": round(one.pool.longest_silence(now), 3),
            }
            for one in context.fleet.instances
        ],
    }
