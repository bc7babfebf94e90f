"""Judge engines that were written by hand: do their KV configs, roles and ports fit each other? Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pdctl.connectors.base import Ask, Shape
from pdctl.connectors.config_fields import (
    ROLES,
    field_faults,
    nearest_class_name,
    p2p_extra_faults,
    parse_config,
    same_connector,
)
from pdctl.connectors.port_claims import Claim, clashes, port_number
from pdctl.connectors.registry import SHORT_NAMES, find_connector
from pdctl.vllm.environment import environment_faults
from pdctl.vllm.releases import release, spans
from pdctl.vllm.version import Version, parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.connectors.base import Connector

_KV_ROLE = {"producer": "kv_producer", "consumer": "kv_consumer"}
_KV_PORT = 14579  # vLLM 0.22.1, config/kv_transfer.py
_SMALL_BUFFER = 1e6
_SIDE_CHANNEL_PORT = 5600  # vLLM 0.33.0, envs.py


@dataclass(frozen=True)
class HandWritten:
    """One engine as somebody starts it by hand."""

    name: str
    role: Literal["producer", "consumer", "aggregated"]
    """What it is meant to be."""
    version: str
    """vLLM's release, such as `0.22.1`."""
    http_port: int
    tp: int
    host: str
    """Engines of one host share its ports."""
    config: Mapping[str, Any] | str | None
    """--kv-transfer-config, as JSON or read; None if the command has none."""
    side_channel_port: int | None = None
    """VLLM_NIXL_SIDE_CHANNEL_PORT; None where it is not set, which is vLLM's 5600."""
    env: Mapping[str, str] | None = None
    """Its environment; None where nothing is known of it."""
    flags: tuple[str, ...] = ()
    """Flags of its command, without dashes, as far as they are known."""
    advise: bool = False
    """Whether to name, too, what belongs into an unknown environment and what is merely dear."""


@dataclass(frozen=True)
class Misfit:
    """One thing that does not fit."""

    instance: str
    what: str
    fix: str
    fatal: bool
    """False where the engines run and move KV all the same."""


@dataclass
class _Read:
    """One engine with its config read as far as it can be."""

    given: HandWritten
    version: Version = ()
    config: dict[str, Any] = field(default_factory=dict)
    class_name: str = ""
    """vLLM's name of the connector that is written or meant; empty without one."""


def judge(instances: Sequence[HandWritten]) -> list[Misfit]:
    """Return everything that does not fit, all at once: each engine's config, then the pairs, then the ports."""
    found: list[Misfit] = []
    read = [_read(one, found) for one in instances]
    for one in read:
        _check_role(one, found)
        if one.class_name == "P2pNcclConnector":
            faults = p2p_extra_faults(one.config, one.given.http_port, one.version)
            found += [Misfit(one.given.name, what, fix, fatal=True) for what, fix in faults]
        found += _p2p_needs(one) if one.class_name == "P2pNcclConnector" else []
        found += _environment(one)
    _check_halves(read, found)
    _check_rules(read, found)
    found += [Misfit(*clash, fatal=True) for clash in clashes([claim for one in read for claim in _claims(one)])]
    return list(dict.fromkeys(found))


def _read(given: HandWritten, found: list[Misfit]) -> _Read:
    one = _Read(given)
    try:
        one.version = parse_version(given.version)
    except ValueError as error:
        found.append(Misfit(given.name, str(error), "write it as 0.22.1", fatal=True))
    if given.config is None:
        return one
    try:
        one.config = parse_config(given.config)
    except ValueError as error:
        found.append(Misfit(given.name, str(error), f"write it as {_example(given.role, 'NixlConnector')}", fatal=True))
        return one
    written = one.config.get("kv_connector")
    if not isinstance(written, str) or not written:
        found.append(Misfit(given.name, f"{given.name} names no connector", 'add `"kv_connector"`', fatal=True))
        return one
    own_module = bool(one.config.get("kv_connector_module_path"))
    one.class_name = written if own_module else nearest_class_name(written) or written
    if not own_module and nearest_class_name(written) != written:
        near = nearest_class_name(written)
        fix = f'write `"kv_connector": "{near}"`' if near else "use one that this vLLM has, such as NixlConnector"
        found.append(Misfit(given.name, f"vLLM has no connector `{written}`", fix, fatal=True))
    if one.version:
        faults = field_faults(one.config, one.class_name, one.version)
        found += [Misfit(given.name, what, f"remove `{key}`", fatal) for key, what, fatal in faults]
    return one


