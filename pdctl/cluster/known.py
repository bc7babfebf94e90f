"""Which clusters are known on this machine: one small record each, the truth itself lives on the hosts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.plan.model import Plan
    from pdctl.topology.schema import Topology


@dataclass(frozen=True)
class KnownHost:
    """How to reach one host of a cluster again."""

    name: str
    workdir: str
    ssh: Mapping[str, Any] | None


@dataclass(frozen=True)
class KnownCluster:
    """A cluster that was started from here."""

    cluster: str
    topology: str
    """Absolute path of the file it was started from."""
    hosts: tuple[KnownHost, ...]


def pdctl_home(environ: Mapping[str, str]) -> Path:
    """Return pdctl's own directory: $PDCTL_HOME, else ~/.pdctl."""
    return Path(environ["PDCTL_HOME"]) if environ.get("PDCTL_HOME") else Path.home() / ".pdctl"


def known_hosts(plan: Plan) -> tuple[KnownHost, ...]:
    """Return how to reach the hosts of a plan."""
    return tuple(KnownHost(host.name, host.workdir, host.ssh) for host in plan.hosts)


def hosts_of(topology: Topology) -> tuple[KnownHost, ...]:
    """Return how to reach the hosts of a file; without any it means this machine."""
    from pdctl.topology.schema import Host  # pydantic: not for commands without a file

    return tuple(
        KnownHost(host.name, host.workdir, host.ssh.model_dump(exclude_none=True) if host.ssh else None)
        for host in topology.hosts or [Host(name="local")]
    )


def reachable_hosts(home: Path, cluster: str, planned: tuple[KnownHost, ...]) -> tuple[KnownHost, ...]:
    """Return the hosts of a file and those where an earlier plan of the same cluster may still run something."""
    earlier = next((known.hosts for known in known_clusters(home) if known.cluster == cluster), ())
    names = {host.name for host in planned}
    return (*planned, *(host for host in earlier if host.name not in names))


def remember(home: Path, known: KnownCluster) -> None:
    """Write a cluster's record."""
    path = _record(home, known.cluster)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(known), indent=1) + "\n")
    fresh.replace(path)


def forget(home: Path, cluster: str) -> None:
    """Remove a cluster's record, if there is one."""
    _record(home, cluster).unlink(missing_ok=True)


def known_clusters(home: Path) -> list[KnownCluster]:
    """Return all clusters known here, by name; unreadable records are left out."""
    found = []
    for path in sorted((home / ".known").glob("*.json")):
        try:
            data = json.loads(path.read_text())
            hosts = tuple(KnownHost(**host) for host in data["hosts"])
            found.append(KnownCluster(data["cluster"], data["topology"], hosts))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def choose_cluster(home: Path, name: str | None, named_by_file: str | None) -> KnownCluster:
    """Return the cluster that a command means.

    `name` is the user's -c; `named_by_file` is the name in ./topology.yaml, if there is such a file.
    Raises UsageError that lists the names when it is not clear.
    """
    known = {cluster.cluster: cluster for cluster in known_clusters(home)}
    names = ", ".join(known) or "none"
    if name:
        if name in known:
            return known[name]
        raise UsageError(
            f"no cluster `{name}` is known here (known: {names})", fix="see `pdctl ls`, or start it with `pdctl up`"
        )
    if named_by_file in known:
        return known[str(named_by_file)]
    if len(known) == 1:
        return next(iter(known.values()))
    if not known:
        raise UsageError("no cluster is known here", fix="start one with `pdctl up FILE`")
    raise UsageError(f"several clusters are known here: {names}", fix="say which one with -c NAME")


def _record(home: Path, cluster: str) -> Path:
    return home / ".known" / f"{cluster}.json"
