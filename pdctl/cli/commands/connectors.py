"""pdctl connectors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pdctl.cli.options import JsonOption
from pdctl.cli.result import Result
from pdctl.errors import UsageError


def command(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One connector, by short name or vLLM's class name.")
    ] = "",
    vllm: Annotated[str, typer.Option("--vllm", metavar="V", help="What this vLLM release has, such as 0.22.1.")] = "",
    json: JsonOption = False,  # noqa: ARG001 - the renderer reads it
) -> Result:
    """Show vLLM's KV connectors: which release has them, what they need of a proxy, their keys. From published wheels."""
    from pdctl.connectors.registry import SHORT_NAMES, find_connector
    from pdctl.vllm.releases import known_releases, newest_known, release
    from pdctl.vllm.version import format_version

    version = _version(vllm) if vllm else newest_known()
    facts = release(version)
    warnings = _warnings(vllm, facts)
    chosen = [_find(name)] if name else [find_connector(one) for one in SHORT_NAMES]
    document: dict[str, Any] = {
        "schema": 1,
        "vllm": format_version(facts.version),
        "asked": vllm or None,
        "known_releases": [format_version(one) for one in known_releases()],
        "nixl_connector_version": facts.nixl_connector_version,
        "kv_config_fields": {field: dict(fact) for field, fact in facts.kv_config_fields.items()},
        "unknown_fields_refused": facts.refuses_unknown_fields,
        "connectors": [_row(one, facts) for one in chosen],
        "warnings": warnings,
    }
    return Result(document, view="connector" if name else "connectors")


def _row(connector: Any, facts: Any) -> dict[str, Any]:
    from pdctl.connectors.registry import connector_spans

    class_name = connector.class_name(facts.version)
    known = facts.connectors.get(class_name)
    return {
        "name": connector.name,
        "class_names": list(connector.class_names),
        "releases": [str(span) for span in connector_spans(connector)],
        "in_this_release": known is not None,
        "disaggregates": connector.disaggregates or connector.name == "multi",
        "proxied_by_pdctl": connector.handover is not None or connector.name == "multi",
        "simulated": connector.simulated,
        "protocol": connector.protocol,
        "hybrid_kv_cache": known.supports_hma if known else None,
        "extra_keys": list(known.extra_keys) if known else [],
        "set_by_pdctl": list(connector.own_keys),
    }


def _find(name: str) -> Any:
    from pdctl.connectors.registry import SHORT_NAMES, UnknownConnector, find_connector

    try:
        return find_connector(name)
    except UnknownConnector as error:
        near = f"did you mean `{error.nearest}`?" if error.nearest else f"use one of {', '.join(SHORT_NAMES)}"
        raise UsageError(f"no connector `{name}`", fix=near) from None


def _version(text: str) -> tuple[int, ...]:
    from pdctl.vllm.version import parse_version

    try:
        return parse_version(text)
    except ValueError as error:
        raise UsageError(f"--vllm: {error}", fix="write it as 0.22.1") from None


def _warnings(asked: str, facts: Any) -> list[str]:
    from pdctl.vllm.version import format_version

    if facts.is_newer_than_known:
        return [
            f"vLLM {asked} is newer than any release known here: these are the facts of {format_version(facts.version)}"
        ]
    if facts.is_older_than_known:
        return [
            f"vLLM {asked} is older than any release known here: these are the facts of {format_version(facts.version)}"
        ]
    return []