def _check_role(one: _Read, found: list[Misfit]) -> None:
    name, role = one.given.name, one.config.get("kv_role")
    wanted = _KV_ROLE.get(one.given.role)
    if not one.class_name or wanted is None or role == wanted:
        return
    fix = f'write `"kv_role": "{wanted}"`'
    if role is None:
        found.append(Misfit(name, f"{name} has {one.class_name} and no kv_role: vLLM refuses it", fix, fatal=True))
    elif role not in ROLES:
        found.append(Misfit(name, f"{role!r} is no kv_role: vLLM knows {', '.join(ROLES)}", fix, fatal=True))
    elif role != "kv_both":
        found.append(Misfit(name, f"{name} is meant as {one.given.role}, but its kv_role is {role}", fix, fatal=True))
    elif one.class_name == "P2pNcclConnector" and wanted == "kv_consumer":
        what = f"kv_both makes {name} a producer: P2pNccl takes in KV only where the role is kv_consumer"
        found.append(Misfit(name, what, fix, fatal=True))
    elif one.class_name.startswith("Nixl") and one.version >= (0, 23, 0):
        found.append(Misfit(name, "kv_both is deprecated with Nixl from vLLM 0.23 on", fix, fatal=False))


def _p2p_needs(one: _Read) -> list[Misfit]:
    """Return what P2pNccl needs outside of its config (vLLM 0.17 to 0.23), and what of its config is dear or harmful.

    p2p_nccl_engine.py (0.22.1): 139 mem_pool_size_gb, 172 and 406 kv_buffer_size, 579 proxy_ip.
    """
    name, extra, found = one.given.name, _extra(one.config), []
    switch = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"
    if one.version and switch in release(one.version).environment and (one.given.env or {}).get(switch) != "1":
        known = one.given.env is not None
        what = f"{switch}=1 must be in its environment: with a suffix of its own on each side a request's KV is never found"
        if known or one.given.advise:
            found.append(Misfit(name, what, f"export {switch}=1 for both roles", fatal=known))
    if not one.given.advise:
        return found
    if extra.get("proxy_ip") in ("0.0.0.0", "::"):  # noqa: S104 - a wildcard that somebody wrote
        what = f"proxy_ip {extra['proxy_ip']} is an address to connect to: it reaches the proxy on this same host only"
        found.append(Misfit(name, what, "write the proxy's address", fatal=False))
    if "mem_pool_size_gb" not in extra:
        what = f"every rank pins 32 GB of host memory ({32 * one.given.tp} GB at tp {one.given.tp}): mem_pool_size_gb is not set"
        found.append(Misfit(name, what, 'write `"mem_pool_size_gb": "4"`', fatal=False))
    buffer = one.config.get("kv_buffer_size")
    if buffer is not None and _number(buffer) < _SMALL_BUFFER and one.given.role == "consumer":
        what = f"kv_buffer_size {buffer} is bytes: the consumer spills every received tensor to host memory, with a warning each"
        found.append(Misfit(name, what, 'write `"kv_buffer_size": 4e9`', fatal=False))
    elif buffer is not None and one.given.role == "producer" and extra.get("send_type") != "GET":
        what = (
            f"kv_buffer_size {buffer} is bytes, not blocks, and has no effect: a producer that pushes does not read it"
        )
        found.append(Misfit(name, what, "remove `kv_buffer_size`", fatal=False))
    return found


