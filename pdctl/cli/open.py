"""The cluster that a command without FILE means, with its hosts at hand."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.cli.load import named_by_file
from pdctl.cluster.known import KnownCluster, choose_cluster, hosts_of, known_clusters, pdctl_home
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


def _known(home: Path, name: str) -> KnownCluster:
    """Return the cluster meant: one noted here, else what a topology file says, since the truth lives on its hosts."""
    file = Path(name) if name.endswith((".yaml", ".yml")) else Path("topology.yaml")
    wanted = (named_by_file(file) if name.endswith((".yaml", ".yml")) else name) or None
    noted = {known.cluster for known in known_clusters(home)}
    here = named_by_file(file)
    if here is not None and here not in noted and wanted in (None, here) and (wanted or not noted):
        from pdctl.cli.load import read_topology

        topology = read_topology(str(file), ()).topology
        return KnownCluster(topology.name, str(file.absolute()), hosts_of(topology))
    return choose_cluster(home, wanted, here)


@contextmanager
def open_cluster(name: str) -> Iterator[OpenCluster]:
    """Yield the cluster that `name` (or ./topology.yaml, or the only one known) means; closes its connections after."""
    home = pdctl_home(os.environ)
    known = _known(home, name)
    reach = Reach(known.hosts, home, asking())
    try:
        yield OpenCluster(known, reach, home)
    finally:
        reach.close()
