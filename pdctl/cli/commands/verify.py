"""pdctl verify."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pdctl.cli.open import open_cluster
from pdctl.cli.options import ClusterOption, JsonOption, duration_s
from pdctl.cli.result import Result
from pdctl.errors import PdctlError


def command(
    cluster: ClusterOption = "",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Time for each probe.")] = "2m",
    connector: Annotated[
        str, typer.Option(metavar="NAME", help="Probe engines that others run: their connector.")
    ] = "",
    producer: Annotated[
        list[str], typer.Option(metavar="[NAME=]URL[,kv=HOST:PORT]", help="A running prefill engine; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    consumer: Annotated[
        list[str], typer.Option(metavar="[NAME=]URL[,kv=HOST:PORT]", help="A running decode engine; repeatable.")
    ] = [],  # noqa: B006
    url: Annotated[str, typer.Option(metavar="URL", help="Their proxy, if there is one.")] = "",
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it
) -> Result:
    """Probe every producer and consumer: same tokens as without P/D, and the KV that moved. Exit 5 if it did not."""
    if connector or producer or consumer:
        return _engines(connector, producer, consumer, url, duration_s("--timeout", timeout))
    from pdctl.cluster.observe import observe
    from pdctl.verify.recorded import verify_and_record

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
        report = verify_and_record(plan, opened.reach, environ=os.environ, timeout_s=timeout_s)
    document = {"cluster": plan.cluster, "headline": report.headline, **report.to_dict()}
    return Result(document, view="verify", exit_code=report.exit_code)


def _engines(connector: str, producers: list[str], consumers: list[str], url: str, timeout_s: float) -> Result:
    """Probe engines that no cluster of ours knows."""
    from pdctl.verify import verify_cluster
    from pdctl.verify.client import AskFailed, EngineClient
    from pdctl.verify.foreign import plan_of_engines

    plan = plan_of_engines(connector, producers, consumers, url=url, model="")
    first = plan.instances[0]
    try:
        model = EngineClient(first.name, first.url, "", timeout_s=timeout_s).model_name()
    except AskFailed as error:
        raise PdctlError(str(error), where=first.name, fix="check its URL, and that it runs") from None
    plan = plan_of_engines(connector, producers, consumers, url=url, model=model)
    report = verify_cluster(plan, timeout_s=timeout_s)
    return Result(
        {"cluster": None, "headline": report.headline, **report.to_dict()}, "verify", exit_code=report.exit_code
    )
