"""Bring a cluster to its plan: observe, decide (in `pdctl.plan.changes`), execute, and undo what was cut short."""

from __future__ import annotations

import getpass
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl import __version__
from pdctl.cluster.launch import Launch
from pdctl.cluster.lock import cluster_lock
from pdctl.cluster.observe import Observed, observe
from pdctl.cluster.specs import spec_of
from pdctl.errors import LaunchError, PdctlError, TransportError
from pdctl.events import Event, Sink
from pdctl.plan.changes import Change, plan_changes
from pdctl.plan.saved import plan_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdctl.cluster.reach import Reach
    from pdctl.plan.model import InstancePlan, Plan


@dataclass(frozen=True)
class UpOutcome:
    """What `up` found and did."""

    changes: tuple[Change, ...]
    started: tuple[str, ...]

    @property
    def nothing_to_do(self) -> bool:
        return all(change.action == "keep" for change in self.changes)


def record_of(plan: Plan, *, topology: str, now: float) -> dict[str, Any]:
    """Return what the hosts keep of a cluster: enough to manage it without its file. Holds no secret."""
    return {
        "schema": 1,
        "cluster": plan.cluster,
        "topology": topology,
        "plan": plan_to_json(plan),
        "by": _user(),
        "at": now,
        "version": __version__,
        "verify": None,
    }


def changes_between(plan: Plan, observed: Observed) -> tuple[Change, ...]:
    """Return what has to be done to get from what was observed to the plan."""
    hashes = {instance.name: str(spec_of(plan, instance)["hash"]) for instance in plan.instances}
    return plan_changes(plan, hashes, observed.running, observed.plan)


def bring_up(
    plan: Plan,
    reach: Reach,
    *,
    record: Mapping[str, Any],
    remember: Callable[[], None],
    look: Callable[..., None],
    environ: Mapping[str, str],
    sink: Sink,
    timeout_s: float,
    wait: bool,
    keep: bool,
    dry_run: bool,
    confirm: Callable[[str], bool],
) -> UpOutcome:
    """Start what is missing, replace what differs, stop what is no longer wanted; returns when all is ready.

    `look` is called with `serving=` (hosts where the cluster runs already) before anything is touched, to raise what it finds.
    `confirm` is shown the changes to what runs and says whether to go on; `remember` is called before the first start.
    Raises PreflightError (ports), LaunchError (an instance failed: what this call started is stopped again unless
    `keep`), LockHeld, TransportError. A KeyboardInterrupt is passed on after the same clean-up.
    """
    with cluster_lock(reach, plan.cluster, "pdctl up"):
        observed = observe(plan.cluster, reach)
        for error in observed.unreachable.values():
            raise error
        changes = changes_between(plan, observed)
        outcome = UpOutcome(
            changes, tuple(change.instance for change in changes if change.action in ("start", "restart"))
        )
        if dry_run or (outcome.nothing_to_do and observed.state == "ready"):
            return outcome
        touching = [change for change in changes if change.action in ("restart", "stop")]
        if touching and not confirm("\n".join(str(change) for change in changes if change.action != "keep")):
            raise PdctlError("nothing was changed", where=plan.cluster)
        look(serving=observed.serving_hosts)
        launch = Launch(plan, reach, environ=environ, record=record, sink=sink)
        launch.clear_away(changes, observed)
        to_start = [plan.instance(name) for name in outcome.started]
        kept = [plan.instance(change.instance) for change in changes if change.action == "keep"]
        launch.check_ports(to_start)
        remember()
        try:
            launch.start_and_follow(to_start, kept, timeout_s=timeout_s, wait=wait)
            if wait:
                wait_for_front(plan, reach)
        except (PdctlError, KeyboardInterrupt) as error:
            if not keep:
                _undo(launch, plan, sink, error)
            raise
        return outcome


def wait_for_front(plan: Plan, reach: Reach, timeout_s: float = 15.0) -> None:
    """Wait until the proxy itself says that it can serve: it may not have looked at a restarted engine yet.

    It is asked from its own host. Raises LaunchError with what it says.
    """
    proxy = plan.proxy
    if proxy is None:
        return
    end = time.monotonic() + timeout_s
    while True:
        said = _ask_health(reach, proxy)
        if said is None:
            return
        if time.monotonic() > end:
            raise LaunchError(
                proxy.name, f"does not serve although all engines are ready: {said}", fix="see `pdctl logs proxy`"
            )
        time.sleep(0.05)


def _ask_health(reach: Reach, proxy: InstancePlan) -> str | None:
    """Return None for a healthy answer, else what was said instead."""
    import http.client
    from urllib.parse import urlsplit

    url = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=5)
    try:
        connection.sock = reach.dial(proxy.host, url.hostname or "", url.port or 80, 5.0)
        connection.request("GET", proxy.health_path)
        answer = connection.getresponse()
        body = answer.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException, TransportError) as error:
        return str(error)
    finally:
        connection.close()
    return None if answer.status == 200 else f"HTTP {answer.status} {body}"


def _undo(launch: Launch, plan: Plan, sink: Sink, error: BaseException) -> None:
    with _uninterrupted():
        left = launch.undo()
    if left:
        first = left[0]
        text = f"pid {first['pid']} of {first['instance']} would not end"
        if first["pid"] is None:
            text = f"{', '.join(one['instance'] for one in left)} may still run on {first['host']}: {first['why']}"
        raise LaunchError(plan.cluster, text, fix="see `pdctl down`") from error
    if launch.started:
        sink.emit(Event("stopped", plan.cluster, "what was started is stopped again"))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no second Ctrl-C leave half a cluster behind; the clean-up is bounded by its own time-outs."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