def _environment(one: _Read) -> list[Misfit]:
    """Return variables of the engine that its release does not read, or that end it."""
    if not one.version:
        return []
    faults = environment_faults(
        one.given.env or {}, one.version, connector=one.class_name or None, args=one.given.flags
    )
    return [Misfit(one.given.name, f"{each.name}: {each.what}", each.fix, each.fatal) for each in faults]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _check_halves(read: Sequence[_Read], found: list[Misfit]) -> None:
    """Every producer and consumer has the same connector and release, or KV never moves and nothing says so."""
    halves = [one for one in read if one.given.role in _KV_ROLE]
    leader = next((one for one in halves if one.class_name), None)
    for one in halves:
        name = one.given.name
        if one.given.config is None:
            class_name = leader.class_name if leader else "NixlConnector"
            other = f", while {leader.given.name} has {class_name}" if leader else ""
            what = f"{one.given.role} {name} has no --kv-transfer-config{other}: it is an ordinary engine, no KV moves"
            found.append(Misfit(name, what, f"add {_example(one.given.role, class_name)}", fatal=True))
        if leader is None or one is leader:
            continue
        first = leader.given.name
        if one.class_name and not same_connector(leader.class_name, one.class_name, one.version):
            what = (
                f"{first} has {leader.class_name} and {name} {one.class_name}: they cannot hand KV over to each other"
            )
            fix = f'write `"kv_connector": "{leader.class_name}"` for {name}, or the other for {first}'
            found.append(Misfit(name, what, fix, fatal=True))
        if one.version and leader.version and one.version != leader.version:
            what = f"{first} has vLLM {leader.given.version} and {name} {one.given.version}, which cannot exchange KV"
            found.append(Misfit(name, what, "install one version everywhere", fatal=True))


def _check_rules(read: Sequence[_Read], found: list[Misfit]) -> None:
    """Apply the connector's own rules: releases that have it, and the sizes of each pair."""
    registered = {name: each for each in map(find_connector, SHORT_NAMES) for name in each.class_names}
    known = [(one, registered[one.class_name]) for one in read if one.version and one.class_name in registered]
    for one, connector in known:
        if one.class_name not in release(one.version).connectors:
            there = " and ".join(map(str, spans("connectors", one.class_name)))
            what = f"vLLM {one.given.version} has no {one.class_name}: it is there from {there}"
            instead = connector.class_name(one.version)
            instead = instead if instead in release(one.version).connectors else "NixlConnector"
            found.append(Misfit(one.given.name, what, f'write `"kv_connector": "{instead}"` on both sides', fatal=True))
    for p, d, connector in _partners(known):
        sizes = Shape(1, p.given.tp, 1, 1), Shape(1, d.given.tp, 1, 1)
        ask = Ask(d.version, *sizes, "gpu", "vllm", 1, len({p.given.host, d.given.host}), None, "", _extra(p.config))
        found += [Misfit(d.given.name, broken.what, broken.fix, fatal=True) for broken in connector.problems(ask)]


def _partners(known: Sequence[tuple[_Read, Connector]]) -> list[tuple[_Read, _Read, Connector]]:
    """Return each (producer, consumer) of one connector; a half that stands alone is held against its like."""
    halves = [(one, connector) for one, connector in known if one.given.role in _KV_ROLE]
    pairs = [
        (p, d, connector)
        for p, connector in halves
        for d, _ in halves
        if (p.given.role, d.given.role) == ("producer", "consumer") and p.class_name == d.class_name
    ]
    alone = len({one.class_name for one, _ in halves}) == 1  # of two that differ, that is what there is to say
    return pairs or [(one, one, connector) for one, connector in halves if alone]


def _extra(config: Mapping[str, Any]) -> dict[str, Any]:
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, dict) else {}


def _claims(one: _Read) -> list[Claim]:
    """Return the ports that an engine listens on."""
    name, host = one.given.name, one.given.host
    claims = [Claim(name, host, "API port", one.given.http_port, 1, "--port")]
    if one.class_name == "P2pNcclConnector":
        first = port_number(one.config.get("kv_port", _KV_PORT))
        claims += [Claim(name, host, "KV ports", first, one.given.tp, "kv_port")] if first is not None else []
    elif one.class_name.startswith("Nixl") and one.version:
        wide = one.version < (0, 11, 1)  # each worker listens, later the engine core alone
        first = one.given.side_channel_port or _SIDE_CHANNEL_PORT
        count = one.given.tp if wide else 1
        claims.append(Claim(name, host, "side-channel ports", first, count, "VLLM_NIXL_SIDE_CHANNEL_PORT"))
    return claims


def _example(role: str, class_name: str) -> str:
    config = {"kv_connector": class_name, "kv_role": _KV_ROLE.get(role, "kv_producer")}
    return f"--kv-transfer-config '{json.dumps(config, separators=(',', ':'))}'"
