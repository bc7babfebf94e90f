"""Follow logs on many hosts: merged as they come, and taken up again where a broken connection left them."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pdctl.cluster.log_rows import Row, row_of
from pdctl.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.cluster.reach import Reach
    from pdctl.hosts.shim_client import ShimClient
    from pdctl.hosts.transport import Stream

_TOGETHER_S = 0.1
"""Lines that come within so long are put into the order of their time stamps."""
_RETRY_S = 1.0
_EARLIER_S = 0.001


class _Seen:
    """What one host's stream has given: the last time stamp of each instance, and how many lines bore it."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, int]] = {}
        self._again: dict[str, tuple[str, int]] = {}

    def resume_since(self) -> float | None:
        """Return the Unix time from which to ask again; what was given already is then kept back by `is_new`."""
        self._again = dict(self._last)
        if not self._last:
            return None
        oldest = min(stamp for stamp, _ in self._last.values())
        when = datetime.strptime(oldest, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        return when.timestamp() - _EARLIER_S

    def is_new(self, row: Row) -> bool:
        """Say whether a row was not given before, and note it."""
        instance, stamp, _ = row
        given, left = self._again.get(instance, ("", 0))
        if stamp < given:
            return False
        if stamp == given and left > 0:
            self._again[instance] = (given, left - 1)
            return False
        last, count = self._last.get(instance, ("", 0))
        self._last[instance] = (stamp, count + 1 if stamp == last else 1)
        return True


class _HostLog(threading.Thread):
    """Reads one host's stream into the inbox, for as long as it is wanted."""

    def __init__(
        self,
        client: ShimClient,
        cluster: str,
        names: Sequence[str],
        options: Sequence[str],
        inbox: queue.Queue[Row | None],
    ) -> None:
        super().__init__(name=f"logs {client.host}", daemon=True)
        self._client, self._cluster, self._names, self._options = client, cluster, names, list(options)
        self._inbox = inbox
        self._done = threading.Event()
        self._stream: Stream | None = None

    def run(self) -> None:
        seen = _Seen()
        options = self._options
        while not self._done.is_set():
            try:
                self._stream = self._client.log_lines(self._cluster, options, self._names)
                for line in self._stream.lines():
                    row = row_of(line)
                    if seen.is_new(row):
                        self._inbox.put(row)
                break
            except TransportError:
                self._done.wait(_RETRY_S)
                since = seen.resume_since()
                options = (
                    self._options
                    if since is None
                    else [*_without(self._options, "--tail", "--since"), "--since", repr(since)]
                )
        self._inbox.put(None)

    def close(self) -> None:
        self._done.set()
        if self._stream is not None:
            with suppress(TransportError):
                self._stream.close()


def follow_rows(
    reach: Reach, cluster: str, placed: Mapping[str, Sequence[str]], options: Sequence[str]
) -> Iterator[Row]:
    """Yield rows of the instances on each host (`placed`: host -> names) until all streams end; a host that goes away is waited for."""
    inbox: queue.Queue[Row | None] = queue.Queue()
    logs = [_HostLog(reach[host], cluster, names, options, inbox) for host, names in placed.items()]
    for log in logs:
        log.start()
    running = len(logs)
    try:
        while running:
            batch = [inbox.get()]
            with suppress(queue.Empty):
                while True:
                    batch.append(inbox.get(timeout=_TOGETHER_S))
                    if len(batch) > 10_000:
                        break
            running -= batch.count(None)
            yield from sorted((row for row in batch if row is not None), key=lambda row: row[1])
    finally:
        for log in logs:
            log.close()


def _without(options: Sequence[str], *names: str) -> list[str]:
    """Return options without some that have a value."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if word in names:
            next(words)
        else:
            kept.append(word)
    return kept
