"""Start what a plan asks for, follow it until it is ready, and undo it when it cannot be.

Carries no decision of its own: what to start, stop or keep comes in as changes.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pdctl.cluster.logs import why_it_failed
from pdctl.cluster.specs import environment_of, spec_of
from pdctl.errors import Finding, LaunchError, PreflightError, TransportError
from pdctl.events import Event, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdctl.cluster.observe import Observed
    from pdctl.cluster.reach import Reach
    from pdctl.hosts.shim_client import ShimClient
    from pdctl.plan.changes import Change
    from pdctl.plan.model import InstancePlan, Plan
    from pdctl.vllm.root_causes import RootCause

T = TypeVar("T")
_DEAD = ("failed", "stopped", "stopping")
_RETRY_S = 0.5
_AWAY_S = 30.0
"""A host that cannot be reached again for so long ends an `up`."""


class Launch:
    """One `up` on its way: knows what it started, so that it can take exactly that back."""

    def __init__(
        self, plan: Plan, reach: Reach, *, environ: Mapping[str, str], record: Mapping[str, Any], sink: Sink
    ) -> None:
        self._plan = plan
        self._reach = reach
        self._environ = environ
        self._record = record
        self._sink = sink
        self.started: list[InstancePlan] = []
        """What this launch started, in order."""
        self._states: dict[str, Mapping[str, Any]] = {}

    def clear_away(self, changes: Sequence[Change], observed: Observed) -> None:
        """Stop what has to go first: removed and changed instances, and remains of dead ones. Raises LaunchError."""
        leftovers = {seen.name for seen in observed.instances if seen.alive}
        going: dict[str, list[str]] = {}
        for change in changes:
            if change.action in ("stop", "restart") or (change.action == "start" and change.instance in leftovers):
                seen = observed.running.get(change.instance)
                going.setdefault(seen.host if seen else change.host, []).append(change.instance)
        for name in (name for names in going.values() for name in names):
            self._sink.emit(Event("stopping", name, "stopping"))
        answers = self._reach.each(lambda client: client.stop(self._plan.cluster, going[client.host]), going)
        for answer in _all_good(answers).values():
            if answer.get("left"):
                first = answer["left"][0]
                raise LaunchError(first["instance"], f"pid {first['pid']} would not end", fix="see `pdctl down`")

    def check_ports(self, instances: Sequence[InstancePlan]) -> None:
        """Bind every planned port once. Raises PreflightError that names the owners of those taken."""
        findings = busy_ports(self._reach, instances)
        if findings:
            raise PreflightError(findings)

    def start_and_follow(
        self, to_start: Sequence[InstancePlan], kept: Sequence[InstancePlan], *, timeout_s: float, wait: bool
    ) -> None:
        """Start instances, each as soon as those in its `after` are ready, and wait until all (and `kept`) are ready.

        Returns when everything is started if `wait` is false. Raises LaunchError for the first instance that fails or
        when `timeout_s` is over.
        """
        inbox: queue.Queue[tuple[str, Mapping[str, Any] | None]] = queue.Queue()
        hosts = sorted({instance.host for instance in (*to_start, *kept)})
        self._start(to_start)  # creates the cluster's directory, which a watch needs
        watches = [self._watch(host, inbox) for host in hosts]
        deadline = time.monotonic() + timeout_s
        try:
            while not self._finished(to_start, kept, wait=wait):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._timed_out((*to_start, *kept), timeout_s)
                try:
                    host, message = inbox.get(timeout=min(left, 1.0))
                except queue.Empty:
                    continue
                if message is None:
                    raise TransportError(host, "the connection to the host's shim broke while waiting")
                self._take(message)
                self._start(to_start)
        finally:
            for watch in watches:
                watch.close()

    def undo(self) -> list[dict[str, Any]]:
        """Stop all that this launch started; returns what would not go."""
        placed: dict[str, list[str]] = {}
        for instance in self.started:
            placed.setdefault(instance.host, []).append(instance.name)
        if not placed:
            return []
        self._sink.emit(
            Event("stopping", self._plan.cluster, f"stopping {', '.join(one.name for one in self.started)}")
        )
        answers = self._reach.each(
            lambda client: _patiently(
                lambda: client.stop(self._plan.cluster, placed[client.host], timeout_s=10.0), patience_s=10.0
            ),
            placed,
        )
        left: list[dict[str, Any]] = []
        for host, answer in answers.items():
            if isinstance(answer, TransportError):
                left += [{"instance": name, "host": host, "pid": None, "why": answer.what} for name in placed[host]]
            else:
                left += answer.get("left", [])
        return left

    def _start(self, wanted: Sequence[InstancePlan]) -> None:
        begun = {instance.name for instance in self.started}
        now = [
            one for one in wanted if one.name not in begun and all(self._state(name) == "ready" for name in one.after)
        ]
        if not now:
            return
        batches: dict[str, list[InstancePlan]] = {}
        for instance in now:
            batches.setdefault(instance.host, []).append(instance)
        self.started += now  # before the call: a start that was cut short may have started some
        answers = self._reach.each(lambda client: self._start_on(client, batches[client.host]), batches)
        for instance in now:
            if not isinstance(answers[instance.host], TransportError):
                placed = {"host": instance.host, "gpus": list(instance.gpus)}
                self._sink.emit(Event("start", instance.name, "starting", placed))
        for answer in _all_good(answers).values():
            for name, reason in answer.get("failed", {}).items():
                raise LaunchError(name, f"could not be started: {reason}")
            for name in answer.get("conflict", []):
                raise LaunchError(name, "runs with another specification", fix="run `pdctl up` again")

    def _start_on(self, client: ShimClient, batch: Sequence[InstancePlan]) -> dict[str, Any]:
        specs = [spec_of(self._plan, instance) for instance in batch]
        if self._plan.host(client.host).ssh is not None and any(_runs_pdctl(instance) for instance in batch):
            source = client.bring_pdctl()
            specs = [
                {**spec, "pdctl": source} if _runs_pdctl(instance) else spec
                for spec, instance in zip(specs, batch, strict=True)
            ]
        bundle = [
            {"spec": spec, "env": environment_of(instance, self._environ)}
            for spec, instance in zip(specs, batch, strict=True)
        ]
        return _patiently(lambda: client.start(self._plan.cluster, self._record, bundle))  # starting twice starts once

    def _watch(self, host: str, inbox: queue.Queue[tuple[str, Mapping[str, Any] | None]]) -> _SteadyWatch:
        watch = _SteadyWatch(self._reach[host], self._plan.cluster)

        def pump() -> None:
            with suppress(TransportError):
                for message in watch.messages():
                    inbox.put((host, message))
            inbox.put((host, None))

        threading.Thread(target=pump, name=f"watch-{host}", daemon=True).start()
        return watch

    def _take(self, message: Mapping[str, Any]) -> None:
        states = message["instances"] if "instances" in message else {message["instance"]: message}
        planned = {instance.name for instance in self._plan.instances}
        for name, state in states.items():
            if name not in planned:
                continue
            before = self._states.get(name, {})
            self._states[name] = state
            self._announce(name, before, state)
            if state.get("state") in _DEAD and self._concerns(name):
                raise self._death(name, state)

    def _concerns(self, name: str) -> bool:
        """Say whether a death is ours to report: not the old state of an instance that has yet to be started."""
        begun = {instance.name for instance in self.started}
        waiting = {one.name for one in self._plan.instances if one.name not in begun and one.after}
        return name not in waiting

    def _announce(self, name: str, before: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        if (before.get("state"), before.get("phase")) == (state.get("state"), state.get("phase")):
            return
        kind = "ready" if state.get("state") == "ready" else "phase"
        text = str(state.get("phase") or state.get("state")) if kind == "phase" else "ready"
        self._sink.emit(Event(kind, name, text, {"state": state.get("state"), "phase": state.get("phase")}))

    def _state(self, name: str) -> str:
        return str(self._states.get(name, {}).get("state"))

    def _finished(self, to_start: Sequence[InstancePlan], kept: Sequence[InstancePlan], *, wait: bool) -> bool:
        if not wait:
            return len(self.started) == len(to_start)
        return all(self._state(instance.name) == "ready" for instance in (*to_start, *kept))

    def _death(self, name: str, state: Mapping[str, Any]) -> LaunchError:
        reason = str(state.get("reason") or state.get("state"))
        why = self._why(name)
        self._sink.emit(Event("failed", name, reason))
        return LaunchError(name, reason, cause=why.cause, lines=why.evidence, fix=why.fix)

    def _why(self, name: str) -> RootCause:
        return why_it_failed(self._reach[self._plan.instance(name).host], self._plan.cluster, name)

    def _timed_out(self, instances: Sequence[InstancePlan], timeout_s: float) -> LaunchError:
        late = [one.name for one in instances if self._state(one.name) != "ready"]
        phases = ", ".join(f"{name}: {self._states.get(name, {}).get('phase') or self._state(name)}" for name in late)
        why = self._why(late[0])
        return LaunchError(
            late[0], f"not ready after {timeout_s:.0f} s ({phases})", cause=why.cause, lines=why.evidence,
            fix=why.fix or "look at `pdctl logs`; give it longer with --timeout",
        )  # fmt: skip


class _SteadyWatch:
    """A watch that is opened again when its connection breaks: it begins with the whole state, so nothing is lost."""

    def __init__(self, client: ShimClient, cluster: str) -> None:
        self._client, self._cluster = client, cluster
        self._watch = _patiently(lambda: client.watch(cluster))
        self._closed = threading.Event()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages until closed; raises TransportError when the host stays away."""
        away_since: float | None = None
        while not self._closed.is_set():
            with suppress(TransportError, ValueError):
                for message in self._watch.messages():
                    away_since = None
                    yield message
            away_since = away_since or time.monotonic()
            if self._closed.wait(_RETRY_S):
                return
            try:
                self._watch = self._client.watch(self._cluster)
            except TransportError:
                if time.monotonic() - away_since > _AWAY_S:
                    raise
            if self._closed.is_set():
                self._watch.close()

    def close(self) -> None:
        self._closed.set()
        self._watch.close()


