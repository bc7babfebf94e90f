"""Start what a plan asks for, follow it until it is ready, and undo it when it cannot be.

Carries no decision of its own: what to start, stop or keep comes in as changes.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from pdctl.cluster.logs import why_it_failed
from pdctl.cluster.specs import environment_of, spec_of
from pdctl.errors import Finding, LaunchError, PreflightError, TransportError
from pdctl.events import Event, Sink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.cluster.observe import Observed
    from pdctl.cluster.reach import Reach
    from pdctl.hosts.shim_client import WatchStream
    from pdctl.plan.changes import Change
    from pdctl.plan.model import InstancePlan, Plan
    from pdctl.vllm.root_causes import RootCause

_DEAD = ("failed", "stopped", "stopping")


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
        for host, names in going.items():
            for name in names:
                self._sink.emit(Event("stopping", name, "stopping"))
            answer = self._reach[host].stop(self._plan.cluster, names)
            if answer.get("left"):
                first = answer["left"][0]
                raise LaunchError(first["instance"], f"pid {first['pid']} would not end", fix="see `pdctl down`")

    def check_ports(self, instances: Sequence[InstancePlan]) -> None:
        """Bind every planned port once. Raises PreflightError that names the owners of those taken."""
        findings: list[Finding] = []
        for host in {instance.host for instance in instances}:
            wanted = {
                (_bind_address(instance), port): (instance.name, use)
                for instance in instances
                if instance.host == host
                for use, ports in instance.ports.items()
                for port in range(ports.first, ports.last + 1)
            }
            for busy in self._reach[host].busy_ports(list(wanted)):
                name, use = wanted[busy["address"], busy["port"]]
                findings.append(_port_finding(host, busy, name, use))
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
        left: list[dict[str, Any]] = []
        for host in {instance.host for instance in self.started}:
            names = [instance.name for instance in self.started if instance.host == host]
            self._sink.emit(Event("stopping", self._plan.cluster, f"stopping {', '.join(names)}"))
            left += self._reach[host].stop(self._plan.cluster, names, timeout_s=10.0).get("left", [])
        return left

    def _start(self, wanted: Sequence[InstancePlan]) -> None:
        begun = {instance.name for instance in self.started}
        now = [
            one for one in wanted if one.name not in begun and all(self._state(name) == "ready" for name in one.after)
        ]
        for host in dict.fromkeys(instance.host for instance in now):
            batch = [instance for instance in now if instance.host == host]
            bundle = [
                {"spec": spec_of(self._plan, instance), "env": environment_of(instance, self._environ)}
                for instance in batch
            ]
            self.started += batch  # before the call: a start that was cut short may have started some
            answer = self._reach[host].start(self._plan.cluster, self._record, bundle)
            for instance in batch:
                self._sink.emit(Event("start", instance.name, "starting", {"host": host, "gpus": list(instance.gpus)}))
            for name, reason in answer.get("failed", {}).items():
                raise LaunchError(name, f"could not be started: {reason}")
            for name in answer.get("conflict", []):
                raise LaunchError(name, "runs with another specification", fix="run `pdctl up` again")

    def _watch(self, host: str, inbox: queue.Queue[tuple[str, Mapping[str, Any] | None]]) -> WatchStream:
        watch = self._reach[host].watch(self._plan.cluster)

        def pump() -> None:
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
