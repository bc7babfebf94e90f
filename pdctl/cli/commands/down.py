"""pdctl down."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from pdctl.cli.open import open_cluster
from pdctl.cli.options import ClusterOption, JsonOption, duration_s
from pdctl.cli.result import Result


def command(
    cluster: ClusterOption = "",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Time to end in peace before SIGKILL.")] = "30s",
    purge: Annotated[bool, typer.Option("--purge", help="Remove logs and state, and forget the cluster.")] = False,
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it
) -> Result:
    """Stop everything of the cluster and prove that no process, port or shared memory of it is left. Idempotent."""
    from pdctl.cluster.known import forget
    from pdctl.cluster.lock import cluster_lock
    from pdctl.cluster.stop import stop_cluster

    began = time.monotonic()
    timeout_s = duration_s("--timeout", timeout)
    with open_cluster(cluster) as opened:
        name = opened.known.cluster
        with cluster_lock(opened.reach, name, "pdctl down", without_absent=True) as absent:
            stopped = stop_cluster(name, opened.reach, timeout_s=timeout_s, purge=purge, absent=absent)
        if purge and stopped.clean:
            forget(opened.home, name)
    document: dict[str, Any] = {
        "schema": 1,
        "cluster": name,
        "stopped": list(stopped.stopped),
        "already_stopped": list(stopped.already),
        "left": [dict(one) for one in stopped.left],
        "ports_busy": list(stopped.ports_busy),
        "shared_memory_removed": list(stopped.shm_removed),
        "unreachable": {host: error.what for host, error in stopped.unreachable.items()},
        "clean": stopped.clean,
        "purged": purge and stopped.clean,
        "seconds": round(time.monotonic() - began, 3),
    }
    return Result(document, view="down", exit_code=0 if stopped.clean else 1)
