"""pdctl status."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from pdctl.cli.open import open_cluster
from pdctl.cli.options import ClusterOption, JsonOption
from pdctl.cli.result import Result

_NOT_READY = 3
_REFRESH_S = 2.0


def command(
    cluster: ClusterOption = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until Ctrl-C.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Names only.")] = False,
    json: JsonOption = False,
) -> Result:
    """Show the instances with state, host, GPUs, pid, ports, uptime, restarts and load. Exit 3 if not all are ready."""
    from pdctl.cluster.observe import causes_of_failed, observe
    from pdctl.cluster.report import status_document

    with open_cluster(cluster) as opened:
        while True:
            observed = observe(opened.known.cluster, opened.reach, load=not quiet)
            causes = {} if quiet else causes_of_failed(observed, opened.reach)
            document = status_document(observed, opened.known, causes)
            result = Result(
                document,
                view="status",
                text="".join(f"{one['name']}\n" for one in document["instances"]) if quiet else None,
                exit_code=0 if document["state"] == "ready" else _NOT_READY,
            )
            if not watch:
                return result
            from pdctl.render.output import show

            if sys.stdout.isatty() and not json:
                sys.stdout.write("\x1b[H\x1b[2J")
            show(result.data, result.view, result.text, as_json=json)
            time.sleep(_REFRESH_S)
