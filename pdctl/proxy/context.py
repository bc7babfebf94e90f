"""What all requests share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pdctl.proxy.failures import LegError, Refused
from pdctl.proxy.log import say

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from pdctl.connectors.base import HandOver
    from pdctl.proxy.fleet import Fleet, Instance
    from pdctl.proxy.metrics import Metrics
    from pdctl.proxy.options import Options
    from pdctl.proxy.upstream import Leg

RETRY_AFTER_S = 1


class AnotherError(Exception):
    """A leg failed in a way that another instance may not; `status` and `str()` are for the client if none is left."""

    def __init__(self, instance: Instance, status: int, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.instance = instance
        self.status = status
        self.refused = refused


@dataclass(eq=False)
class Context:
    """The running proxy, as requests see it."""

    options: Options
    handover: HandOver | None
    fleet: Fleet
    metrics: Metrics
    loop: asyncio.AbstractEventLoop
    background: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def disaggregated(self) -> bool:
        """Whether producers and consumers are meant to exist: they are then the default route."""
        return self.options.dynamic or any(target.role == "producer" for target in self.options.targets)

    def missing(self) -> list[str]:
        """Return the roles of the default route that have no healthy instance."""
        roles = ("producer", "consumer") if self.disaggregated else ("aggregated",)
        return [role for role in roles if not self.fleet.count(role)[0]]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that outlives its request."""
        task = self.loop.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    async def ask(
        self, instance: Instance, head: bytes, parts: Sequence[bytes], sent: Callable[[], None] | None = None
    ) -> Leg:
        """Send a leg and return it once its answer has begun; raises AnotherError or Refused."""
        try:
            return await instance.pool.ask(head, parts, sent)
        except LegError as error:
            raise self.leg_failed(instance, error) from error

    def leg_failed(self, instance: Instance, error: LegError) -> AnotherError | Refused:
        """Note that an instance could not be asked or fell silent, and return what follows for the request."""
        reason = "refused" if error.refused else "timeout" if error.timeout else "closed"
        self.metrics.leg_failures.add(instance.role, reason)
        say(f"{instance.name}: a request failed: {error}")
        stage = stage_of(instance)
        if error.timeout:
            # Its /health may be good all the same (a P2pNccl engine that waits for a dead peer).
            self.fleet.failed(instance, hard=True)
            return Refused(504, f"the {stage} engine did not answer in time")
        self.fleet.down(instance, str(error))
        if error.started:
            return Refused(502, f"the {stage} engine failed while it answered")
        return AnotherError(instance, 502, f"the {stage} engine could not be reached", refused=error.refused)

    def answered_5xx(self, instance: Instance, status: int) -> AnotherError:
        """Note an HTTP 5xx of an instance, and return what follows for the request."""
        self.metrics.leg_failures.add(instance.role, str(status))
        say(f"{instance.name}: a request failed: HTTP {status}")
        self.fleet.failed(instance)
        shown = status if status in (501, 503, 504) else 502
        return AnotherError(instance, shown, f"the {stage_of(instance)} engine failed")

    def unavailable(self, role: str) -> Refused:
        """Return the answer to a request that no instance of a role can take now."""
        return Refused(503, f"no {role} is ready", retry_after_s=RETRY_AFTER_S)


def stage_of(instance: Instance) -> str:
    """Return what an instance does, in the client's words."""
    return {"producer": "prefill", "consumer": "decode"}.get(instance.role, "inference")


def final(error: AnotherError) -> Refused:
    """Return the answer when no other instance is left to try."""
    return Refused(error.status, str(error), retry_after_s=RETRY_AFTER_S if error.status == 503 else None)