def _patiently(call: Callable[[], T], patience_s: float = _AWAY_S) -> T:
    """Call again while the line to the host is broken, for a while; the call must be one that may be made twice."""
    began = time.monotonic()
    while True:
        try:
            return call()
        except TransportError as error:
            if not error.away or time.monotonic() - began > patience_s:
                raise
            time.sleep(_RETRY_S)


def _all_good(answers: Mapping[str, T | TransportError]) -> dict[str, T]:
    """Return the answers of all hosts. Raises the TransportError of the first that gave none."""
    good: dict[str, T] = {}
    for host, answer in answers.items():
        if isinstance(answer, TransportError):
            raise answer
        good[host] = answer
    return good


def _runs_pdctl(instance: InstancePlan) -> bool:
    return any(word.startswith("pdctl.") for word in instance.argv)


def busy_ports(reach: Reach, instances: Sequence[InstancePlan]) -> list[Finding]:
    """Return the ports of instances that cannot be bound on their hosts, with their owners. Raises TransportError."""
    wanted: dict[str, dict[tuple[str, int], tuple[str, str]]] = {}
    for instance in instances:
        for use, ports in instance.ports.items():
            for port in range(ports.first, ports.last + 1):
                wanted.setdefault(instance.host, {})[_bind_address(instance), port] = (instance.name, use)
    answers = reach.each(lambda client: client.busy_ports(list(wanted[client.host])), wanted)
    return [
        _port_finding(host, busy, *wanted[host][busy["address"], busy["port"]])
        for host, found in _all_good(answers).items()
        for busy in found
    ]


def _bind_address(instance: InstancePlan) -> str:
    return instance.address


def _port_finding(host: str, busy: Mapping[str, Any], name: str, use: str) -> Finding:
    port = busy["port"]
    if not busy.get("pid") and busy.get("error") and "in use" not in str(busy["error"]).lower():
        return Finding(
            host, "ports", f"{busy['address']}:{port} ({name} {use}): {busy['error']}", "check the host's `address`"
        )
    owner = f"pid {busy['pid']} ({busy.get('command') or '?'})" if busy.get("pid") else "another process"
    key = "proxy.port" if (name, use) == ("proxy", "http") else "ports.base"
    return Finding(
        host, "ports", f"port {port} ({name} {use}) is taken by {owner}", f"stop it or choose another `{key}`"
    )
