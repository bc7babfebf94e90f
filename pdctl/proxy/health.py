"""Asking each engine's /health."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pdctl.proxy.failures import LegError
from pdctl.proxy.wire import request_head

if TYPE_CHECKING:
    from pdctl.proxy.fleet import Fleet, Instance

INTERVAL_S = 1.0
FIRST_INTERVAL_S = 0.1
ANSWER_S = 5.0


async def watch(fleet: Fleet, instance: Instance) -> None:
    """Keep an instance's health up to date until it is removed or the task is cancelled."""
    while instance in fleet.instances:
        instance.wake.clear()
        downs = instance.downs
        reason = await observe(instance)
        if reason is None:
            if instance.downs == downs:
                fleet.up(instance)
        else:
            fleet.down(instance, reason)
            instance.wake.clear()
        pause = INTERVAL_S if instance.ever_healthy else FIRST_INTERVAL_S
        try:
            await asyncio.wait_for(instance.wake.wait(), pause)
        except asyncio.TimeoutError:
            continue
        # Woken by a failed request: give a dying engine a moment to close its port.
        await asyncio.sleep(FIRST_INTERVAL_S)


async def observe(instance: Instance) -> str | None:
    """Return None if an engine's /health says 200, else why not."""
    head = request_head(
        b"GET", b"/health", instance.host_header, common=b"accept: */*\r\n", request_id=b"pdctl-health", length=None
    )

    async def asked() -> str | None:
        leg = await instance.pool.ask(head)
        try:
            await leg.read()
        finally:
            leg.abort()
        return None if leg.status == 200 else f"/health answers {leg.status}"

    try:
        return await asyncio.wait_for(asked(), ANSWER_S)
    except LegError as error:
        return f"/health: {error}"
    except asyncio.TimeoutError:
        return f"/health does not answer within {ANSWER_S:g} s"
