"""Read what instances wrote, and find in it what matters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.cluster.log_rows import Row, row_of
from pdctl.errors import TransportError
from pdctl.vllm.root_causes import HARM, RootCause, Symptom, find_root_cause, find_symptoms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.cluster.reach import Reach
    from pdctl.hosts.shim_client import ShimClient

_TAIL = 2000
"""Lines of an instance that are searched for the cause of its end."""
_SHOWN = 12


@dataclass(frozen=True)
class Explained:
    """What an instance's log says about its health."""

    instance: str
    cause: RootCause | None
    symptoms: tuple[Symptom, ...] = ()


def why_it_failed(client: ShimClient, cluster: str, instance: str) -> RootCause:
    """Return why an instance failed; without a known cause, with its log's last lines as evidence and an empty `cause`."""
    texts = _texts(client, cluster, [instance], ["--run", "current", "--tail", str(_TAIL)]).get(instance, [])
    cause = find_root_cause(texts)
    if cause is None:
        return RootCause("", "", tuple(text for text in texts if text.strip())[-_SHOWN:])
    return replace(cause, evidence=cause.evidence[:_SHOWN])


def explain(
    reach: Reach,
    cluster: str,
    placed: Mapping[str, Sequence[str]],
    *,
    run: str = "current",
    symptoms: bool = True,
    since: float | None = None,
) -> list[Explained]:
    """Return what the logs of the instances on each host (`placed`: host -> names) say, all hosts at once; a host that is away says nothing.

    `since`: Unix time from which on lines count.
    """
    which = ["--run", run, *([] if since is None else ["--since", str(since)])]

    def ask(host: str) -> list[Explained]:
        names = placed[host]
        ends = _texts(reach[host], cluster, names, [*which, "--tail", str(_TAIL)])
        harms = _texts(reach[host], cluster, names, [*which, "--grep", HARM]) if symptoms else {}
        return [
            Explained(name, find_root_cause(ends.get(name, [])), tuple(find_symptoms(harms.get(name, []))))
            for name in names
        ]

    with ThreadPoolExecutor(max_workers=max(1, len(placed))) as pool:
        return [one for found in pool.map(ask, placed) for one in found]


def _texts(client: ShimClient, cluster: str, names: Sequence[str], options: Sequence[str]) -> dict[str, list[str]]:
    """Return instance -> lines without pdctl's own; empty if the host does not answer."""
    found: dict[str, list[str]] = {}
    try:
        stream = client.log_lines(cluster, options, names)
        try:
            for line in stream.lines():
                instance, _, text = row_of(line)
                if not text.startswith("pdctl: "):
                    found.setdefault(instance, []).append(text)
        finally:
            stream.close()
    except TransportError:
        return {}
    return found


def log_lines(reach: Reach, cluster: str, placed: dict[str, list[str]], options: Sequence[str]) -> Iterator[Row]:
    """Yield (instance, time stamp, text) of the instances on each host (`placed`: host -> names), merged by time."""
    if "--follow" in options:
        from pdctl.cluster.follow import follow_rows

        yield from follow_rows(reach, cluster, placed, options)
        return
    import heapq

    streams = [reach[host].log_lines(cluster, options, names) for host, names in placed.items()]
    try:
        rows = [map(row_of, stream.lines()) for stream in streams]
        yield from rows[0] if len(rows) == 1 else heapq.merge(*rows, key=lambda row: row[1])
    finally:
        for stream in streams:
            stream.close()
