"""pdctl logs."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli.open import OpenCluster, open_cluster
from pdctl.cli.options import ClusterOption, JsonOption, duration_s
from pdctl.cli.result import Result
from pdctl.errors import UsageError
from pdctl.topology.names import full_name

if TYPE_CHECKING:
    from pdctl.cluster.observe import Observed


def command(
    instances: Annotated[
        list[str], typer.Argument(metavar="[INSTANCE|GLOB]...", help="Such as producer-0, p0, 'consumer-*'.")
    ] = [],  # noqa: B006
    cluster: ClusterOption = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")] = False,
    tail: Annotated[
        int | None, typer.Option("-n", "--tail", metavar="N", help="Only the last N lines of each instance.", min=0)
    ] = None,
    since: Annotated[str, typer.Option(metavar="WHEN", help="Only lines after: 10m ago, or an ISO time.")] = "",
    until: Annotated[str, typer.Option(metavar="WHEN", help="Only lines before: 10m ago, or an ISO time.")] = "",
    times: Annotated[bool, typer.Option("-t", "--timestamps", help="Show when each line was written.")] = False,
    grep: Annotated[str, typer.Option(metavar="REGEX", help="Only lines that match; filtered on the hosts.")] = "",
    errors: Annotated[
        bool, typer.Option("--errors", help="Only the first cause of a failure in each instance.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Causes of failures, and what requests suffer from, each with its fix.")
    ] = False,
    previous: Annotated[bool, typer.Option("--previous", help="The run before the current one.")] = False,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Only instances on this host.")] = "",
    no_prefix: Annotated[
        bool, typer.Option("--no-prefix", help="Don't put the instance's name before each line.")
    ] = False,
    json: JsonOption = False,
) -> Result:
    """Show what the instances wrote, this and earlier runs, all hosts, merged by time."""
    from pdctl.cluster.logs import log_lines
    from pdctl.cluster.observe import observe
    from pdctl.render.log import LogPrinter

    options = _options(follow=follow, tail=tail, since=since, until=until, grep=grep, previous=previous)
    with open_cluster(cluster) as opened:
        observed = observe(opened.known.cluster, opened.reach)
        placed = _placed(observed, instances, host)
        names = [name for here in placed.values() for name in here]
        printer = LogPrinter(names, prefix=not no_prefix, timestamps=times, as_json=json)
        if errors or explain:
            return _causes(opened, placed, run="previous" if previous else "current", symptoms=explain)
        try:
            for name, stamp, text in log_lines(opened.reach, opened.known.cluster, placed, options):
                printer.line(name, stamp, text)
        except KeyboardInterrupt:
            if not follow:
                raise
    return Result(quiet=True)


def _options(*, follow: bool, tail: int | None, since: str, until: str, grep: str, previous: bool) -> list[str]:
    options = ["--follow"] if follow else []
    if tail is not None:
        options += ["--tail", str(tail)]
    for name, text in (("--since", since), ("--until", until)):
        if text:
            options += [name, repr(_epoch_s(name, text))]
    if grep:
        try:
            re.compile(grep)
        except re.error as error:
            raise UsageError(f"--grep: {error}", fix="quote special characters with a backslash") from None
        options += ["--grep", grep]
    if previous:
        options += ["--run", "previous"]
    return options


def _epoch_s(option: str, text: str) -> float:
    if text[:1].isdigit() and text[-1:] in "smhd" and "T" not in text:
        return time.time() - duration_s(option, text)
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(
            f"{option}: {text!r} is no time", fix="write 10m for ten minutes ago, or 2026-01-31T12:00:00"
        ) from None
    return when.timestamp()


def _placed(observed: Observed, wanted: Sequence[str], host: str) -> dict[str, list[str]]:
    seen = {
        one.name: one.host
        for one in (*observed.instances, *observed.past)
        if one.data and (not host or one.host == host)
    }
    chosen: dict[str, list[str]] = {}
    for pattern in wanted or ["*"]:
        names = fnmatch.filter(seen, full_name(pattern))
        if not names:
            known = ", ".join(seen) or "none has run yet"
            raise UsageError(f"no instance `{pattern}`{f' on host {host}' if host else ''}", fix=f"instances: {known}")
        for name in names:
            if name not in chosen.setdefault(seen[name], []):
                chosen[seen[name]].append(name)
    return chosen


def _causes(opened: OpenCluster, placed: dict[str, list[str]], *, run: str, symptoms: bool) -> Result:
    from pdctl.cluster.logs import explain
    from pdctl.vllm.releases import spans

    found = []
    for one in explain(opened.reach, opened.known.cluster, placed, run=run, symptoms=symptoms):
        for what in (one.cause, *one.symptoms):
            if what is not None:
                releases = [str(span) for span in spans("messages", what.name)]
                kind = "cause" if what is one.cause else "harm"
                found.append({"instance": one.instance, "kind": kind, **what.to_dict(), "releases": releases})
    return Result({"schema": 1, "cluster": opened.known.cluster, "causes": found}, view="causes")
