"""One lock per cluster, on its hosts: says who changes it, since when and with what command."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdctl.errors import LockHeld, TransportError
from pdctl.hosts.shim_client import HeldLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.cluster.reach import Reach


@contextmanager
def cluster_lock(
    reach: Reach, cluster: str, command: str, *, without_absent: bool = False
) -> Iterator[dict[str, TransportError]]:
    """Hold the cluster's lock on all hosts; it goes with this process, however it ends. Raises LockHeld.

    A host that doesn't answer is an error, or, if `without_absent`, one of those that are yielded.
    """
    who = {"who": f"{_user()}@{socket.gethostname()} (pid {os.getpid()})", "command": command}
    answers = reach.each(lambda client: client.lock(cluster, who))
    held = {host: lock for host, lock in answers.items() if isinstance(lock, HeldLock)}
    try:
        for host, answer in answers.items():
            if isinstance(answer, TransportError):
                if without_absent:
                    continue
                raise answer
            if answer.held_by is not None:
                by = answer.held_by
                raise LockHeld(
                    f"{cluster} on {host}" if len(answers) > 1 else cluster,
                    who=str(by.get("who", "somebody")), since=str(by.get("since", "?")), command=str(by.get("command", "?")),
                )  # fmt: skip
        yield {host: answer for host, answer in answers.items() if isinstance(answer, TransportError)}
    finally:
        for lock in held.values():
            lock.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.getuid())
