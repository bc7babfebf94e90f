"""pdctl check."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl.cli.options import JsonOption, NewKeysOption, SetOption
from pdctl.cli.result import Result
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.connectors.judge import HandWritten
    from pdctl.errors import Finding

_BLOCKER = 4
_ROLES = {
    "producer": "producer",
    "prefill": "producer",
    "p": "producer",
    "consumer": "consumer",
    "decode": "consumer",
    "d": "consumer",
}


def command(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Topology file: look at all its hosts, as `up` does first.")
    ] = "",
    config: Annotated[
        list[str],
        typer.Option(
            metavar="JSON", help="A --kv-transfer-config as written by hand; @FILE reads it. Repeat it for a pair."
        ),
    ] = [],  # noqa: B006 - typer copies it
    serve: Annotated[
        list[str],
        typer.Option(
            "--serve", metavar="COMMAND", help="A whole `vllm serve` command, environment before it; @FILE reads it."
        ),
    ] = [],  # noqa: B006 - typer copies it
    vllm: Annotated[str, typer.Option("--vllm", metavar="V", help="The vLLM release it is for, such as 0.22.1.")] = "",
    role: Annotated[
        list[str],
        typer.Option(metavar="ROLE", help="producer or consumer: what each --config or --serve is meant to be."),
    ] = [],  # noqa: B006 - typer copies it
    port: Annotated[list[int], typer.Option(help="API port of each --config.")] = [],  # noqa: B006 - typer copies it
    tp: Annotated[list[int], typer.Option(help="Tensor parallel size of each --config; one for all is enough.")] = [],  # noqa: B006 - typer copies it
    host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Host of each; engines of one host share its ports. Default: one host."),
    ] = [],  # noqa: B006 - typer copies it
    side_channel_port: Annotated[
        list[int], typer.Option(metavar="PORT", help="VLLM_NIXL_SIDE_CHANNEL_PORT of each --config; default 5600.")
    ] = [],  # noqa: B006 - typer copies it
    set_: SetOption = [],  # noqa: B006 - typer copies it
    accept_new_host_keys: NewKeysOption = False,
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it
) -> Result:
    """Look at the hosts of a FILE before anything starts there, or judge --kv-transfer-configs that were written by hand.

    Exit 4 if it cannot work.
    """
    from pdctl.connectors.judge import judge

    if file and (config or serve):
        raise UsageError("FILE and --config or --serve are two different checks", fix="give one of them")
    if file:
        return _hosts(file, set_, accept_new_host_keys=accept_new_host_keys)
    if not config and not serve:
        raise UsageError(
            "nothing to check",
            fix="give a topology FILE, or --config JSON or --serve 'vllm serve ...', twice for a pair",
        )
    version, assumed = _version(vllm)
    engines = _engines(config, serve, version, role, port, tp, host, side_channel_port)
    misfits = judge(engines)
    fatal = any(one.fatal for one in misfits)
    document: dict[str, Any] = {
        "schema": 1,
        "vllm": version,
        "assumed": assumed,
        "instances": [
            {"name": one.name, "role": one.role, "port": one.http_port, "tp": one.tp, "host": one.host}
            for one in engines
        ],
        "ok": not fatal,
        "findings": [vars(one) for one in misfits],
    }
    return Result(document, view="check", exit_code=_BLOCKER if fatal else 0)


def _hosts(file: str, overrides: Sequence[str], *, accept_new_host_keys: bool) -> Result:
    """Ask the hosts everything; what is wrong with an engine's environment does not hide what is wrong with a host."""
    from pdctl.cli.load import read_topology
    from pdctl.cli.open import asking
    from pdctl.cluster.facts import gather_facts
    from pdctl.cluster.known import hosts_of, pdctl_home
    from pdctl.cluster.preflight import check_cluster
    from pdctl.cluster.reach import Reach
    from pdctl.errors import PreflightError
    from pdctl.plan.planner import plan_cluster

    loaded = read_topology(file, overrides)
    everywhere = Reach(
        hosts_of(loaded.topology), pdctl_home(os.environ), asking(accept_new_host_keys=accept_new_host_keys)
    )
    early: tuple[Finding, ...] = ()
    try:
        try:
            facts = gather_facts(loaded.topology, everywhere)
        except PreflightError as error:
            early = error.findings
            facts = gather_facts(loaded.topology, assume_gpus=True)
        plan = plan_cluster(loaded.topology, facts, loaded.source)
        away = {one.host for one in early if one.check == "reach"}  # not to be waited for a second time
        there = everywhere.only(host.name for host in plan.hosts if host.name not in away)
        found = check_cluster(plan, loaded.topology, there)
    finally:
        everywhere.close()
    findings = [*early, *found.findings]
    fatal = any(one.blocker for one in findings)
    document: dict[str, Any] = {
        "schema": 1,
        "cluster": plan.cluster,
        "ok": not fatal,
        "hosts": {
            host: {
                "latency_ms": round(answer.latency_s * 1000, 1),
                "clock_ahead_s": round(answer.clock_ahead_s, 3),
                "vllm": facts.host(host).vllm_version,
                "gpus": None if answer.data["gpus"] is None else len(answer.data["gpus"]),
                "python": answer.data["python"],
            }
            for host, answer in found.hosts.items()
        },
        "findings": [vars(one) for one in findings],
    }
    return Result(document, view="preflight", exit_code=_BLOCKER if fatal else 0)


