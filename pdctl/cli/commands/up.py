"""pdctl up."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl.cli.load import read_topology
from pdctl.cli.options import FileArgument, JsonOption, NewKeysOption, SetOption, duration_s
from pdctl.cli.result import Result
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from pdctl.cluster.reach import Reach
    from pdctl.plan.model import Plan
    from pdctl.topology.schema import Topology
    from pdctl.topology.source import TopologyFile


def command(
    file: FileArgument,
    set_: SetOption = [],  # noqa: B006 - typer copies it
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once everything is started.")] = False,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="Time to become ready; default: health.startup_timeout.")
    ] = "",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Don't prove that KV moves.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Don't ask before changing what runs.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave what was started when it fails or is interrupted.")
    ] = False,
    accept_new_host_keys: NewKeysOption = False,
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it
) -> Result:
    """Start the cluster (or what is missing of it), wait until it is ready, and prove that KV moves. Idempotent."""
    from pdctl.cli.open import asking
    from pdctl.cluster.known import KnownCluster, hosts_of, known_hosts, pdctl_home, reachable_hosts, remember
    from pdctl.cluster.reach import Reach
    from pdctl.cluster.up import bring_up, record_of
    from pdctl.render.progress import progress

    began = time.monotonic()
    loaded = read_topology(file, set_)
    home = pdctl_home(os.environ)
    topology = "-" if file == "-" else str(Path(file).absolute())
    hosts = reachable_hosts(home, loaded.topology.name, hosts_of(loaded.topology))
    everywhere = Reach(hosts, home, asking(accept_new_host_keys=accept_new_host_keys))
    noticed: list[str] = []
    try:
        plan = _plan(loaded, everywhere)
        timeout_s = duration_s("--timeout", timeout) if timeout else float(plan.health["startup_timeout_s"])
        named = {host.name for host in loaded.topology.hosts}
        used = {host.name for host in plan.hosts}
        reach = everywhere.only(host.name for host in hosts if host.name in used or host.name not in named)
        with progress(plan, sys.stderr) as sink:
            outcome = bring_up(
                plan, reach,
                record=record_of(plan, topology=topology, now=time.time()),
                remember=lambda: remember(home, KnownCluster(plan.cluster, topology, known_hosts(plan))),
                look=lambda *, serving: _look(plan, loaded.topology, reach, serving, noticed),
                environ=os.environ, sink=sink, timeout_s=timeout_s, wait=not no_wait, keep=keep, dry_run=dry_run,
                confirm=lambda text: yes or _confirm(sink, text),
            )  # fmt: skip
            report = None
            if not (dry_run or no_wait or no_verify):
                report = _verify(plan, reach, sink)
    finally:
        everywhere.close()
    document: dict[str, Any] = {
        "schema": 1,
        "cluster": plan.cluster,
        "url": plan.url,
        "dry_run": dry_run,
        "waited": not no_wait,
        "changes": [
            {"instance": one.instance, "action": one.action, "cause": one.cause}
            for one in outcome.changes
            if one.action != "keep"
        ],
        "seconds": round(time.monotonic() - began, 3),
        "verify": report.to_dict() if report else None,
        "headline": report.headline if report else None,
        "model": plan.served_model_name,
        "warnings": [*plan.warnings, *noticed],
    }
    return Result(document, view="up", exit_code=report.exit_code if report else 0)


def _plan(loaded: TopologyFile, reach: Reach) -> Plan:
    """Ask the hosts and plan; where asking finds a blocker, a file that is wrong by itself is said first."""
    from pdctl.cluster.facts import gather_facts
    from pdctl.errors import PreflightError
    from pdctl.plan.planner import plan_cluster

    try:
        facts = gather_facts(loaded.topology, reach)
    except PreflightError:
        plan_cluster(loaded.topology, gather_facts(loaded.topology, assume_gpus=True), loaded.source)
        raise
    return plan_cluster(loaded.topology, facts, loaded.source)


def _look(plan: Plan, topology: Topology, reach: Reach, serving: frozenset[str], noticed: list[str]) -> None:
    """Look at the hosts; note what is worth a word, and raise what stands in the way."""
    from pdctl.cluster.preflight import look_at_hosts
    from pdctl.errors import PreflightError

    found = look_at_hosts(plan, topology, reach, serving=serving)
    noticed += [str(one) for one in found.warnings]
    if found.blockers:
        raise PreflightError(found.blockers)


def _verify(plan: Any, reach: Any, sink: Any) -> Any:
    from pdctl.events import Event
    from pdctl.verify.recorded import verify_and_record

    sink.emit(Event("step", plan.cluster, "verifying that KV moves"))
    return verify_and_record(plan, reach, environ=os.environ, sink=sink)


def _confirm(sink: Any, text: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would change what runs:\n{text}", fix="run it with -y to do so, or with --dry-run to only look"
        )
    with sink.paused():
        sys.stderr.write(f"{text}\n")
        return typer.confirm("Go on?", err=True)
