"""Read what instances wrote, and find in it what matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.errors import TransportError
from pdctl.vllm.root_causes import find_root_cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.cluster.reach import Reach
    from pdctl.hosts.shim_client import ShimClient

_TAIL = 2000
"""Lines of a dead instance that are searched for the cause."""
_SHOWN = 12


def decisive_lines(client: ShimClient, cluster: str, instance: str) -> tuple[str, tuple[str, ...], str]:
    """Return (cause, lines, fix) for an instance that failed; without a known cause, its log's last lines."""
    texts = _last_run(client, cluster, instance)
    cause = find_root_cause(texts)
    if cause is None:
        return "", tuple(text for text in texts if text.strip())[-_SHOWN:], ""
    return cause.cause, tuple(cause.evidence)[:_SHOWN], cause.fix


def error_lines(client: ShimClient, cluster: str, instance: str) -> tuple[str, tuple[str, ...], str]:
    """Return (cause, lines, fix) of the first failure in an instance's current log; all empty if there is none."""
    cause = find_root_cause(_last_run(client, cluster, instance))
    return (cause.cause, tuple(cause.evidence), cause.fix) if cause else ("", (), "")


def _last_run(client: ShimClient, cluster: str, instance: str) -> list[str]:
    try:
        stream = client.log_lines(cluster, ["--run", "current", "--tail", str(_TAIL)], [instance])
        try:
            texts = [line.decode(errors="replace").split(" ", 2)[-1] for line in stream.lines()]
        finally:
            stream.close()
    except TransportError:
        return []
    return [text for text in texts if not text.startswith("pdctl: ")]


def log_lines(
    reach: Reach, cluster: str, placed: dict[str, list[str]], options: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield (instance, timestamp, text) of the instances on each host (`placed`: host -> names), merged by time."""
    import heapq

    streams = [reach[host].log_lines(cluster, options, names) for host, names in placed.items()]

    def parsed(lines: Iterator[bytes]) -> Iterator[tuple[str, str, str]]:
        for line in lines:
            instance, stamp, text = ([*line.decode(errors="replace").split(" ", 2), "", ""])[:3]
            yield instance, stamp, text

    try:
        if len(streams) == 1:
            yield from parsed(streams[0].lines())
        else:
            yield from heapq.merge(*(parsed(stream.lines()) for stream in streams), key=lambda row: row[1])
    finally:
        for stream in streams:
            stream.close()
