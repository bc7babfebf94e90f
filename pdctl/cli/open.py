"""The cluster that a command without FILE means, with its hosts at hand."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.cli.load import named_by_file
from pdctl.cluster.known import KnownCluster, choose_cluster, pdctl_home
from pdctl.cluster.reach import Asking, Reach

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class OpenCluster:
    """A known cluster and its hosts."""

    known: KnownCluster
    reach: Reach
    home: Path


def asking(*, accept_new_host_keys: bool = False) -> Asking:
    """Return how logins may ask: on a terminal they do, elsewhere nothing waits for an answer."""
    on_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    return Asking(accept_new_host_keys=accept_new_host_keys, ask=_ask if on_terminal else None)


def _ask(question: str) -> str:
    from getpass import getpass

    return getpass(question, stream=sys.stderr)


@contextmanager
def open_cluster(name: str) -> Iterator[OpenCluster]:
    """Yield the cluster that `name` (or ./topology.yaml, or the only one known) means; closes its connections after."""
    home = pdctl_home(os.environ)
    wanted = name or None
    if wanted and wanted.endswith((".yaml", ".yml")):  # the file that `up` was given, out of habit
        wanted = named_by_file(Path(wanted))
    known = choose_cluster(home, wanted, named_by_file())
    reach = Reach(known.hosts, home, asking())
    try:
        yield OpenCluster(known, reach, home)
    finally:
        reach.close()
