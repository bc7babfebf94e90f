"""A hand-written --kv-transfer-config against one release: its fields, their types, who reads them, and the connector's name."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from pdctl.connectors.port_claims import port_number
from pdctl.connectors.registry import UnknownConnector, find_connector
from pdctl.vllm.releases import names, release, spans
from pdctl.vllm.version import format_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.connectors.base import Version

ROLES = ("kv_producer", "kv_consumer", "kv_both")
_READ_BY_P2P = ("kv_buffer_size", "kv_port")
_READ_BY_NONE = ("kv_rank", "kv_parallel_size", "kv_ip")
"""Only V0's pipes read these (0.10.2, kv_transfer/kv_pipe/pynccl_pipe.py:55-65); tutorials still show them."""


def parse_config(written: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return a --kv-transfer-config as a mapping. Raises ValueError that says where the JSON is wrong."""
    if not isinstance(written, str):
        return dict(written)
    try:
        found = json.loads(written)
    except json.JSONDecodeError as error:
        raise ValueError(f"--kv-transfer-config is no JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(found, dict):
        raise ValueError("--kv-transfer-config is no JSON object")  # noqa: TRY004 - what is wrong is the text's value
    return found


def nearest_class_name(written: str) -> str | None:
    """Return vLLM's name of the connector that is meant: itself, pdctl's short name in full, or the nearest one."""
    known = names("connectors")
    if written in known:
        return written
    try:
        return find_connector(written).class_names[0]
    except UnknownConnector as error:
        lower = {name.lower(): name for name in known}
        plain = written.lower().replace("_", "")
        longer = [name for name in lower if len(plain) > 3 and name.startswith(plain)]
        near = longer or difflib.get_close_matches(plain, lower, n=1, cutoff=0.6)
        return lower[near[0]] if near else find_connector(error.nearest).class_names[0] if error.nearest else None


def same_connector(one: str, other: str, version: Version) -> bool:
    """Say whether two class names hand KV over to each other: NixlPullConnector is NixlConnector from 0.24 on."""
    pull = ("NixlConnector", "NixlPullConnector")
    return one == other or (version >= (0, 24, 0) and one in pull and other in pull)


def field_faults(config: Mapping[str, Any], class_name: str, version: Version) -> list[tuple[str, str, bool]]:
    """Return (field, what, whether vLLM refuses it) for each field that this release does not have, cannot read or does not use."""
    facts = release(version)
    faults = []
    for field, value in config.items():
        known = facts.kv_config_fields.get(field)
        if known is None:
            fatal = facts.refuses_unknown_fields
            faults.append((field, _gone(field, version, fatal=fatal), fatal))
        elif not _fits(str(known["type"]), value):
            faults.append((field, f"`{field}` is {json.dumps(value)}, but vLLM wants {known['type']}", True))
        elif _is_idle(field, class_name, version):
            faults.append((field, f"`{field}` has no effect: {class_name} does not read it", False))
    return faults


def _fits(wanted: str, value: Any) -> bool:
    """Say whether pydantic takes a JSON value for a type; text that reads as a number is one. Types that are not plain pass."""
    if value is None:
        return "None" in wanted or wanted.startswith("KVRole")
    plain = wanted.replace(" | None", "")
    if plain in ("int", "float"):
        try:
            return (
                not isinstance(value, (dict, list))
                and float(value) is not None
                and (plain == "float" or float(value) == int(float(value)))
            )
        except (TypeError, ValueError):
            return False
    if plain == "str":
        return isinstance(value, str)
    if plain == "bool":
        return isinstance(value, bool) or str(value).lower() in ("0", "1", "true", "false", "yes", "no", "on", "off")
    if plain.startswith("dict"):
        return isinstance(value, dict)
    if plain.startswith("Literal["):
        return isinstance(value, str) and f'"{value}"' in plain
    return True


def p2p_extra_faults(config: Mapping[str, Any], http_port: int, version: Version) -> list[tuple[str, str]]:
    """Return (what, fix) for what ends a P2pNccl worker at start (vLLM 0.22.1, v1/p2p/p2p_nccl_engine.py:102-123)."""
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    fix = f'write `"http_port": "{http_port}"` in kv_connector_extra_config'
    faults = []
    if "http_port" not in extra:
        if extra.get("proxy_ip") or version < (0, 11, 1):
            faults.append(("http_port is missing in the extra config: every worker ends at start", fix))
    elif port_number(extra["http_port"]) != http_port:
        what = f"http_port in the extra config is {extra['http_port']}, the API port is {http_port}: it must equal {http_port}"
        faults.append((what, fix))
    if extra.get("proxy_ip") and not isinstance(extra.get("proxy_port"), str):
        what = "proxy_port in the extra config is no string: vLLM adds it to proxy_ip, a TypeError in every worker"
        faults.append((what, f'write `"proxy_port": "{extra.get("proxy_port", 30001)}"`'))
    return faults


def _is_idle(field: str, class_name: str, version: Version) -> bool:
    if class_name not in names("connectors"):
        return False  # somebody's own connector may read anything
    if field in _READ_BY_P2P:
        return class_name != "P2pNcclConnector" or class_name not in release(version).connectors
    return field in _READ_BY_NONE


def _gone(field: str, version: Version, *, fatal: bool) -> str:
    """Say why a field is not there: removed, not there yet, or never a field."""
    if not fatal:
        return f"`{field}` has no effect: this vLLM does not know it and says nothing"
    having = spans("kv_config", field)
    if having and having[-1].last is not None and having[-1].last < version:
        last = format_version(having[-1].last)
        return f"`{field}` is fatal: vLLM {last} was the last to have it, newer ones end with `Unexpected keyword argument`"
    if having:
        return f"`{field}` is fatal: vLLM has it from {format_version(having[0].first)} on only"
    near = difflib.get_close_matches(field, release(version).kv_config_fields, n=1, cutoff=0.75)
    hint = f" (near: `{near[0]}`)" if near else ""
    return f"`{field}` is fatal: KVTransferConfig has no such field{hint}, vLLM ends with `Unexpected keyword argument`"
