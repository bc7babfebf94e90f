"""Bringing an opened leg's answer to the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.proxy.answers import Cleaner, event
from pdctl.proxy.context import AnotherError, Context, stage_of
from pdctl.proxy.failures import LegError, Refused
from pdctl.proxy.wire import Header, error_body, returned

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.proxy.fleet import Instance
    from pdctl.proxy.front import ClientConnection
    from pdctl.proxy.upstream import Leg


@dataclass(eq=False)
class Opened:
    """A leg whose answer has begun with HTTP 200; must be closed."""

    context: Context
    instance: Instance
    leg: Leg
    cleaner: Cleaner
    sent_at: float

    @property
    def streams(self) -> bool:
        return self.leg.header(b"content-type").startswith(b"text/event-stream")

    def close(self) -> None:
        """Let the instance go; ends the leg if it still runs."""
        self.leg.abort()
        self.instance.in_flight -= 1


def relay_events(opened: Opened, sink: Callable[[bytes], None]) -> None:
    """Give the leg's complete events, cleaned, to `sink` from now on."""
    leg, clean = opened.leg, opened.cleaner.events
    context = opened.context
    context.metrics.first_byte.observe(context.loop.time() - opened.sent_at)
    leg.relay(lambda data: sink(clean(data)))


async def whole(opened: Opened) -> bytes:
    """Return the whole answer, cleaned; raises Refused."""
    context = opened.context
    try:
        body = await opened.leg.read()
    except LegError as error:
        failed = context.leg_failed(opened.instance, error)
        raise (failed if isinstance(failed, Refused) else Refused(502, str(failed))) from error
    context.metrics.first_byte.observe(context.loop.time() - opened.sent_at)
    context.fleet.succeeded(opened.instance)
    return opened.cleaner.whole(body)


async def ended(opened: Opened) -> bytes | None:
    """Wait for the end of a relayed stream; return None if it was in order, else an error event for the client."""
    try:
        await opened.leg.finished
    except LegError as error:
        failed = opened.context.leg_failed(opened.instance, error)
        status = 504 if error.timeout else 502
        text = str(failed) if isinstance(failed, (Refused, AnotherError)) else ""
        return event(error_body(status, text or f"the {stage_of(opened.instance)} engine failed"))
    opened.context.fleet.succeeded(opened.instance)
    return None


async def deliver(opened: Opened, connection: ClientConnection, extra: list[Header]) -> None:
    """Bring one leg's answer to the client, streamed if the engine streams it."""
    headers = [*returned(opened.leg.headers), *extra]
    if not opened.streams:
        body = await whole(opened)
        connection.respond(opened.leg.status, body, headers)
        return
    connection.start(opened.leg.status, headers)
    connection.follow(opened.leg)
    relay_events(opened, connection.send)
    trouble = await ended(opened)
    connection.send(opened.cleaner.rest() if trouble is None else trouble)
    connection.end()
