"""Look at all hosts of a plan at once, and have them try to reach each other, before anything starts."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.cluster.launch import busy_ports
from pdctl.cluster.observe import observe
from pdctl.errors import Finding, TransportError
from pdctl.plan.preflight import HostAnswer, addresses_on, judge_hosts, judge_peers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pdctl.cluster.reach import Reach
    from pdctl.hosts.shim_client import ShimClient
    from pdctl.hosts.transport import Stream
    from pdctl.plan.model import Plan
    from pdctl.topology.schema import Topology

_PROBE = Path(__file__).parent.parent / "probe.py"
_DIAL_S = 3.0


@dataclass(frozen=True)
class Preflight:
    """What was found on the hosts."""

    findings: tuple[Finding, ...]
    hosts: Mapping[str, HostAnswer]

    @property
    def blockers(self) -> list[Finding]:
        return [one for one in self.findings if one.blocker]

    @property
    def warnings(self) -> list[Finding]:
        return [one for one in self.findings if not one.blocker]


def look_at_hosts(plan: Plan, topology: Topology, reach: Reach, *, serving: Collection[str] = ()) -> Preflight:
    """Return all findings; a host that cannot be asked is one. `serving`: hosts on which the cluster runs already."""
    interfaces = {host.name: host.interface for host in topology.hosts}
    asked = reach.each(lambda client: _ask(plan, interfaces, client))
    answers = {host: one for host, one in asked.items() if isinstance(one, HostAnswer)}
    findings = [
        Finding(one.host, "reach", one.what, one.fix) for one in asked.values() if isinstance(one, TransportError)
    ]
    findings += judge_hosts(plan, interfaces, answers, serving=serving)
    wrong = {one.host for one in findings if one.check in ("address", "interface")}
    findings += judge_peers(plan, _dial_each_other(plan, reach, [host for host in answers if host not in wrong]))
    return Preflight(tuple(findings), answers)


def check_cluster(plan: Plan, topology: Topology, reach: Reach) -> Preflight:
    """Return everything that `up` would find on the hosts, ports and what runs there already included."""
    found = look_at_hosts(plan, topology, reach)
    good = reach.only(found.hosts)
    try:
        observed = observe(plan.cluster, good)
        if observed.serving_hosts:  # its own engines hold their GPUs
            found = look_at_hosts(plan, topology, reach, serving=observed.serving_hosts)
        alive = {seen.name for seen in observed.instances if seen.alive}
        waiting = [one for one in plan.instances if one.host in found.hosts and one.name not in alive]
        ports = busy_ports(good, waiting)
    except TransportError as error:
        ports = [Finding(error.host, "reach", error.what, error.fix)]
    return Preflight((*found.findings, *ports), found.hosts)


def _ask(plan: Plan, interfaces: Mapping[str, str | None], client: ShimClient) -> HostAnswer:
    interface = interfaces.get(client.host)
    ask = {
        "workdir": client.workdir,
        "addresses": addresses_on(plan, client.host),
        "interfaces": [interface] if interface else [],
        "model": plan.model if _lies_on_hosts(plan, client) else None,
    }
    client.transport.run(["/bin/sh", "-c", ":"])  # the login is no part of the latency
    began = time.time()
    data = _probe(client, "facts", ask)
    return HostAnswer(data, began, time.time())


def _lies_on_hosts(plan: Plan, client: ShimClient) -> bool:
    absolute = plan.model.startswith(("/", "~/"))
    return (
        plan.engine_kind == "vllm"
        and absolute
        and any(one.host == client.host and one.role != "proxy" for one in plan.instances)
    )


def _dial_each_other(plan: Plan, reach: Reach, hosts: list[str]) -> dict[str, dict[str, str | None]]:
    """Return host -> peer's "address port" -> None or what is wrong, tried on a port that the plan uses there."""
    targets: dict[str, tuple[str, int]] = {}
    for one in plan.instances:
        if one.role != "proxy" and one.host in hosts:
            targets.setdefault(one.host, (one.address, one.ports["http"].first))
    if len(hosts) < 2 or not targets:
        return {}
    listening: list[Stream] = []
    try:
        begun = reach.each(lambda client: _listen(client, targets[client.host]), targets)
        listening += [stream for stream in begun.values() if not isinstance(stream, TransportError)]
        answers = reach.each(
            lambda client: _probe(
                client,
                "dial",
                {"to": [at for host, at in targets.items() if host != client.host], "timeout_s": _DIAL_S},
            ),
            hosts,
        )
    finally:
        for stream in listening:
            stream.close()
    return {host: dict(answer["found"]) for host, answer in answers.items() if not isinstance(answer, TransportError)}


def _listen(client: ShimClient, at: tuple[str, int]) -> Stream:
    stream = client.transport.stream(_argv(client, "listen", {"at": [at]}))
    next(stream.lines(), None)  # it says so when it listens
    return stream


def _probe(client: ShimClient, verb: str, ask: Mapping[str, Any]) -> dict[str, Any]:
    done = client.transport.run(_argv(client, verb, ask), timeout_s=60)
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith("pdctl-probe "):
            answer: dict[str, Any] = json.loads(line.removeprefix("pdctl-probe "))
            return answer
    said = done.stderr.decode(errors="replace").strip().splitlines()
    raise TransportError(
        client.host,
        f"`python3` did not look at the host: {said[-1] if said else f'exit code {done.exit_code}'}",
        fix="install Python 3.9 or newer there as python3",
    )


def _argv(client: ShimClient, verb: str, ask: Mapping[str, Any]) -> list[str]:
    return [client.python, "-I", "-S", "-c", _PROBE.read_text(), verb, json.dumps(ask)]
