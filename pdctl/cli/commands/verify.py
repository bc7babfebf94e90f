"""pdctl verify."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from pdctl.cli.open import open_cluster
from pdctl.cli.options import ClusterOption, JsonOption, duration_s
from pdctl.cli.result import Result
from pdctl.errors import PdctlError


def command(
    cluster: ClusterOption = "",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Time for each probe.")] = "2m",
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it
) -> Result:
    """Probe every producer and consumer: same tokens as without P/D, and the KV that moved. Exit 5 if it did not."""
    from pdctl.cluster.observe import observe
    from pdctl.cluster.verification import note_verification
    from pdctl.verify import verify_cluster

    timeout_s = duration_s("--timeout", timeout)
    with open_cluster(cluster) as opened:
        observed = observe(opened.known.cluster, opened.reach)
        plan = observed.plan
        if plan is None or observed.state not in ("ready", "degraded"):
            late = ", ".join(f"{one.name} is {one.state}" for one in observed.instances if one.state != "ready")
            raise PdctlError(
                f"the cluster is {observed.state}{f' ({late})' if late else ''}",
                where=opened.known.cluster,
                fix="bring it up with `pdctl up` first",
            )
        names = plan.proxy.secret_env if plan.proxy else ()
        key = next((os.environ[name] for name in names if os.environ.get(name)), None)
        report = verify_cluster(plan, api_key=key, timeout_s=timeout_s)
        note_verification(plan, opened.reach, report.to_dict(), report.headline, ok=report.ok, now=time.time())
    document = {"cluster": plan.cluster, "headline": report.headline, **report.to_dict()}
    return Result(document, view="verify", exit_code=report.exit_code)
