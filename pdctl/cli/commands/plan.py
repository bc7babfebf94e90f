"""pdctl plan."""

from __future__ import annotations

import os
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli.load import read_topology
from pdctl.cli.options import FileArgument, JsonOption, SetOption
from pdctl.cli.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.cluster.reach import Reach
    from pdctl.plan.model import Plan
    from pdctl.topology.schema import Topology

_WOULD_CHANGE = 6


class Format(str, Enum):
    """How the plan is printed."""

    table = "table"
    json = "json"
    sh = "sh"
    yaml = "yaml"


def command(
    file: FileArgument,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
    set_: SetOption = [],  # noqa: B006 - typer copies it
    hosts: Annotated[bool, typer.Option("--hosts", help="Ask the hosts for their vLLM version and GPUs.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 6 if the plan differs from what runs.")] = False,
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it; the same as --format json
) -> Result:
    """Resolve the topology and show everything `up` would do. Touches no host unless --hosts asks for facts."""
    from pdctl.cluster.facts import gather_facts
    from pdctl.plan.document import plan_document, shell_script
    from pdctl.plan.planner import plan_cluster

    loaded = read_topology(file, set_)
    with _reach(loaded.topology) as reach:
        facts = gather_facts(loaded.topology, reach if hosts else None, assume_gpus=not hosts)
        plan = plan_cluster(loaded.topology, facts, loaded.source)
        document = plan_document(plan)
        status = _WOULD_CHANGE if exit_code and _differs(plan, reach) else 0
    if form is Format.sh:
        return Result(document, text=shell_script(plan), exit_code=status)
    if form is Format.yaml:
        import yaml

        return Result(document, text=yaml.safe_dump(document, sort_keys=False, width=120), exit_code=status)
    return Result(document, view="plan", exit_code=status)


@contextmanager
def _reach(topology: Topology) -> Iterator[Reach]:
    """Yield the file's hosts; none is connected to before it is asked."""
    from pdctl.cli.open import asking
    from pdctl.cluster.known import hosts_of, pdctl_home
    from pdctl.cluster.reach import Reach

    reach = Reach(hosts_of(topology), pdctl_home(os.environ), asking())
    try:
        yield reach
    finally:
        reach.close()


def _differs(plan: Plan, reach: Reach) -> bool:
    from pdctl.cluster.observe import observe
    from pdctl.cluster.up import changes_between

    used = reach.only(host.name for host in plan.hosts)
    return any(change.action != "keep" for change in changes_between(plan, observe(plan.cluster, used)))
