"""Take a cluster down and prove that nothing is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pdctl.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.cluster.reach import Reach


@dataclass(frozen=True)
class Stopped:
    """What `down` did, over all hosts."""

    stopped: tuple[str, ...]
    already: tuple[str, ...]
    left: tuple[Mapping[str, Any], ...]
    """Processes that would not end: `instance`, `pid`, `command`."""
    shm_removed: tuple[str, ...]
    ports_busy: tuple[int, ...] = ()
    """Ports of the cluster that something still listens on."""
    unreachable: Mapping[str, TransportError] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether it is proven that nothing is left anywhere."""
        return not self.left and not self.ports_busy and not self.unreachable


def stop_cluster(
    cluster: str, reach: Reach, *, timeout_s: float, purge: bool, absent: Mapping[str, TransportError]
) -> Stopped:
    """Stop the proxy first, so that no new request comes in, then everything else, on all hosts at once.

    `absent`: hosts known not to answer, which are not asked again.
    """
    answers = reach.each(
        lambda client: client.stop(cluster, timeout_s=timeout_s, purge=purge, order=_order(client.query(cluster))),
        [host for host in reach.hosts if host not in absent],
    )
    good = [answer for answer in answers.values() if not isinstance(answer, TransportError)]
    return Stopped(
        stopped=tuple(name for answer in good for name in answer.get("stopped", [])),
        already=tuple(name for answer in good for name in answer.get("already", [])),
        left=tuple(left for answer in good for left in answer.get("left", [])),
        shm_removed=tuple(name for answer in good for name in answer.get("proof", {}).get("shm_removed", [])),
        ports_busy=tuple(port for answer in good for port in answer.get("proof", {}).get("ports_busy", [])),
        unreachable={
            **absent,
            **{host: answer for host, answer in answers.items() if isinstance(answer, TransportError)},
        },
    )


def _order(seen: Mapping[str, Any]) -> list[list[str]]:
    proxies = [name for name in seen["instances"] if name == "proxy"]
    engines = [name for name in seen["instances"] if name != "proxy"]
    return [group for group in (proxies, engines) if group]
