"""Requests that one engine serves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.proxy.answers import Cleaner
from pdctl.proxy.context import AnotherError, Context, final
from pdctl.proxy.delivery import Opened
from pdctl.proxy.failures import LegError, Passed
from pdctl.proxy.wire import request_head, returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.proxy.fleet import Instance


async def open_plain(
    context: Context, roles: Sequence[str], *, target: bytes, common: bytes, public: str, parts: Sequence[bytes]
) -> Opened:
    """Send a request to the first role that has a healthy instance; raises Refused and Passed."""
    tried: set[Instance] = set()
    failed: AnotherError | None = None
    for _ in range(context.options.retries + 1):
        instance = next((one for one in (context.fleet.choose(role, tried) for role in roles) if one), None)
        if instance is None:
            break
        if failed is not None:
            context.metrics.retries.add(failed.instance.role)
        try:
            return await _attempt(context, instance, parts, target=target, common=common, public=public)
        except AnotherError as error:
            failed = error
            tried.add(instance)
    if failed is not None:
        raise final(failed)
    raise context.unavailable(" or ".join(roles))


async def _attempt(
    context: Context, instance: Instance, parts: Sequence[bytes], *, target: bytes, common: bytes, public: str
) -> Opened:
    identity = public.encode()
    head = request_head(
        b"POST", target, instance.host_header, common=common, request_id=identity, length=sum(map(len, parts))
    )
    instance.in_flight += 1
    sent_at = context.loop.time()
    try:
        leg = await context.ask(instance, head, parts)
        opened = Opened(context, instance, leg, Cleaner(identity, identity), sent_at)
        await check_status(opened, identity, identity)
    except BaseException:
        instance.in_flight -= 1
        raise
    return opened


async def check_status(opened: Opened, internal: bytes, public: bytes) -> None:
    """Return if the engine answered 2xx; raises Passed with its own answer, or AnotherError for a 5xx."""
    leg, context = opened.leg, opened.context
    if 200 <= leg.status < 300:
        return
    try:
        body = await leg.read()
    except LegError as error:
        raise context.leg_failed(opened.instance, error) from error
    except BaseException:
        leg.abort()
        raise
    if leg.status >= 500 or leg.status < 400:
        raise context.answered_5xx(opened.instance, leg.status)
    context.fleet.succeeded(opened.instance)
    cleaned = Cleaner(internal, public).whole(body)
    raise Passed(leg.status, returned(leg.headers), cleaned)
