"""Look at a cluster: what its hosts say, as one value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pdctl.errors import TransportError
from pdctl.plan.changes import Running
from pdctl.plan.saved import plan_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.cluster.reach import Reach
    from pdctl.plan.model import Plan
    from pdctl.vllm.root_causes import RootCause

_SERVING = ("ready",)
SILENT_S = 60.0
"""A request in work without a byte for so long: longer than any prefill between two tokens."""


@dataclass(frozen=True)
class SeenInstance:
    """One instance as its host shows it now."""

    name: str
    role: str
    host: str
    state: str
    data: Mapping[str, Any]
    """The shim's state; empty for an instance that was never started or whose host does not answer."""

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.data.get("spec") or {}

    @property
    def alive(self) -> int:
        """Number of live processes of its tree."""
        return int(self.data.get("alive") or 0)


@dataclass(frozen=True)
class Observed:
    """Everything the hosts say about one cluster."""

    cluster: str
    instances: tuple[SeenInstance, ...]
    record: Mapping[str, Any]
    """The cluster's record from the hosts: plan, topology path, who, last verification."""
    unreachable: Mapping[str, TransportError]
    now: float
    """Clock of the hosts, seconds since the epoch."""
    past: tuple[SeenInstance, ...] = ()
    """Ended instances of earlier plans: they have logs and count for nothing else."""

    @property
    def plan(self) -> Plan | None:
        """The plan that the cluster was started from."""
        try:
            return plan_from_json(self.record["plan"])
        except (KeyError, TypeError):
            return None

    @property
    def running(self) -> dict[str, Running]:
        return {
            seen.name: Running(seen.state, seen.host, str(seen.data.get("hash") or ""))
            for seen in self.instances
            if seen.data
        }

    @property
    def serving_hosts(self) -> frozenset[str]:
        return frozenset(seen.host for seen in self.instances if seen.alive)

    @property
    def state(self) -> str:
        """`ready`, `degraded` (it can still serve), `starting`, `failed` or `stopped`."""
        states = [seen.state for seen in self.instances]
        if not states or all(state in ("stopped", "pending") for state in states):
            return "stopped"
        if all(state == "ready" for state in states):
            return "ready"
        if self._can_serve():
            return "degraded"
        if any(state in ("failed", "unreachable", "unhealthy") for state in states):
            return "failed"
        return "starting"

    def _can_serve(self) -> bool:
        ready = {seen.role for seen in self.instances if seen.state in _SERVING}
        wants_proxy = any(seen.role == "proxy" for seen in self.instances)
        engines = {"producer", "consumer"} <= ready or "aggregated" in ready
        return engines and ("proxy" in ready or not wants_proxy)


def observe(cluster: str, reach: Reach, *, load: bool = False) -> Observed:
    """Ask all hosts of a cluster at once; hosts that don't answer are listed, never waited for twice."""
    answers = reach.each(lambda client: client.query(cluster, load=load))
    unreachable = {host: answer for host, answer in answers.items() if isinstance(answer, TransportError)}
    good = {host: answer for host, answer in answers.items() if not isinstance(answer, TransportError)}
    record = max(
        (answer.get("cluster") or {} for answer in good.values()),
        key=lambda found: float(found.get("at") or 0),
        default={},
    )
    seen: dict[str, SeenInstance] = {}
    for host, answer in good.items():
        for name, data in answer["instances"].items():
            role = (data.get("spec") or {}).get("role") or _role_of(name)
            seen[name] = SeenInstance(name, role, host, str(data.get("state")), data)
    for planned in (record.get("plan") or {}).get("instances", []):
        name, host = planned["name"], planned["host"]
        if name not in seen:
            seen[name] = SeenInstance(
                name, planned["role"], host, "unreachable" if host in unreachable else "pending", {}
            )
    _mark_silent(seen)
    wanted = {planned["name"] for planned in (record.get("plan") or {}).get("instances", [])}
    past = {
        name
        for name, one in seen.items()
        if wanted and name not in wanted and not one.alive and one.state in ("stopped", "failed")
    }
    ordered = sorted(seen.values(), key=lambda one: _order(one.name, one.role))
    now = max((float(answer["now"]) for answer in good.values()), default=0.0)
    return Observed(
        cluster,
        tuple(one for one in ordered if one.name not in past),
        record,
        unreachable,
        now,
        tuple(one for one in ordered if one.name in past),
    )


def causes_of_failed(observed: Observed, reach: Reach) -> dict[str, RootCause]:
    """Return instance -> why it failed, as far as its log says it. Asks only hosts that have a failed instance."""
    placed: dict[str, list[str]] = {}
    for one in observed.instances:
        if one.state in ("failed", "restarting") and one.role != "proxy" and one.host not in observed.unreachable:
            placed.setdefault(one.host, []).append(one.name)
    if not placed:
        return {}
    from pdctl.cluster.logs import explain

    found = explain(reach, observed.cluster, placed, symptoms=False)
    return {one.instance: one.cause for one in found if one.cause is not None}


def _mark_silent(seen: dict[str, SeenInstance]) -> None:
    """Call an engine unhealthy that the proxy has been waiting for, whatever its /health says.

    A P2pNccl engine that waits for KV hangs with /health 200 and its counters at 0 (vLLM 0.22.1, measured).
    """
    for front in [one for one in seen.values() if one.role == "proxy"]:
        for known in (front.data.get("load") or {}).get("instances") or []:
            one = seen.get(str(known.get("name")))
            silent_s = float(known.get("silent_s") or 0.0)
            if one is not None and one.state == "ready" and silent_s > SILENT_S:
                reason = f"hangs: no byte for {silent_s:.0f} s on a request in work, although its /health is good"
                seen[one.name] = replace(one, state="unhealthy", data={**one.data, "reason": reason})


def _role_of(name: str) -> str:
    role = name.rsplit("-", 1)[0]
    return role if role in ("producer", "consumer", "aggregated") else "proxy"


def _order(name: str, role: str) -> tuple[int, int, str]:
    roles = ("producer", "consumer", "aggregated", "proxy")
    ordinal = name.rsplit("-", 1)[-1]
    return (roles.index(role) if role in roles else len(roles), int(ordinal) if ordinal.isdigit() else 0, name)