def _version(asked: str) -> tuple[str, bool]:
    from pdctl.vllm.releases import newest_known
    from pdctl.vllm.version import format_version, parse_version

    if not asked:
        return format_version(newest_known()), True
    try:
        parse_version(asked)
    except ValueError as error:
        raise UsageError(f"--vllm: {error}", fix="write it as 0.22.1") from None
    return asked, False


def _engines(
    configs: Sequence[str], serves: Sequence[str], version: str, roles: Sequence[str], ports: Sequence[int], tps: Sequence[int],
    hosts: Sequence[str], sides: Sequence[int],
) -> list[HandWritten]:  # fmt: skip
    from pdctl.connectors.judge import HandWritten
    from pdctl.connectors.serve_command import read_serve_command

    total = len(configs) + len(serves)
    for option, given in (("--role", roles), ("--host", hosts)):
        if len(given) not in (0, total, 1 if option == "--host" else total):
            raise UsageError(
                f"{len(given)} {option} for {total} engines", fix=f"give {option} once for each, in their order"
            )
    for option, given_numbers in (("--port", ports), ("--side-channel-port", sides)):
        if len(given_numbers) not in (0, len(configs)):
            raise UsageError(
                f"{len(given_numbers)} {option} for {len(configs)} --config",
                fix=f"give {option} once for each, in their order",
            )
    meant: list[str | None] = [_role(one) for one in roles] if roles else [None] * total
    engines: list[HandWritten] = []
    for index, written in enumerate([*configs, *serves]):
        name = f"engine-{index}" if total > 1 else "engine"
        where = hosts[index] if len(hosts) > 1 else hosts[0] if hosts else "local"
        text = _text(written)
        if index >= len(configs):
            try:
                engines.append(read_serve_command(name, text, version, where, meant[index]))
            except ValueError as error:
                raise UsageError(str(error), fix="give it in one shell word, as --serve 'vllm serve ...'") from None
            continue
        role = meant[index] or _said(text) or "producer"
        engines.append(
            HandWritten(
                f"{role}-{index}" if total > 1 else role, role, version, ports[index] if ports else 8000 + 100 * index,  # type: ignore[arg-type]
                tps[index] if len(tps) > 1 else tps[0] if tps else 1, where, None if text in ("", "none") else text,
                sides[index] if sides else None, advise=True,
            )
        )  # fmt: skip
    return engines


def _said(text: str) -> str | None:
    """Return the role that the JSON itself names."""
    for role in ("consumer", "producer"):
        if f"kv_{role}" in text:
            return role
    return None


def _role(text: str) -> str:
    try:
        return _ROLES[text.lower()]
    except KeyError:
        raise UsageError(f"--role: `{text}` is no role", fix="write producer or consumer") from None


def _text(written: str) -> str:
    if not written.startswith("@"):
        return sys.stdin.read() if written == "-" else written
    try:
        return Path(written[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{written[1:]}: {getattr(error, 'strerror', None) or error}", fix="give the path of a file after @"
        ) from None
