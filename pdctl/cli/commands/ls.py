"""pdctl ls."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pdctl.cli.options import JsonOption
from pdctl.cli.result import Result


def command(json: JsonOption = False) -> Result:  # noqa: ARG001 - the renderer reads it
    """List the clusters known on this machine, with their state now."""
    from pdctl.cli.open import asking
    from pdctl.cluster.known import KnownCluster, known_clusters, pdctl_home
    from pdctl.cluster.observe import observe
    from pdctl.cluster.reach import Reach
    from pdctl.cluster.report import status_document

    home = pdctl_home(os.environ)

    def row(known: KnownCluster) -> dict[str, Any]:
        reach = Reach(known.hosts, home, asking())
        try:
            document = status_document(observe(known.cluster, reach), known)
        finally:
            reach.close()
        return {
            "cluster": known.cluster,
            "state": document["state"],
            "url": document["url"],
            "instances": len(document["instances"]),
            "topology": known.topology,
            "hosts": [host.name for host in known.hosts],
        }

    clusters = known_clusters(home)
    with ThreadPoolExecutor(max_workers=8) as pool:
        rows = list(pool.map(row, clusters))
    return Result({"schema": 1, "clusters": rows}, view="ls")
