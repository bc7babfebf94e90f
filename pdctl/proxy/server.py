"""The process: listens, watches, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from pdctl.proxy.context import Context
from pdctl.proxy.fleet import Fleet, Instance
from pdctl.proxy.front import ClientConnection, Front
from pdctl.proxy.health import watch
from pdctl.proxy.log import say
from pdctl.proxy.metrics import Metrics
from pdctl.proxy.service import Service

if TYPE_CHECKING:
    from pdctl.connectors.base import HandOver
    from pdctl.proxy.options import Options
    from pdctl.proxy.registration import Listener, Registry

DRAIN_S = 10.0
BACKLOG = 2048


async def run(options: Options, handover: HandOver | None) -> int:
    """Serve until SIGTERM or SIGINT, then finish what is in work; return the exit code.

    Raises OSError if it cannot listen.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fleet = Fleet(connect_timeout_s=options.connect_timeout_s, loop=loop)
    context = Context(options, handover, fleet, Metrics(), loop)
    front = Front(Service(context).serve, options.max_body, loop)
    tasks: set[asyncio.Task[None]] = set()

    def watched(instance: Instance) -> None:
        task = loop.create_task(watch(fleet, instance))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await loop.create_server(
        lambda: ClientConnection(front), options.bind, options.port, backlog=BACKLOG, reuse_address=True
    )
    fleet.on_add = watched
    for target in options.targets:
        fleet.add(target)
    listener = _registrations(options, context)
    tasks.add(loop.create_task(_sweep(front, context, listener)))
    shown = f"[{options.bind}]" if ":" in options.bind else options.bind
    say(f"pdctl proxy serving on http://{shown}:{server.sockets[0].getsockname()[1]}")
    await stop.wait()
    server.close()
    await _drain(front)
    fleet.instances.clear()
    await _cancel([*tasks, *context.background])
    for pool in fleet.pools:
        pool.close()
    if listener is not None:
        listener[0].close()
    say("pdctl proxy stopped")
    return 0


def _registrations(options: Options, context: Context) -> tuple[Listener, Registry] | None:
    if options.registration is None:
        return None
    from pdctl.proxy.registration import Listener, Registry

    registry = Registry(context.fleet, context.metrics.registrations.add, dynamic=options.dynamic)
    return Listener(options.registration, registry, context.loop), registry


async def _sweep(front: Front, context: Context, listener: tuple[Listener, Registry] | None) -> None:
    idle = context.options.idle_timeout_s
    while True:
        await asyncio.sleep(min(1.0, idle / 4))
        context.fleet.sweep(idle)
        front.sweep(idle)
        if listener is not None:
            listener[1].expire()


async def _drain(front: Front) -> None:
    """Let running requests end, for at most DRAIN_S."""
    front.close_idle()
    running = len(front.connections)
    if running:
        say(f"stopping: waiting for {running} connections")
    deadline = front.loop.time() + DRAIN_S
    while front.connections and front.loop.time() < deadline:
        await asyncio.sleep(0.02)
    for connection in list(front.connections):
        connection.abort()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_empty(front), 1.0)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """End tasks; again and again, as a wait_for may swallow a cancellation (Python up to 3.11)."""
    for _ in range(20):
        for task in tasks:
            task.cancel()
        if not tasks or not (await asyncio.wait(tasks, timeout=0.1))[1]:
            return


async def _empty(front: Front) -> None:
    while front.connections:
        await asyncio.sleep(0.01)


def serve(options: Options, handover: HandOver | None) -> int:
    """Run the proxy in this process until it is told to stop; return the exit code."""
    import uvloop

    try:
        return int(uvloop.run(run(options, handover)))
    except OSError as error:
        sys.stderr.write(f"error: cannot serve on {options.bind}:{options.port}: {error.strerror or error}\n")
        return 1
